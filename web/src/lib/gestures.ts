// Pointer gestures on a plot: hover, box selection and pinch. Positions are pixels from the upper left corner of the
// plot.

export interface Gestures {
  hover(x: number, y: number): void;
  leave(): void;
  /** Called while a box is drawn; null when it is canceled. */
  box(box: Box | null): void;
  zoom(box: Box): void;
  /** Two fingers: the range [a, b] at their start has moved to [c, d]. */
  pinch(a: number, b: number, c: number, d: number): void;
  pinchStart(): void;
  /** Zooms around a position; a factor below 1 zooms in. */
  wheel(x: number, factor: number): void;
  reset(): void;
}

export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
}

const DRAG_FROM = 6;
const BOX_FROM = 28;
const DOUBLE_TAP_MS = 320;

/** Returns a function that removes the listeners. */
export function listen(target: HTMLElement, on: Gestures): () => void {
  const fingers = new Map<number, { x: number; y: number }>();
  let start: { x: number; y: number } | null = null;
  let dragging = false;
  let pinchFrom: [number, number] | null = null;
  let lastTap = { time: -Infinity, x: 0, y: 0 };

  const place = (e: PointerEvent | WheelEvent) => {
    const r = target.getBoundingClientRect();
    return { x: clamp(e.clientX - r.left, r.width), y: clamp(e.clientY - r.top, r.height) };
  };
  const boxTo = (p: { x: number; y: number }): Box => {
    const s = start!;
    const r = target.getBoundingClientRect();
    // A flat drag selects along x only, a tall narrow one along y only.
    const flat = Math.abs(p.y - s.y) < BOX_FROM;
    const narrow = Math.abs(p.x - s.x) < BOX_FROM && !flat;
    return {
      left: narrow ? 0 : Math.min(s.x, p.x),
      width: narrow ? r.width : Math.abs(p.x - s.x),
      top: flat ? 0 : Math.min(s.y, p.y),
      height: flat ? r.height : Math.abs(p.y - s.y),
    };
  };
  const stop = () => {
    if (dragging) on.box(null);
    start = null;
    dragging = false;
  };

  const down = (e: PointerEvent) => {
    const p = place(e);
    if (e.pointerType === 'touch') {
      fingers.set(e.pointerId, p);
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()] as [typeof p, typeof p];
        pinchFrom = [a.x, b.x];
        on.leave();
        on.pinchStart();
      } else if (fingers.size === 1) on.hover(p.x, p.y);
      return;
    }
    if (e.button !== 0) return;
    start = p;
    target.setPointerCapture(e.pointerId);
  };
  const move = (e: PointerEvent) => {
    const p = place(e);
    if (e.pointerType === 'touch') {
      if (!fingers.has(e.pointerId)) return;
      fingers.set(e.pointerId, p);
      if (pinchFrom && fingers.size === 2) {
        const [a, b] = [...fingers.values()] as [typeof p, typeof p];
        on.pinch(pinchFrom[0], pinchFrom[1], a.x, b.x);
      } else if (!pinchFrom) on.hover(p.x, p.y);
      return;
    }
    if (start && !dragging && Math.hypot(p.x - start.x, p.y - start.y) >= DRAG_FROM) {
      dragging = true;
      on.leave();
    }
    if (dragging) on.box(boxTo(p));
    else on.hover(p.x, p.y);
  };
  const up = (e: PointerEvent) => {
    if (e.pointerType === 'touch') {
      const p = fingers.get(e.pointerId);
      fingers.delete(e.pointerId);
      if (pinchFrom) {
        if (fingers.size === 0) pinchFrom = null;
      } else if (p) {
        const near = Math.hypot(p.x - lastTap.x, p.y - lastTap.y) < 30;
        if (near && e.timeStamp - lastTap.time < DOUBLE_TAP_MS) on.reset();
        lastTap = { time: e.timeStamp, ...p };
      }
      return;
    }
    if (dragging && start) {
      const box = boxTo(place(e));
      stop();
      on.zoom(box);
    } else stop();
  };
  const cancel = (e: PointerEvent) => {
    fingers.delete(e.pointerId);
    if (fingers.size === 0) pinchFrom = null;
    stop();
    on.leave();
  };
  const out = (e: PointerEvent) => {
    if (e.pointerType !== 'touch' && !dragging) on.leave();
  };
  const wheel = (e: WheelEvent) => {
    // The wheel scrolls the page; a trackpad pinch arrives as a wheel event with the Ctrl key.
    if (!e.ctrlKey) return;
    e.preventDefault();
    on.wheel(place(e).x, Math.exp(clamp(e.deltaY / 200 + 0.5, 1) - 0.5));
  };
  const reset = () => on.reset();
  const key = (e: KeyboardEvent) => {
    if (e.key === 'Escape') stop();
  };

  target.addEventListener('pointerdown', down);
  target.addEventListener('pointermove', move);
  target.addEventListener('pointerup', up);
  target.addEventListener('pointercancel', cancel);
  target.addEventListener('pointerleave', out);
  target.addEventListener('dblclick', reset);
  target.addEventListener('wheel', wheel, { passive: false });
  window.addEventListener('keydown', key);
  return () => {
    target.removeEventListener('pointerdown', down);
    target.removeEventListener('pointermove', move);
    target.removeEventListener('pointerup', up);
    target.removeEventListener('pointercancel', cancel);
    target.removeEventListener('pointerleave', out);
    target.removeEventListener('dblclick', reset);
    target.removeEventListener('wheel', wheel);
    window.removeEventListener('keydown', key);
  };
}

function clamp(value: number, most: number): number {
  return Math.max(0, Math.min(most, value));
}
