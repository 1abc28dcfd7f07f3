// State of a run in progress: growing series, the present load of the network, and figures.

import { scaleUnit } from '../lib/format';
import type { FigureData, Load, Series, Share } from '../lib/types';

export interface Subject {
  metric: string;
  unit: string;
  /** Layer of a rate or size; empty for other metrics. */
  layer: string;
  subject: string;
}

export interface Begun {
  kind: 'begin';
  run: number;
  cell: number;
  seed: number;
  interval_s: number;
  series: Subject[];
  left_out: number;
}

export type RunEvent =
  | Begun
  | { kind: 'bins'; run: number; from: number; values: (number | null)[][] }
  | { kind: 'end'; run: number };

export interface LiveSeries extends Subject {
  values: (number | null)[];
}

/**
 * The axis starts at zero, so that small differences look small and the axis is stable. Delays between two clocks may
 * be negative.
 */
const FROM_ZERO = { min: 0 };

/** Visible time span of a run in seconds, unless the user shows all of it. */
export const WINDOW_S = 60;

export class LiveRun {
  readonly series: LiveSeries[];
  /** Start of each bin, seconds. */
  readonly x: number[] = [];
  over = false;
  private byMetric = new Map<string, LiveSeries[]>();
  private made = new Map<string, FigureData>();

  constructor(readonly begun: Begun) {
    this.series = begun.series.map((s) => ({ ...s, values: [] }));
    for (const s of this.series) {
      const same = this.byMetric.get(s.metric);
      if (same) same.push(s);
      else this.byMetric.set(s.metric, [s]);
    }
  }

  get now(): number {
    return this.x.length * this.begun.interval_s;
  }

  add(from: number, values: (number | null)[][]): void {
    const count = values[0]?.length ?? 0;
    for (let i = this.x.length; i < from + count; i++) this.x.push(Number((i * this.begun.interval_s).toPrecision(12)));
    values.forEach((own, k) => {
      const target = this.series[k];
      if (!target) return;
      target.values.length = Math.min(target.values.length, from);
      for (const v of own) target.values.push(v);
    });
  }

  of(metric: string): LiveSeries[] {
    return this.byMetric.get(metric) ?? [];
  }

  /** Returns the load of each link by name: that of its busier direction. */
  loads(): Map<string, Load> {
    const loads = new Map<string, Load>();
    const add = (metric: string, put: (load: Load, value: number) => void) => {
      for (const s of this.of(metric)) {
        const name = s.subject.replace(/\.(forward|reverse)$/, '');
        const load = loads.get(name) ?? { utilization: 0, queue: 0 };
        put(load, s.values.at(-1) ?? 0);
        loads.set(name, load);
      }
    };
    add('link.utilization', (load, value) => (load.utilization = Math.max(load.utilization, value)));
    add('link.queue', (load, value) => (load.queue = Math.max(load.queue, value)));
    return loads;
  }

  /** Returns the throughput and share of each VPN. */
  shares(): Map<string, Share> {
    const rates = this.of('vpn.throughput').map((s) => [s.subject, s.values.at(-1) ?? 0] as const);
    const all = rates.reduce((sum, [, rate]) => sum + rate, 0);
    return new Map(rates.map(([name, rate]) => {
      const { factor, unit } = scaleUnit('bit/s', rate);
      return [name, { text: `${rate === 0 ? 0 : (rate * factor).toPrecision(3)} ${unit}`, part: all > 0 ? rate / all : 0 }];
    }));
  }

  /** Returns the figures. A figure that only has more samples is the same object as before. */
  figures(): FigureData[] {
    const of = (metric: string) => this.of(metric);
    const vpns = of('vpn.throughput').length > 0;
    return [
      vpns ? this.figure('throughput', 'Throughput of each VPN', of('vpn.throughput')) : null,
      this.figure('flows', 'Throughput of each flow', of('flow.throughput')),
      this.figure('fairness', 'Fairness', [...of('fairness.inter_vpn'), ...of('fairness.intra_vpn')], { min: 0, max: 1 }),
      this.figure('permitted', 'Rates permitted to the VPNs', of('vpn.permitted')),
      this.figure('windows', 'Windows of the VPNs', of('vpn.window')),
      this.windows(),
      this.figure('delay', 'Delay', [...of('vpn.round_trip'), ...of('flow.delay'), ...of('flow.round_trip')], {}),
      this.figure('queues', 'Queues', [...of('vpn.queue'), ...of('link.queue')].filter((s) => s.values.some((v) => (v ?? 0) >= 0.5))),
    ].filter((f) => f !== null);
  }

