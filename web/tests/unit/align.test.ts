import { describe, expect, test } from 'vitest';
import { align, lowerBound, nearest, window } from '../../src/lib/align';

describe('align', () => {
  test('equal x arrays are used in place', () => {
    const x = [0, 1, 2];
    const joined = align([x, [0, 1, 2]]);
    expect(joined.x).toBe(x);
    expect(joined.rows).toEqual([null, null]);
  });

  test('different x arrays are joined in order, without repeats', () => {
    const joined = align([[0, 2, 4], [1, 2, 5]]);
    expect(Array.from(joined.x)).toEqual([0, 1, 2, 4, 5]);
    expect(joined.rows.map((r) => [...r!])).toEqual([[0, -1, 1, 2, -1], [-1, 0, 1, -1, 2]]);
  });

  test('the join holds every sample of every series once', () => {
    const all = [3, 7, 11].map((step) => Array.from({ length: 40 }, (_, i) => i * step));
    const joined = align(all);
    all.forEach((x, k) => {
      const at = [...joined.rows[k]!].flatMap((row, i) => (row < 0 ? [] : [[row, joined.x[i]]]));
      expect(at).toEqual(x.map((v, i) => [i, v]));
    });
  });

  test('no series, or an empty one', () => {
    expect(align([])).toEqual({ x: [], rows: [] });
    const joined = align([[], [1]]);
    expect(Array.from(joined.x)).toEqual([1]);
    expect([...joined.rows[0]!]).toEqual([-1]);
  });
});

test('lowerBound and nearest', () => {
  const x = [0, 10, 20];
  expect([-1, 0, 1, 10, 20, 21].map((v) => lowerBound(x, v))).toEqual([0, 0, 1, 1, 2, 3]);
  expect([-5, 4, 5, 6, 99].map((v) => nearest(x, v))).toEqual([0, 0, 0, 1, 2]);
  expect(nearest([], 1)).toBe(-1);
});

test('a window includes one sample on either side', () => {
  const x = [0, 1, 2, 3, 4, 5];
  expect(window(x, 2, 3)).toEqual([1, 5]);
  expect(window(x, -1, 9)).toEqual([0, 6]);
  expect(window(x, 2.2, 2.4)).toEqual([2, 4]);
});
