// Line, bar or box figure on canvas. uPlot manages scales, axes and the canvas. The marks are drawn here from the original
// arrays, so series with different x need no join, and a million samples no copy.

import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { nearest, window as sampleWindow } from './align';
import { fitY, sampleAt, valueAt, type Chart, type Point, type Range, type Trace, type View } from './chart';
import { axisTitle, formatShare, formatTick } from './format';
import { PAPER, seriesColor, seriesDash, seriesMarker, withAlpha, type Marker, type Mode } from './palette';
import { band, polyline, projection, type Project } from './pen';
import { categoryTicks, linearTicks, logTicks, nineTicks } from './ticks';

export interface PlotState {
  view: View;
  shown: boolean[];
  highlight: number | null;
  mode: Mode;
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif';
const MARKED = 48;
const REACH = 48;
const MOST_BANDS = 8;

export class Plot {
  readonly uplot: uPlot;
  private x: Range;
  private y: Range;
  private paths = new Map<string, Path2D>();
  private pathsFor = '';

  /** `zoom` scales fonts and lines, for print resolution on a low-resolution screen. */
  constructor(host: HTMLElement, private chart: Chart, private state: PlotState, width: number, height: number, private readonly zoom = 1) {
    [this.x, this.y] = this.ranges();
    this.uplot = new uPlot(this.options(width, height), [this.x, [0, 0]], host);
  }

  /** The new chart must be of the same figure, possibly with more samples. */
  update(state: PlotState, chart = this.chart): void {
    this.state = state;
    if (chart !== this.chart) {
      this.chart = chart;
      this.pathsFor = '';
    }
    const [x, y] = this.ranges();
    const moved = x[0] !== this.x[0] || x[1] !== this.x[1] || y[0] !== this.y[0] || y[1] !== this.y[1];
    [this.x, this.y] = [x, y];
    if (moved) {
      this.uplot.batch(() => {
        this.uplot.setScale('x', { min: x[0], max: x[1] });
        this.uplot.setScale('y', { min: y[0], max: y[1] });
      });
    } else this.uplot.redraw(false, false);
  }

  resize(width: number, height: number): void {
    this.uplot.setSize({ width, height });
  }

  destroy(): void {
    this.uplot.destroy();
  }

  get rangeX(): Range {
    return this.x;
  }

  get rangeY(): Range {
    return this.y;
  }

  valueX(pixel: number): number {
    return this.uplot.posToVal(pixel, 'x');
  }

  valueY(pixel: number): number {
    return this.uplot.posToVal(pixel, 'y');
  }

  pixelX(value: number): number {
    return this.uplot.valToPos(value, 'x');
  }

  pixelY(value: number): number {
    return this.uplot.valToPos(value, 'y');
  }

  /** Returns the visible sample nearest to a position, if one is close enough. */
  hit(left: number, top: number): Point | null {
    const x = this.valueX(left);
    const shown = this.chart.traces.filter((t) => this.state.shown[t.index]);
    let best: { t: Trace; distance: number; sample: number } | null = null;
    for (const t of shown) {
      const sample = this.chart.bars ? nearest(t.x, x) : sampleAt(t, x);
      if (sample < 0) continue;
      const own = t.y[sample];
      if (own === null || own === undefined) continue;
      let distance: number;
      if (this.chart.bars) {
        const [from, to] = this.barSpan(shown.indexOf(t), shown.length, t.x[sample]!);
        distance = x < from ? this.pixelX(from) - left : x > to ? left - this.pixelX(to) : 0;
        if (this.chart.boxes) distance = Math.hypot(distance, this.pixelY(own) - top);
      } else {
        const passing = t.points ? own : valueAt(t, x) ?? own;
        distance = Math.min(
          Math.abs(this.pixelY(passing) - top),
          Math.hypot(this.pixelX(t.x[sample]!) - left, this.pixelY(own) - top),
        );
      }
      if (distance < REACH && (!best || distance < best.distance)) best = { t, distance, sample };
    }
    return best && { trace: best.t, sample: best.sample, x: best.t.x[best.sample]!, y: best.t.y[best.sample]! };
  }

