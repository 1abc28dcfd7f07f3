import { expect, test } from 'vitest';
import { formatNumber, formatShare, formatTick, leadingNumber, scaleUnit } from '../../src/lib/format';
import { sortRows } from '../../src/lib/sort';
import { categoryTicks, linearTicks, logTicks, nineTicks } from '../../src/lib/ticks';

test('numbers as text', () => {
  expect([0, 1, 0.5, 123456, -0.0123456, 12345678, 0.00001234, null, NaN, -Infinity].map((v) => formatNumber(v)))
    .toEqual(['0', '1', '0.5', '123456', '−0.01235', '1.235e7', '1.234e−5', '–', '–', '−∞']);
});

test('ticks have the decimals of their spacing', () => {
  expect([0.5, 0.75, 1].map((v) => formatTick(v, 0.25))).toEqual(['0.5', '0.75', '1.0']);
  expect([-10, 0, 10].map((v) => formatTick(v, 10))).toEqual(['−10', '0', '10']);
  expect([0.9, 0.95].map((v) => formatTick(v, 0.05))).toEqual(['0.90', '0.95']);
});

test('base units get a prefix, others do not', () => {
  expect(scaleUnit('bit/s', 35e6)).toEqual({ factor: 1e-6, unit: 'Mbit/s' });
  expect(scaleUnit('s', 0.02)).toEqual({ factor: 1000, unit: 'ms' });
  expect(scaleUnit('s', 50)).toEqual({ factor: 1, unit: 's' });
  expect(scaleUnit('Mbit/s', 35e6)).toEqual({ factor: 1, unit: 'Mbit/s' });
  expect(scaleUnit(undefined, 5)).toEqual({ factor: 1, unit: '' });
});

test('linear ticks are round, within the range, and about the requested number', () => {
  expect(linearTicks(0, 50, 5)).toEqual({ values: [0, 10, 20, 30, 40, 50], spacing: 10 });
  expect(linearTicks(0.5, 1, 6).values).toEqual([0.5, 0.6, 0.7, 0.8, 0.9, 1]);
  expect(linearTicks(-0.03, 0.031, 3).values).toEqual([-0.02, 0, 0.02]);
  for (const [min, max] of [[1e-9, 3e-9], [5, 5.0001], [-1e12, 7e12]] as const) {
    const { values } = linearTicks(min, max, 6);
    expect(values.length).toBeGreaterThan(2);
    expect(values.length).toBeLessThanOrEqual(9);
    expect(values.every((v) => v >= min - 1e-12 * Math.abs(min) && v <= max * (1 + 1e-12))).toBe(true);
  }
});

test('log ticks', () => {
  expect(logTicks(1, 1000, 4).values).toEqual([1, 10, 100, 1000]);
  expect(logTicks(1, 100, 9).values).toEqual([1, 2, 5, 10, 20, 50, 100]);
  expect(logTicks(1e-9, 1e9, 4).values.length).toBeLessThanOrEqual(5);
  expect(logTicks(20, 60, 5).values).toEqual([20, 30, 40, 50, 60]);
});

test('an axis of nines', () => {
  expect([1, 2, 10, 37, 1000, 100_000].map(formatShare)).toEqual(['0 %', '50 %', '90 %', '97.3 %', '99.9 %', '99.999 %']);
  expect(nineTicks(1, 10_000, 10).values).toEqual([1, 2, 10, 100, 1000, 10_000]);
  expect(nineTicks(1, 1e6, 4).values.length).toBeLessThanOrEqual(4);
});

test('categories are omitted rather than compressed', () => {
  expect(categoryTicks(-0.5, 4.5, 10)).toEqual([0, 1, 2, 3, 4]);
  expect(categoryTicks(-0.5, 99.5, 10)).toEqual([0, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
});

test('sort value of a cell', () => {
  expect(['0.95 ± 0.01', '12 %', '≥ 3', '1,204', '−5', '50 Mbit/s', '1 Gbit/s', '0.1 ms', '97 ± 30 kbit/s', 'n/a', 'pe1', '']
    .map(leadingNumber)).toEqual([0.95, 12, 3, 1204, -5, 50e6, 1e9, 1e-4, 97e3, null, null, null]);
});

test('rows are sorted by value or in natural order, gaps last, stable', () => {
  const rows = [['vpn10', '2'], ['vpn2', '–'], ['vpn1', '10'], ['vpn3', '2']];
  expect(sortRows(rows, 0, 'ascending')).toEqual([2, 1, 3, 0]);
  expect(sortRows(rows, 1, 'ascending')).toEqual([0, 3, 2, 1]);
  expect(sortRows(rows, 1, 'descending')).toEqual([2, 0, 3, 1]);
});
