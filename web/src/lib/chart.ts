// Model of a line, bar or box figure: traces, ranges and hit testing. It does not depend on the page. Data arrays are not
// copied unless x is unsorted.

import { lowerBound, nearest, seriesX, window } from './align';
import { formatNumber, formatShare, scaleUnit, withUnit, type Scaled } from './format';
import { looks, type Look } from './palette';
import type { Axis, FigureData, Series } from './types';

export type Range = [number, number];

export interface View {
  /** null: the full range. */
  x: Range | null;
  /** null: the range of the visible data. */
  y: Range | null;
}

export const WHOLE: View = { x: null, y: null };

export interface Trace extends Look {
  index: number;
  name: string;
  group: string | null;
  dashed: boolean;
  points: boolean;
  x: ArrayLike<number>;
  y: ArrayLike<number | null>;
  low: ArrayLike<number | null> | null;
  high: ArrayLike<number | null> | null;
}

export interface Chart {
  figure: FigureData;
  /** x has categories. */
  bars: boolean;
  /** A box per category; the traces are its percentiles. */
  boxes: boolean;
  traces: Trace[];
  categories: string[];
  xLog: boolean;
  /** x is 1 / (1 − p) of a share p. */
  nines: boolean;
  yLog: boolean;
  fullX: Range;
  xUnit: Scaled;
  yUnit: Scaled;
}

export function buildChart(figure: FigureData): Chart {
  const boxes = figure.kind === 'box';
  const bars = boxes || figure.kind === 'bar';
  const looked = looks(figure.series);
  // All parts of a box have one color.
  if (boxes) looked.fill(looked[0]!);
  const positions = bars ? barPositions(figure) : null;
  const traces = figure.series.map((s, index) => trace(figure, s, index, looked[index]!, positions));
  const nines = !bars && figure.x.scale === 'nines';
  const xLog = nines || (!bars && figure.x.scale === 'log');
  const yLog = figure.y.scale === 'log';
  const categories = bars
    ? Array.from(positions!, (i) => figure.categories?.[i] ?? formatNumber(figure.shared_x?.[i] ?? i + 1))
    : [];
  const fullX: Range = bars ? [-0.5, Math.max(1, categories.length) - 0.5] : spanX(traces, figure.x, xLog);
  const [low, high] = extentY(traces, null, false);
  return {
    figure, bars, boxes, traces, categories, xLog, nines, yLog, fullX,
    xUnit: bars ? { factor: 1, unit: figure.x.unit ?? '' } : scaleUnit(figure.x.unit, Math.max(Math.abs(fullX[0]), Math.abs(fullX[1]))),
    yUnit: scaleUnit(figure.y.unit, Math.max(Math.abs(low), Math.abs(high))),
  };
}

function barPositions(figure: FigureData): number[] {
  const count = figure.categories?.length ?? Math.max(0, ...figure.series.map((s) => s.y.length));
  return Array.from({ length: count }, (_, i) => i);
}

function trace(figure: FigureData, s: Series, index: number, look: Look, positions: number[] | null): Trace {
  let x: ArrayLike<number> = positions ?? seriesX(figure, s);
  let y: ArrayLike<number | null> = s.y;
  let low: ArrayLike<number | null> | null = s.low ?? null;
  let high: ArrayLike<number | null> | null = s.high ?? null;
  if (!ascending(x)) {
    const own = x;
    const order = Array.from({ length: own.length }, (_, i) => i).sort((a, b) => own[a]! - own[b]! || a - b);
    const pick = <T>(from: ArrayLike<T>) => order.map((i) => from[i]!);
    x = pick(own);
    y = pick(y);
    low = low && pick(low);
    high = high && pick(high);
  }
  return { index, name: s.name, group: s.group || null, dashed: s.dashed ?? false, points: s.points ?? false, ...look, x, y, low, high };
}

function ascending(x: ArrayLike<number>): boolean {
  for (let i = 1; i < x.length; i++) if (x[i]! < x[i - 1]!) return false;
  return true;
}

