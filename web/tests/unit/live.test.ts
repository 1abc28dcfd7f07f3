import { describe, expect, test } from 'vitest';
import { buildChart } from '../../src/lib/chart';
import { axisTitle } from '../../src/lib/format';
import { Feed, LiveRun, type Begun } from '../../src/app/live';

const begun = (run = 0, cell = 0): Begun => ({
  kind: 'begin', run, cell, seed: 1, interval_s: 0.5, left_out: 0,
  series: [
    { metric: 'vpn.throughput', unit: 'bit/s', layer: 'ip', subject: 'gold' },
    { metric: 'vpn.throughput', unit: 'bit/s', layer: 'ip', subject: 'silver' },
    { metric: 'link.utilization', unit: '', layer: '', subject: 'core.forward' },
    { metric: 'link.utilization', unit: '', layer: '', subject: 'core.reverse' },
    { metric: 'link.queue', unit: 'packets', layer: '', subject: 'core.forward' },
    { metric: 'flow.window', unit: 'packets', layer: '', subject: 'bulk' },
    { metric: 'flow.cause.timeout', unit: '', layer: '', subject: 'bulk' },
  ],
});

describe('live run', () => {
  test('grows, and gives the present load of the network', () => {
    const run = new LiveRun(begun());
    run.add(0, [[1e6, 3e6], [1e6, 1e6], [0.5, 0.9], [0.1, 0.2], [4, 7], [10, 12], [0, 0]]);
    run.add(2, [[6e6], [2e6], [1], [null], [9], [6], [1]]);
    expect(run.x).toEqual([0, 0.5, 1]);
    expect(run.now).toBe(1.5);
    expect(run.loads().get('core')).toEqual({ utilization: 1, queue: 9 });
    expect(run.shares().get('gold')).toEqual({ text: '6.00 Mbit/s', part: 0.75 });
  });

  test('series, axes and units have the names of a report', () => {
    const both = { ...begun(), series: [
      ...begun().series,
      { metric: 'fairness.inter_vpn', unit: '', layer: 'ip', subject: '' },
      { metric: 'fairness.intra_vpn', unit: '', layer: 'payload', subject: '' },
      { metric: 'vpn.round_trip', unit: 's', layer: '', subject: 'gold' },
      { metric: 'flow.round_trip', unit: 's', layer: '', subject: 'gold' },
    ] };
    const run = new LiveRun(both);
    run.add(0, both.series.map(() => [1]));
    const axes = run.figures().map(({ name, x, y, series }) => [name, axisTitle(x), axisTitle(y), series.map((s) => s.name)]);
    expect(axes).toEqual([
      ['throughput', 'time (s)', 'vpn.throughput (bit/s, ip)', ['gold', 'silver']],
      ['fairness', 'time (s)', 'fairness', ['fairness.inter_vpn', 'fairness.intra_vpn']],
      ['tcp-windows-causes', 'time (s)', 'flow.window (packets)', ['bulk', 'timeout']],
      ['delay', 'time (s)', 'delay (s)', ['gold, vpn.round_trip', 'gold, flow.round_trip']],
      ['queues', 'time (s)', 'link.queue (packets)', ['core.forward']],
    ]);
    expect(buildChart(run.figures()[0]!).yUnit).toEqual({ factor: 1, unit: 'bit/s, ip' });
    run.add(1, both.series.map(() => [2e6]));
    expect(buildChart(run.figures()[0]!).yUnit).toEqual({ factor: 1e-6, unit: 'Mbit/s, ip' });
  });

  test('a figure with more samples is the same object; a new cause creates another', () => {
    const run = new LiveRun(begun());
    run.add(0, [[1], [1], [1], [1], [1], [10], [0]]);
    const before = run.figures();
    expect(before.map((f) => f.name)).toEqual(['throughput', 'windows', 'queues'].map((n) => (n === 'windows' ? 'tcp-windows' : n)));
    run.add(1, [[2], [2], [1], [1], [1], [12], [0]]);
    const grown = run.figures();
    grown.forEach((f, i) => expect(f).toBe(before[i]));
    expect(grown[0]!.series[0]!.y).toEqual([1, 2]);
    run.add(2, [[2], [2], [1], [1], [1], [6], [1]]);
    const windows = run.figures().find((f) => f.title.startsWith('TCP windows'))!;
    expect(windows.series.at(-1)).toMatchObject({ name: 'timeout', points: true, x: [1], y: [6] });
    run.add(3, [[2], [2], [1], [1], [1], [3], [2]]);
    expect(run.figures()).toContain(windows);
    expect(windows.series.at(-1)!.x).toEqual([1, 1.5]);
  });
});

describe('live study', () => {
  test('a restarted run replaces its previous one', () => {
    const feed = new Feed();
    feed.add(begun(0));
    feed.add({ kind: 'bins', run: 0, from: 0, values: begun().series.map(() => [1]) });
    feed.add(begun(3));
    expect([...feed.runs.keys()]).toEqual([3]);
    expect(feed.current()!.x).toEqual([]);
    // Events of an unknown run are dropped.
    feed.add({ kind: 'bins', run: 0, from: 1, values: begun().series.map(() => [1]) });
    expect(feed.runs.size).toBe(1);
  });

  test('the first run in progress is shown, and old runs are dropped', () => {
    const feed = new Feed();
    for (let k = 0; k < 20; k++) {
      feed.add(begun(k, k));
      if (k !== 5) feed.add({ kind: 'end', run: k });
    }
    expect(feed.runs.size).toBe(8);
    expect(feed.current()!.begun.run).toBe(5);
  });
});
