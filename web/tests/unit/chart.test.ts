import { describe, expect, test } from 'vitest';
import { buildChart, clampX, describe as words, fitY, fullName, lastIn, sampleAt, shortName, valueAt } from '../../src/lib/chart';
import { band, polyline, projection, type Pen } from '../../src/lib/pen';
import type { FigureData } from '../../src/lib/types';

const figure = (part: Partial<FigureData>): FigureData => ({
  name: 'f', title: 'F', kind: 'line', x: { label: 'Time', unit: 's' }, y: { label: 'Rate', unit: 'bit/s' }, series: [], ...part,
});

describe('a chart from its data', () => {
  test('arrays are not copied', () => {
    const x = [0, 1, 2];
    const y = [1, 2, 3];
    const chart = buildChart(figure({ shared_x: x, series: [{ name: 'a', y }] }));
    expect(chart.traces[0]!.x).toBe(x);
    expect(chart.traces[0]!.y).toBe(y);
  });

  test('unsorted x is sorted with its values', () => {
    const [t] = buildChart(figure({ series: [{ name: 'a', x: [2, 0, 1], y: [20, 0, 10], low: [19, -1, 9] }] })).traces;
    expect([t!.x, t!.y, t!.low]).toEqual([[0, 1, 2], [0, 10, 20], [-1, 9, 19]]);
  });

  test('y includes zero unless the values are far from it', () => {
    const fit = (y: number[], axis = {}) => {
      const chart = buildChart(figure({ shared_x: y.map((_, i) => i), y: { label: 'y', ...axis }, series: [{ name: 'a', y }] }));
      return fitY(chart, [true], chart.fullX);
    };
    expect(fit([1, 10])).toEqual([0, 10.6]);
    const [low, high] = fit([9, 10]);
    expect(low).toBeGreaterThan(8);
    expect(high).toBeGreaterThan(10);
    expect(fit([1, 10], { min: 0.5, max: 1 })).toEqual([0.5, 1]);
    expect(fit([5, 5])[0]).toBeLessThan(fit([5, 5])[1]);
    expect(fit([0, 0])).toEqual([0, 1]);
  });

  test('y follows the visible x range and series', () => {
    const chart = buildChart(figure({ shared_x: [0, 1, 2, 3], series: [{ name: 'a', y: [1, 1, 100, 100] }, { name: 'b', y: [500, 500, 500, 500] }] }));
    expect(fitY(chart, [true, true], [0, 3])[1]).toBeGreaterThan(500);
    expect(fitY(chart, [true, false], [0, 3])[1]).toBeCloseTo(106);
    expect(fitY(chart, [true, false], [0, 0.5])[1]).toBeLessThan(2);
  });

  test('wide intervals do not compress the means', () => {
    const chart = buildChart(figure({ shared_x: [0, 1], series: [{ name: 'a', y: [10, 20], low: [-500, -500], high: [900, 900] }] }));
    const [low, high] = fitY(chart, [true], chart.fullX);
    expect(low).toBe(0);
    expect(high).toBeLessThan(30);
  });

  test('log axes omit values without a logarithm', () => {
    const chart = buildChart(figure({ x: { label: 'n', scale: 'log' }, y: { label: 'y', scale: 'log' }, shared_x: [0, 1, 10], series: [{ name: 'a', y: [0, 1, 100] }] }));
    expect(chart.fullX).toEqual([1, 10]);
    const [low, high] = fitY(chart, [true], chart.fullX);
    expect(low).toBeGreaterThan(0.5);
    expect(high).toBeGreaterThan(100);
  });

  test('no data at all', () => {
    const chart = buildChart(figure({ series: [] }));
    expect(chart.fullX).toEqual([0, 1]);
    expect(fitY(chart, [], chart.fullX)).toEqual([0, 1]);
    expect(words(chart)).toContain('0 series');
  });

  test('bars are at integer positions, and zoom snaps to them', () => {
    const chart = buildChart(figure({ kind: 'bar', categories: ['a', 'b', 'c'], series: [{ name: 's', y: [1, 2, 3] }] }));
    expect(chart.fullX).toEqual([-0.5, 2.5]);
    expect(clampX(chart, [0.7, 1.2])).toEqual([0.5, 1.5]);
    expect(clampX(chart, [-3, 9])).toBeNull();
  });

  test('the range of boxes does not begin at zero, and their parts have one color', () => {
    const names = ['5 %', '25 %', 'median', '75 %', '95 %'];
    const series = names.map((name, i) => ({ name, y: [100 + i, null] }));
    const chart = buildChart(figure({ kind: 'box', categories: ['a', 'b'], series }));
    expect(chart.fullX).toEqual([-0.5, 1.5]);
    const [low, high] = fitY(chart, series.map(() => true), chart.fullX);
    expect(low).toBeGreaterThan(99);
    expect(high).toBeLessThan(105);
    expect(new Set(chart.traces.map((t) => t.slot)).size).toBe(1);
    expect(words(chart)).toContain('Box plot');
  });
});