  /** Returns the position of a sample's mark: for a bar, the center of its end. */
  anchor(p: Point): { left: number; top: number } {
    let x = p.x;
    if (this.chart.bars) {
      const shown = this.chart.traces.filter((t) => this.state.shown[t.index]);
      const [from, to] = this.barSpan(shown.indexOf(p.trace), shown.length, p.x);
      x = (from + to) / 2;
    }
    return { left: this.pixelX(x), top: this.pixelY(p.y) };
  }

  private ranges(): [Range, Range] {
    const x = this.state.view.x ?? this.chart.fullX;
    return [x, this.state.view.y ?? fitY(this.chart, this.state.shown, x)];
  }

  private options(width: number, height: number): uPlot.Options {
    const { chart, zoom } = this;
    const paper = () => PAPER[this.state.mode];
    const axis = (font: number): uPlot.Axis => ({
      stroke: () => paper().muted,
      font: `${font * zoom}px ${FONT}`,
      labelFont: `${font * zoom}px ${FONT}`,
      labelSize: 20 * zoom,
      labelGap: 2 * zoom,
      gap: 5 * zoom,
      space: 8,
      filter: (_, splits) => splits,
      grid: { stroke: () => paper().rule, width: zoom },
      ticks: { stroke: () => paper().rule, width: zoom, size: 5 * zoom },
    });
    const narrow = width < 480 * zoom;
    const font = narrow ? 11 : 12;
    const log = (is: boolean): uPlot.Scale => (is ? { distr: 3, log: 10 } : { distr: 1 });
    return {
      width, height,
      pxAlign: 1,
      padding: [10 * zoom, 14 * zoom, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: {
        x: { time: false, auto: false, range: () => this.x, ...log(chart.xLog) },
        y: { auto: false, range: () => this.y, ...log(chart.yLog) },
      },
      axes: [this.xAxis(axis(font), font), this.yAxis(axis(font), font)],
      series: [{}, { paths: () => null, points: { show: false } }],
      hooks: {
        drawAxes: [() => this.drawBelow()],
        draw: [() => this.drawMarks()],
      },
    };
  }

  private xAxis(axis: uPlot.Axis, font: number): uPlot.Axis {
    const { chart, zoom } = this;
    const room = (u: uPlot) => u.bbox.width / uPlot.pxRatio / zoom;
    axis.label = axisTitle(chart.figure.x, chart.xUnit.unit);
    if (!chart.bars) {
      let spacing = 0;
      const { factor } = chart.xUnit;
      axis.splits = (u, _, min, max) => {
        const count = room(u) / (chart.xLog ? 60 : 80);
        const ticks = chart.nines ? nineTicks(min, max, count) : (chart.xLog ? logTicks : linearTicks)(min * factor, max * factor, count);
        spacing = ticks.spacing;
        return ticks.values.map((v) => v / factor);
      };
      axis.values = (_, splits) => splits.map((v) => chart.nines ? formatShare(v) : formatTick(Number((v * factor).toPrecision(14)), spacing || Math.abs(v * factor)));
      axis.size = 27 * zoom;
      return axis;
    }
    const text = (i: number) => shorten(chart.categories[i] ?? '', 16);
    const longest = (splits: number[]) => Math.max(1, ...splits.map((i) => text(i).length)) * font * 0.56;
    const tilted = (u: uPlot, splits: number[]) => longest(splits) + 8 > room(u) / Math.max(1, splits.length);
    let current: number[] = [];
    axis.grid = { show: false };
    axis.splits = (u, _, min, max) => (current = categoryTicks(min, max, room(u) / (font * 1.5)));
    axis.values = (_, splits) => splits.map(text);
    axis.rotate = (u) => (tilted(u, current) ? 40 : 0);
    axis.size = (u) => (tilted(u, current) ? 18 + longest(current) * 0.66 : 27) * zoom;
    return axis;
  }

  private yAxis(axis: uPlot.Axis, font: number): uPlot.Axis {
    const { chart, zoom } = this;
    const { factor } = chart.yUnit;
    let spacing = 0;
    axis.label = axisTitle(chart.figure.y, chart.yUnit.unit);
    axis.splits = (u, _, min, max) => {
      const count = Math.max(2, u.bbox.height / uPlot.pxRatio / zoom / 46);
      const ticks = (chart.yLog ? logTicks : linearTicks)(min * factor, max * factor, count);
      spacing = ticks.spacing;
      return ticks.values.map((v) => v / factor);
    };
    axis.values = (_, splits) => splits.map((v) => formatTick(Number((v * factor).toPrecision(14)), spacing || Math.abs(v * factor)));
    axis.size = (_, values) => (14 + Math.max(1, ...(values ?? []).map((v) => String(v).length)) * font * 0.58) * zoom;
    return axis;
  }

  private projections(): { px: Project; py: Project; box: uPlot.BBox } {
    const box = this.uplot.bbox;
    return {
      px: projection(this.x[0], this.x[1], this.chart.xLog, box.left, box.left + box.width),
      py: projection(this.y[0], this.y[1], this.chart.yLog, box.top + box.height, box.top),
      box,
    };
  }

  private path(key: string, build: (pen: Path2D) => void): Path2D {
    const b = this.uplot.bbox;
    const place = [this.x, this.y, b.left, b.top, b.width, b.height].join();
    if (place !== this.pathsFor) {
      this.paths.clear();
      this.pathsFor = place;
    }
    let path = this.paths.get(key);
    if (!path) {
      path = new Path2D();
      build(path);
      this.paths.set(key, path);
    }
    return path;
  }

  private clipped(draw: (ctx: CanvasRenderingContext2D) => void, margin = 0): void {
    const { ctx, bbox } = this.uplot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - margin, bbox.top - margin, bbox.width + 2 * margin, bbox.height + 2 * margin);
    ctx.clip();
    draw(ctx);
    ctx.restore();
  }