function spanX(traces: Trace[], axis: Axis, log: boolean): Range {
  let low = Infinity;
  let high = -Infinity;
  for (const t of traces) {
    if (t.x.length === 0) continue;
    const first = log ? lowerBound(t.x, Number.MIN_VALUE) : 0;
    if (first < t.x.length) low = Math.min(low, t.x[first]!);
    high = Math.max(high, t.x[t.x.length - 1]!);
  }
  // A range that starts just above zero is extended to zero.
  if (!log && low > 0 && low < 0.05 * high) low = 0;
  if (axis.min !== undefined && !(log && axis.min <= 0)) low = axis.min;
  if (axis.max !== undefined && !(log && axis.max <= 0)) high = axis.max;
  return widen([low, high], log);
}

/** Returns a drawable range for any data: finite, not empty, and positive on a log scale. */
export function widen([low, high]: Range, log: boolean): Range {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return log ? [1, 10] : [0, 1];
  if (low > high) [low, high] = [high, low];
  if (log) {
    if (high <= 0) return [1, 10];
    if (low <= 0) low = high / 1000;
    return low === high ? [low / 2, high * 2] : [low, high];
  }
  if (low !== high) return [low, high];
  // Series that are zero so far are drawn at the bottom.
  if (low === 0) return [0, 1];
  const pad = Math.abs(low) * 0.1;
  return [low - pad, high + pad];
}

function extentY(traces: Trace[], x: Range | null, positive: boolean): Range {
  let min = Infinity;
  let max = -Infinity;
  const floor = positive ? Number.MIN_VALUE : -Infinity;
  for (const t of traces) {
    const [from, to] = x ? window(t.x, x[0], x[1]) : [0, t.x.length];
    for (const values of [t.y, t.low, t.high]) {
      if (!values) continue;
      const end = Math.min(to, values.length);
      for (let i = from; i < end; i++) {
        const v = values[i];
        if (v === null || v === undefined || v < floor) continue;
        if (v < min) min = v;
        if (v > max) max = v;
      }
    }
  }
  return [min, max];
}

function meanOnly(t: Trace): Trace {
  return t.low || t.high ? { ...t, low: null, high: null } : t;
}

/** Includes all means, and as much of wide intervals as keeps the means readable. */
function withBands([low, high]: Range, [bandLow, bandHigh]: Range): Range {
  const room = 0.5 * Math.max(high - low, 0.2 * Math.max(Math.abs(low), Math.abs(high)));
  const least = low >= 0 ? Math.max(0, low - room) : low - room;
  return [Math.max(bandLow, least), Math.min(bandHigh, high + room)];
}

