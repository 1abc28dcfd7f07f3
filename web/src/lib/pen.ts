// Draws lines and bands as strokes of a pen. With more samples than pixels, each column of pixels gets its first,
// lowest, highest and last value, which loses nothing visible.

export interface Pen {
  moveTo(x: number, y: number): void;
  lineTo(x: number, y: number): void;
  closePath(): void;
}

export type Project = (value: number) => number;

export function projection(min: number, max: number, log: boolean, from: number, to: number): Project {
  if (log) {
    const a = Math.log10(min);
    const scale = (to - from) / (Math.log10(max) - a);
    return (v) => (v > 0 ? from + (Math.log10(v) - a) * scale : NaN);
  }
  const scale = (to - from) / (max - min);
  return (v) => from + (v - min) * scale;
}

type Values = ArrayLike<number | null>;

export function polyline(pen: Pen, x: ArrayLike<number>, y: Values, from: number, to: number, px: Project, py: Project, columns: number): void {
  if (to - from > 4 * columns) dense(pen, x, y, from, to, px, py);
  else sparse(pen, x, y, from, to, px, py);
}

function sparse(pen: Pen, x: ArrayLike<number>, y: Values, from: number, to: number, px: Project, py: Project): void {
  let down = false;
  let alone = false;
  let lastX = 0;
  let lastY = 0;
  const lift = () => {
    // A line to itself makes a single sample visible.
    if (down && alone) pen.lineTo(lastX, lastY);
    down = false;
  };
  for (let i = from; i < to; i++) {
    const v = y[i];
    const at = v === null || v === undefined ? NaN : py(v);
    const along = px(x[i]!);
    if (Number.isNaN(at) || Number.isNaN(along)) {
      lift();
      continue;
    }
    if (down) {
      pen.lineTo(along, at);
      alone = false;
    } else {
      pen.moveTo(along, at);
      down = true;
      alone = true;
    }
    lastX = along;
    lastY = at;
  }
  lift();
}

function dense(pen: Pen, x: ArrayLike<number>, y: Values, from: number, to: number, px: Project, py: Project): void {
  let down = false;
  let column = NaN;
  let first = 0, low = 0, high = 0, last = 0;
  const flush = () => {
    if (Number.isNaN(column)) return;
    if (down) pen.lineTo(column, first);
    else pen.moveTo(column, first);
    down = true;
    pen.lineTo(column, low);
    if (high !== low) pen.lineTo(column, high);
    if (last !== high) pen.lineTo(column, last);
    column = NaN;
  };
  for (let i = from; i < to; i++) {
    const v = y[i];
    const at = v === null || v === undefined ? NaN : py(v);
    const along = Math.round(px(x[i]!));
    if (Number.isNaN(at) || Number.isNaN(along)) {
      flush();
      down = false;
      continue;
    }
    if (along === column) {
      if (at < low) low = at;
      if (at > high) high = at;
      last = at;
    } else {
      flush();
      column = along;
      first = low = high = last = at;
    }
  }
  flush();
}

/** Area between two lines, with gaps where a value is missing. */
export function band(pen: Pen, x: ArrayLike<number>, low: Values, high: Values, from: number, to: number, px: Project, py: Project): void {
  let along: number[] = [];
  let lows: number[] = [];
  let highs: number[] = [];
  const flush = () => {
    if (along.length > 1) {
      pen.moveTo(along[0]!, highs[0]!);
      for (let i = 1; i < along.length; i++) pen.lineTo(along[i]!, highs[i]!);
      for (let i = along.length - 1; i >= 0; i--) pen.lineTo(along[i]!, lows[i]!);
      pen.closePath();
    }
    along = [];
    lows = [];
    highs = [];
  };
  for (let i = from; i < to; i++) {
    const l = low[i];
    const h = high[i];
    const bottom = l === null || l === undefined ? NaN : py(l);
    const top = h === null || h === undefined ? NaN : py(h);
    const place = px(x[i]!);
    if (Number.isNaN(bottom) || Number.isNaN(top) || Number.isNaN(place)) {
      flush();
      continue;
    }
    const n = along.length - 1;
    // The y coordinate grows downward: the lower value has the larger coordinate.
    if (n >= 0 && place - along[n]! < 0.5) {
      if (bottom > lows[n]!) lows[n] = bottom;
      if (top < highs[n]!) highs[n] = top;
    } else {
      along.push(place);
      lows.push(bottom);
      highs.push(top);
    }
  }
  flush();
}