  /** Axes, units and names are those of the report's figure of this metric (`study/src/plot.rs`). */
  private figure(name: string, title: string, chosen: LiveSeries[], y: { min?: number; max?: number } = FROM_ZERO): FigureData | null {
    const [first] = chosen;
    if (!first) return null;
    const one = chosen.every((s) => s.metric === first.metric);
    const named = (s: LiveSeries) => (one || !s.subject ? s.subject || s.metric : `${s.subject}, ${s.metric}`);
    return this.kept({
      name, title, kind: 'line',
      x: { label: 'time', unit: 's', min: 0 },
      y: { label: one ? first.metric : title.toLowerCase(), unit: first.unit && one && first.layer ? `${first.unit}, ${first.layer}` : first.unit, ...y },
      shared_x: this.x, series: chosen.map((s): Series => ({ name: named(s), y: s.values })),
    });
  }

  /** Windows of TCP flows, with a mark and the cause at each reduction. */
  private windows(): FigureData | null {
    const flows = this.of('flow.window');
    const figure = this.figure('tcp-windows', 'TCP windows and causes of reductions', flows);
    if (!figure) return null;
    const windows = new Map(flows.map((s) => [s.subject, s.values]));
    const marks = [...this.byMetric].filter(([metric]) => metric.startsWith('flow.cause.')).flatMap(([metric, causes]): Series[] => {
      const points = causes.flatMap((s) => s.values.flatMap((count, bin) => {
        const window = windows.get(s.subject)?.[bin];
        return (count ?? 0) > 0 && window !== null && window !== undefined ? [{ x: this.x[bin]!, y: window }] : [];
      })).sort((a, b) => a.x - b.x);
      const name = metric.slice('flow.cause.'.length).replaceAll('_', '-');
      return points.length === 0 ? [] : [{ name, group: 'reduced by', points: true, x: points.map((p) => p.x), y: points.map((p) => p.y) }];
    });
    if (marks.length === 0) return figure;
    // Marks are few and are created again each time; the figure remains the same object while its series have the same
    // names.
    const whole = this.kept({ ...figure, name: 'tcp-windows-causes', series: [...figure.series, ...marks] });
    whole.series.splice(figure.series.length, marks.length, ...marks);
    return whole;
  }

  private kept(figure: FigureData): FigureData {
    const key = `${figure.name} ${figure.series.map((s) => s.name).join('\n')}`;
    const before = this.made.get(key);
    if (before) return before;
    this.made.set(key, figure);
    return figure;
  }
}

/** All runs of a study with events. */
export class Feed {
  readonly runs = new Map<number, LiveRun>();

  add(event: RunEvent): void {
    if (event.kind === 'begin') {
      for (const [number, run] of this.runs) {
        if (run.begun.cell === event.cell && run.begun.seed === event.seed) this.runs.delete(number);
      }
      this.runs.set(event.run, new LiveRun(event));
    } else if (event.kind === 'bins') this.runs.get(event.run)?.add(event.from, event.values);
    else {
      const run = this.runs.get(event.run);
      if (run) run.over = true;
    }
    // The server keeps the same number of runs.
    while (this.runs.size > 8) {
      const first = [...this.runs].find(([, run]) => run.over) ?? [...this.runs][0]!;
      this.runs.delete(first[0]);
    }
  }

  /** Returns the run to show: the first in progress, otherwise the last one. */
  current(): LiveRun | null {
    const all = [...this.runs.values()];
    return all.find((run) => !run.over) ?? all.at(-1) ?? null;
  }
}