/** Returns the y range of the shown traces within an x range. The limits of the axis take precedence over the data. */
export function fitY(chart: Chart, shown: boolean[], x: Range): Range {
  const { y: axis, reference_lines: references = [] } = chart.figure;
  const log = chart.yLog;
  const visible = chart.traces.filter((t) => shown[t.index]);
  let [low, high] = withBands(extentY(visible.map(meanOnly), x, log), extentY(visible, x, log));
  for (const { value } of references) {
    if (log && value <= 0) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (chart.bars && !chart.boxes && !log) {
    low = Math.min(low, 0);
    high = Math.max(high, 0);
  }
  if (Number.isFinite(low) && Number.isFinite(high)) {
    if (log) {
      low /= 1.15;
      high *= 1.15;
    } else {
      const fromZero = low >= 0 && low <= 0.6 * high;
      const pad = (high - (fromZero ? 0 : low)) * 0.06;
      const below = low < 0 || (!fromZero && low > 0);
      low = fromZero ? 0 : below ? low - pad : low;
      high = high > 0 || high < low ? high + pad : high;
    }
  }
  if (axis.min !== undefined && !(log && axis.min <= 0)) low = axis.min;
  if (axis.max !== undefined && !(log && axis.max <= 0)) high = axis.max;
  return widen([low, high], log);
}

/** Limits zooming to a minimum part of the x axis. */
export function clampX(chart: Chart, range: Range): Range | null {
  const [min, max] = chart.fullX;
  let [low, high] = range[0] <= range[1] ? range : [range[1], range[0]];
  if (chart.bars) {
    low = Math.floor(low + 0.5) - 0.5;
    high = Math.ceil(high + 0.5) - 0.5;
  }
  low = Math.max(min, low);
  high = Math.min(max, high);
  if (low <= min && high >= max) return null;
  const least = chart.xLog ? low * 1e-6 : (max - min) * 1e-7;
  return high - low > least ? [low, high] : null;
}

export interface Point {
  trace: Trace;
  sample: number;
  x: number;
  y: number;
}

/** Returns the sample of a trace at position x; -1 if the trace has no value there. */
export function sampleAt(t: Trace, x: number): number {
  const i = nearest(t.x, x);
  if (i < 0) return -1;
  const last = t.x.length - 1;
  const step = last > 0 ? (t.x[last]! - t.x[0]!) / last : 0;
  const outside = x < t.x[0]! ? t.x[0]! - x : x > t.x[last]! ? x - t.x[last]! : 0;
  if (outside > step && last > 0) return -1;
  return i < t.y.length ? i : -1;
}

/** Returns the interpolated value of a line at x. */
export function valueAt(t: Trace, x: number): number | null {
  const right = lowerBound(t.x, x);
  const at = (i: number) => t.y[i] ?? null;
  if (right >= t.x.length) return t.x.length > 0 ? at(t.x.length - 1) : null;
  if (right === 0 || t.x[right] === x) return at(right);
  const a = at(right - 1);
  const b = at(right);
  if (a === null || b === null) return a ?? b;
  const [xa, xb] = [t.x[right - 1]!, t.x[right]!];
  return a + ((b - a) * (x - xa)) / (xb - xa);
}

/** Returns the value of the last visible sample. */
export function lastIn(t: Trace, x: Range): number {
  for (let i = window(t.x, x[0], x[1])[1] - 1; i >= 0; i--) {
    if (t.x[i]! <= x[1] && t.y[i] !== null && t.y[i] !== undefined) return t.x[i]! >= x[0] ? i : -1;
  }
  return -1;
}

export function xText(chart: Chart, x: number): string {
  if (chart.bars) return chart.categories[Math.round(x)] ?? '';
  if (chart.nines) return formatShare(x);
  return withUnit(formatNumber(x * chart.xUnit.factor), chart.xUnit.unit);
}

export function yText(chart: Chart, y: number | null | undefined): string {
  return formatNumber(y === null || y === undefined ? null : y * chart.yUnit.factor);
}

/** Several series may have the same name (throughput of VPN 1 in two cells); the group distinguishes them. */
export function fullName(t: { name: string; group?: string | null }): string {
  return t.group && !t.name.includes(t.group) ? `${t.group}: ${t.name}` : t.name;
}

/** Name below a heading with the group. */
export function shortName(t: { name: string; group?: string | null }): string {
  const short = t.group ? t.name.replace(`, ${t.group}`, '') : t.name;
  return short === t.group || short === '' ? t.name : short;
}

/** Returns a text alternative of a figure. */
export function describe(chart: Chart): string {
  const { figure } = chart;
  const kind = chart.boxes ? 'Box plot' : chart.bars ? 'Bar chart' : 'Line chart';
  const ends = chart.bars
    ? `${chart.categories.length} positions`
    : `${xText(chart, chart.fullX[0])} to ${xText(chart, chart.fullX[1])}`;
  const count = chart.traces.length;
  const parts = [
    `${kind} of ${figure.y.label}${chart.yUnit.unit ? ` in ${chart.yUnit.unit}` : ''} over ${figure.x.label}, ${ends}; ${count} series.`,
  ];
  for (const t of chart.traces.slice(0, 12)) {
    const [low, high] = extentY([meanOnly(t)], null, false);
    const range = Number.isFinite(low) ? `from ${yText(chart, low)} to ${yText(chart, high)}` : 'no values';
    parts.push(`${fullName(t)}: ${range}.`);
  }
  if (count > 12) parts.push(`And ${count - 12} more.`);
  for (const r of figure.reference_lines ?? []) parts.push(`Reference line ${r.label} at ${yText(chart, r.value)}.`);
  return parts.join(' ');
}
