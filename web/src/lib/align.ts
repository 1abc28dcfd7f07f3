// Aligns series on a common x, for CSV, for the table of a figure, and for the values at the cursor.

import type { FigureData, Series } from './types';

export interface Aligned {
  x: ArrayLike<number>;
  /** Per series: index of its sample at x[row], or -1. `null` stands for the identity. */
  rows: (Int32Array | null)[];
}

export function seriesX(figure: FigureData, series: Series): number[] {
  return series.x ?? figure.shared_x ?? [];
}

export function sameX(a: ArrayLike<number>, b: ArrayLike<number>): boolean {
  if (a === b) return true;
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** Merges ascending x arrays. Equal arrays are used without a copy. */
export function align(all: ArrayLike<number>[]): Aligned {
  const first = all[0] ?? [];
  if (all.every((x) => sameX(x, first))) return { x: first, rows: all.map(() => null) };
  let total = 0;
  for (const x of all) total += x.length;
  const merged = new Float64Array(total);
  let at = 0;
  for (const x of all) {
    merged.set(x, at);
    at += x.length;
  }
  merged.sort();
  let count = 0;
  for (let i = 0; i < total; i++) {
    if (count === 0 || merged[i] !== merged[count - 1]) merged[count++] = merged[i]!;
  }
  const x = merged.subarray(0, count);
  const rows = all.map((own) => {
    const row = new Int32Array(count).fill(-1);
    let j = 0;
    for (let i = 0; i < count; i++) {
      while (j < own.length && own[j]! < x[i]!) j++;
      if (j < own.length && own[j] === x[i]) row[i] = j;
    }
    return row;
  });
  return { x, rows };
}

/** Returns the first index with x ≥ `value`. */
export function lowerBound(x: ArrayLike<number>, value: number): number {
  let low = 0;
  let high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle]! < value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns the index of the x nearest to `value`; -1 for an empty series. */
export function nearest(x: ArrayLike<number>, value: number): number {
  if (x.length === 0) return -1;
  const right = lowerBound(x, value);
  if (right === 0) return 0;
  if (right === x.length) return x.length - 1;
  return value - x[right - 1]! <= x[right]! - value ? right - 1 : right;
}

/** Returns the range of samples in [min, max], plus one sample on either side, so that lines reach the border. */
export function window(x: ArrayLike<number>, min: number, max: number): [number, number] {
  const from = Math.max(0, lowerBound(x, min) - 1);
  let to = lowerBound(x, max);
  while (to < x.length && x[to] === max) to++;
  return [from, Math.min(x.length, to + 1)];
}