test('a group is named once', () => {
  expect(fullName({ name: 'vpn1', group: 'a = 1' })).toBe('a = 1: vpn1');
  expect(fullName({ name: 'vpn1, a = 1', group: 'a = 1' })).toBe('vpn1, a = 1');
  expect(shortName({ name: 'vpn1, a = 1', group: 'a = 1' })).toBe('vpn1');
  expect(shortName({ name: 'a = 1', group: 'a = 1' })).toBe('a = 1');
});

test('hit testing', () => {
  const [t] = buildChart(figure({ series: [{ name: 'a', x: [0, 10, 20], y: [0, null, 20] }] })).traces;
  expect([-3, 4, 6, 24, 40].map((x) => sampleAt(t!, x))).toEqual([0, 0, 1, 2, -1]);
  expect(valueAt(t!, 15)).toBe(20);
  expect(lastIn(t!, [0, 12])).toBe(0);
  expect(lastIn(t!, [0, 30])).toBe(2);
});

class Recorder implements Pen {
  strokes: [number, number][][] = [];
  closed = 0;
  moveTo(x: number, y: number) {
    this.strokes.push([[x, y]]);
  }
  lineTo(x: number, y: number) {
    this.strokes.at(-1)!.push([x, y]);
  }
  closePath() {
    this.closed++;
  }
}
const same = (v: number) => v;

describe('the pen', () => {
  test('lifts at gaps, and a single sample is visible', () => {
    const pen = new Recorder();
    polyline(pen, [0, 1, 2, 3, 4], [5, 6, null, 7, null], 0, 5, same, same, 100);
    expect(pen.strokes).toEqual([[[0, 5], [1, 6]], [[3, 7], [3, 7]]]);
  });

  test('crowded samples keep every peak', () => {
    const n = 100_000;
    const x = Array.from({ length: n }, (_, i) => (i * 100) / n);
    const y = x.map((_, i) => (i === 77_777 ? 999 : i === 33_333 ? -999 : Math.sin(i)));
    const pen = new Recorder();
    polyline(pen, x, y, 0, n, same, same, 100);
    const points = pen.strokes.flat();
    expect(points.length).toBeLessThan(500);
    expect(points.some(([at, v]) => at === 78 && v === 999)).toBe(true);
    expect(points.some(([at, v]) => at === 33 && v === -999)).toBe(true);
  });

  test('a band is closed around each range of samples', () => {
    const pen = new Recorder();
    band(pen, [0, 1, 2, 3, 4], [1, 1, null, 2, 2], [3, 3, 3, 4, 4], 0, 5, same, (v) => -v);
    expect(pen.closed).toBe(2);
    expect(pen.strokes[0]).toEqual([[0, -3], [1, -3], [1, -1], [0, -1]]);
  });

  test('projections', () => {
    expect(projection(0, 10, false, 0, 100)(5)).toBe(50);
    expect(projection(1, 100, true, 0, 100)(10)).toBeCloseTo(50);
    expect(projection(1, 100, true, 0, 100)(0)).toBeNaN();
  });
});