  private inOrder(): Trace[] {
    const { shown, highlight } = this.state;
    const visible = this.chart.traces.filter((t) => shown[t.index]);
    return highlight === null ? visible : [...visible.filter((t) => t.index !== highlight), ...visible.filter((t) => t.index === highlight)];
  }

  private alpha(t: Trace): number {
    const { highlight, shown } = this.state;
    return highlight === null || highlight === t.index || !shown[highlight] ? 1 : 0.28;
  }

  private drawBelow(): void {
    const { px, py } = this.projections();
    if (!this.chart.bars) {
      this.clipped((ctx) => {
        const banded = this.inOrder().filter((t) => t.low && t.high);
        for (const t of banded) {
          // More bands would hide each other.
          if (banded.length > MOST_BANDS && t.index !== this.state.highlight) continue;
          const [from, to] = sampleWindow(t.x, this.x[0], this.x[1]);
          ctx.fillStyle = withAlpha(seriesColor(this.state.mode, t.slot), 0.17 * this.alpha(t));
          ctx.fill(this.path(`band ${t.index}`, (pen) => band(pen, t.x, t.low!, t.high!, from, to, px, py)));
        }
      });
    }
  }

  private drawMarks(): void {
    if (this.chart.boxes) this.drawBoxes();
    else if (this.chart.bars) this.drawBars();
    else this.drawLines();
    this.drawReferences();
  }

  private drawLines(): void {
    const { px, py, box } = this.projections();
    const unit = uPlot.pxRatio * this.zoom;
    const visible = this.inOrder();
    this.clipped((ctx) => {
      for (const t of visible) {
        if (t.points) continue;
        const [from, to] = sampleWindow(t.x, this.x[0], this.x[1]);
        // Round joins are slow and invisible on lines with many samples per pixel.
        const crowded = to - from > box.width;
        ctx.lineJoin = crowded ? 'bevel' : 'round';
        const dash = crowded && !t.dashed ? [] : seriesDash(t.pattern, t.dashed);
        ctx.globalAlpha = this.alpha(t);
        ctx.strokeStyle = seriesColor(this.state.mode, t.slot);
        // Without a graphics processor, a line of one pixel is drawn much faster than a wider one.
        ctx.lineWidth = (t.index === this.state.highlight ? 2.6 : visible.length > 24 ? 1 : 1.7) * unit;
        ctx.lineCap = dash.length > 0 || crowded ? 'butt' : 'round';
        ctx.setLineDash(dash.map((d) => d * unit));
        ctx.stroke(this.path(`line ${t.index}`, (pen) => polyline(pen, t.x, t.y, from, to, px, py, box.width)));
      }
    }, unit);
    this.clipped((ctx) => {
      for (const t of visible) {
        const [from, to] = sampleWindow(t.x, this.x[0], this.x[1]);
        if (to - from > MARKED && !t.points) continue;
        ctx.globalAlpha = this.alpha(t);
        ctx.fillStyle = seriesColor(this.state.mode, t.slot);
        ctx.strokeStyle = PAPER[this.state.mode].paper;
        ctx.lineWidth = unit;
        const path = this.path(`marks ${t.index}`, (pen) => {
          for (let i = from; i < to; i++) {
            const y = t.y[i];
            if (y !== null && y !== undefined) mark(pen, seriesMarker(t), px(t.x[i]!), py(y), 3.4 * unit);
          }
        });
        ctx.stroke(path);
        ctx.fill(path);
      }
    }, 5 * unit);
  }

