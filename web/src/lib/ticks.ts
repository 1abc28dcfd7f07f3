// Ticks of an axis.

export interface Ticks {
  values: number[];
  /** Distance of linear ticks; 0 on a log axis. */
  spacing: number;
}

/** Returns about `count` ticks at 1, 2 or 5 times a power of ten. */
export function linearTicks(min: number, max: number, count: number): Ticks {
  const rough = (max - min) / Math.max(1, count);
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const spacing = [1, 2, 5, 10].map((m) => m * magnitude).find((s) => s >= rough * 0.75)!;
  const from = Math.ceil(min / spacing - 1e-9);
  const to = Math.floor(max / spacing + 1e-9);
  const values: number[] = [];
  for (let i = from; i <= to; i++) values.push(Number((i * spacing).toPrecision(14)));
  return { values, spacing };
}

/** Returns powers of ten, with 2 and 5 in between if there is space; linear ticks within less than a decade. */
export function logTicks(min: number, max: number, count: number): Ticks {
  const decades = Math.log10(max / min);
  if (decades < 1) {
    const linear = linearTicks(min, max, count);
    if (linear.values.length > 1) return linear;
  }
  const multiples = decades * 2 <= count ? [1, 2, 5] : [1];
  const step = Math.max(1, Math.ceil(decades / Math.max(1, count)));
  const values: number[] = [];
  for (let e = Math.floor(Math.log10(min)); e <= Math.ceil(Math.log10(max)); e++) {
    if (e % step !== 0) continue;
    for (const m of multiples) {
      const v = Number(`${m}e${e}`);
      if (v >= min * (1 - 1e-12) && v <= max * (1 + 1e-12)) values.push(v);
    }
  }
  return { values, spacing: 0 };
}

/** Returns 0, 90, 99, 99.9 … % at 1, 10, 100, 1000 …, and the median if there is space. */
export function nineTicks(min: number, max: number, count: number): Ticks {
  const { values } = logTicks(min, max, Math.min(count, Math.max(1, Math.log10(max / min))));
  if (values.length + 2 <= count && min <= 2 && max >= 2) values.push(2);
  return { values: [...new Set(values)].sort((a, b) => a - b), spacing: 0 };
}

/** Returns integer positions from min to max, at most `count`. */
export function categoryTicks(min: number, max: number, count: number): number[] {
  const from = Math.ceil(min) + 0;
  const to = Math.floor(max);
  const step = Math.max(1, Math.ceil((to - from + 1) / Math.max(1, count)));
  const values: number[] = [];
  for (let i = from; i <= to; i += step) values.push(i);
  return values;
}