  private barSpan(nth: number, of: number, position: number): Range {
    if (this.chart.boxes) [nth, of] = [0, 1];
    const width = 0.78 / Math.max(1, of);
    const from = position - 0.39 + nth * width;
    return [from + width * 0.06, from + width * 0.94];
  }

  private drawBoxes(): void {
    const { px, py } = this.projections();
    const unit = uPlot.pxRatio * this.zoom;
    const { mode, shown } = this.state;
    const ends = this.chart.traces;
    const median = ends[2];
    if (ends.length !== 5 || !median) return;
    const at = (values: ArrayLike<number | null> | null, i: number) => {
      const value = values?.[i];
      return value === null || value === undefined ? NaN : py(value);
    };
    this.clipped((ctx) => {
      for (let i = 0; i < median.x.length; i++) {
        const [from, to] = this.barSpan(0, 1, median.x[i]!);
        const [left, right] = [px(from), px(to)];
        const middle = (left + right) / 2;
        const half = Math.min((right - left) / 2, 44 * unit);
        const [low, lower, , upper, high] = ends.map((t) => (shown[t.index] ? at(t.y, i) : NaN)) as [number, number, number, number, number];
        const color = seriesColor(mode, median.slot);
        ctx.strokeStyle = PAPER[mode].ink;
        ctx.lineWidth = 1.2 * unit;
        ctx.beginPath();
        for (const [end, edge] of [[low, lower], [high, upper]] as const) {
          if (Number.isNaN(end) || Number.isNaN(edge)) continue;
          ctx.moveTo(middle, edge);
          ctx.lineTo(middle, end);
          ctx.moveTo(middle - half / 4, end);
          ctx.lineTo(middle + half / 4, end);
        }
        ctx.stroke();
        ctx.strokeStyle = color;
        if (!Number.isNaN(lower) && !Number.isNaN(upper)) {
          ctx.fillStyle = withAlpha(color, 0.25);
          ctx.fillRect(middle - half, upper, 2 * half, lower - upper);
          ctx.strokeRect(middle - half, upper, 2 * half, lower - upper);
        }
        if (!shown[median.index]) continue;
        const [bottom, top] = [at(median.low, i), at(median.high, i)];
        if (!Number.isNaN(bottom) && !Number.isNaN(top)) {
          ctx.fillStyle = withAlpha(color, 0.45);
          ctx.fillRect(middle - 0.4 * half, top, 0.8 * half, bottom - top);
        }
        const value = at(median.y, i);
        if (Number.isNaN(value)) continue;
        ctx.lineWidth = 2.4 * unit;
        ctx.beginPath();
        ctx.moveTo(middle - half, value);
        ctx.lineTo(middle + half, value);
        ctx.stroke();
      }
    });
  }

  private drawBars(): void {
    const { px, py, box } = this.projections();
    const unit = uPlot.pxRatio * this.zoom;
    const { mode, shown } = this.state;
    const visible = this.chart.traces.filter((t) => shown[t.index]);
    const floor = this.chart.yLog ? box.top + box.height : py(0);
    this.clipped((ctx) => {
      visible.forEach((t, nth) => {
        ctx.globalAlpha = this.alpha(t);
        const color = seriesColor(mode, t.slot);
        ctx.fillStyle = t.dashed ? withAlpha(color, 0.35) : color;
        ctx.strokeStyle = color;
        ctx.lineWidth = unit;
        for (let i = 0; i < t.x.length; i++) {
          const y = t.y[i];
          if (y === null || y === undefined || Number.isNaN(py(y))) continue;
          const [from, to] = this.barSpan(nth, visible.length, t.x[i]!);
          const [left, right] = [px(from), px(to)];
          ctx.fillRect(left, Math.min(py(y), floor), right - left, Math.abs(floor - py(y)));
          if (t.dashed) ctx.strokeRect(left, Math.min(py(y), floor), right - left, Math.abs(floor - py(y)));
          const low = t.low?.[i];
          const high = t.high?.[i];
          if (low === null || low === undefined || high === null || high === undefined) continue;
          const middle = (left + right) / 2;
          const cap = Math.min(4 * unit, (right - left) / 3);
          ctx.save();
          ctx.strokeStyle = PAPER[mode].ink;
          ctx.lineWidth = 1.2 * unit;
          ctx.beginPath();
          ctx.moveTo(middle - cap, py(high));
          ctx.lineTo(middle + cap, py(high));
          ctx.moveTo(middle, py(high));
          ctx.lineTo(middle, py(low));
          ctx.moveTo(middle - cap, py(low));
          ctx.lineTo(middle + cap, py(low));
          ctx.stroke();
          ctx.restore();
        }
      });
      if (!this.chart.yLog) {
        ctx.globalAlpha = 1;
        ctx.strokeStyle = PAPER[mode].muted;
        ctx.lineWidth = unit;
        ctx.beginPath();
        ctx.moveTo(box.left, floor);
        ctx.lineTo(box.left + box.width, floor);
        ctx.stroke();
      }
    });
  }

  private drawReferences(): void {
    const references = this.chart.figure.reference_lines ?? [];
    if (references.length === 0) return;
    const { py, box } = this.projections();
    const unit = uPlot.pxRatio * this.zoom;
    const { reference, paper } = PAPER[this.state.mode];
    this.clipped((ctx) => {
      ctx.strokeStyle = reference;
      ctx.lineWidth = 1.2 * unit;
      ctx.setLineDash([2 * unit, 3 * unit]);
      ctx.font = `${11 * unit}px ${FONT}`;
      ctx.textAlign = 'right';
      for (const { value, label } of references) {
        const at = py(value);
        if (Number.isNaN(at) || at < box.top - unit || at > box.top + box.height + unit) continue;
        ctx.beginPath();
        ctx.moveTo(box.left, at);
        ctx.lineTo(box.left + box.width, at);
        ctx.stroke();
        // Above the line, unless it would leave the plot.
        const above = at - box.top > 18 * unit;
        ctx.textBaseline = above ? 'bottom' : 'top';
        ctx.save();
        const right = box.left + box.width - 6 * unit;
        const line = at + (above ? -4 : 5) * unit;
        const width = ctx.measureText(label).width;
        ctx.fillStyle = withAlpha(paper, 0.85);
        ctx.fillRect(right - width - 3 * unit, at + (above ? -17 : 3) * unit, width + 6 * unit, 14 * unit);
        ctx.fillStyle = reference;
        ctx.fillText(label, right, line);
        ctx.restore();
      }
    });
  }
}

function mark(pen: Path2D, kind: Marker, x: number, y: number, r: number): void {
  if (kind === 'circle') {
    pen.moveTo(x + r, y);
    pen.arc(x, y, r, 0, 2 * Math.PI);
    return;
  }
  const corners: Record<Exclude<Marker, 'circle'>, [number, number][]> = {
    square: [[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]],
    diamond: [[0, -1.25], [1.25, 0], [0, 1.25], [-1.25, 0]],
    triangle: [[0, -1.2], [1.15, 0.85], [-1.15, 0.85]],
    down: [[0, 1.2], [1.15, -0.85], [-1.15, -0.85]],
  };
  corners[kind].forEach(([dx, dy], i) => (i === 0 ? pen.moveTo(x + dx * r, y + dy * r) : pen.lineTo(x + dx * r, y + dy * r)));
  pen.closePath();
}

function shorten(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}
