// Formats numbers independently of the locale.

import type { Axis } from './types';

const PREFIXED = new Set(['bit/s', 'B/s', 'bit', 'B', 'Hz', 's']);
const UP: [number, string][] = [[1e12, 'T'], [1e9, 'G'], [1e6, 'M'], [1e3, 'k']];
const DOWN: [number, string][] = [[1e-3, 'm'], [1e-6, 'µ'], [1e-9, 'n']];

export interface Scaled {
  /** Factor from the value of the data to the shown value. */
  factor: number;
  unit: string;
}

/**
 * Selects the SI prefix of a base unit for the largest value; other units are unchanged. A layer may follow the unit:
 * `bit/s, ip`.
 */
export function scaleUnit(unit: string | undefined, largest: number): Scaled {
  const plain = { factor: 1, unit: unit ?? '' };
  const base = unit?.split(',', 1)[0]!;
  if (!unit || !PREFIXED.has(base) || !(largest > 0) || !Number.isFinite(largest)) return plain;
  if (base !== 's') {
    for (const [size, prefix] of UP) if (largest >= size) return { factor: 1 / size, unit: prefix + unit };
    return plain;
  }
  if (largest >= 1) return plain;
  for (const [size, prefix] of DOWN) if (largest >= size) return { factor: 1 / size, unit: prefix + unit };
  return plain;
}

/** Four significant digits, without trailing zeros, and with a minus sign (U+2212). */
export function formatNumber(value: number | null | undefined, digits = 4): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (!Number.isFinite(value)) return value > 0 ? '∞' : '−∞';
  if (value === 0) return '0';
  const size = Math.abs(value);
  let text: string;
  if (size >= 1e7 || size < 1e-4) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split('e') as [string, string];
    text = `${trimZeros(mantissa)}e${exponent.replace('+', '')}`;
  } else {
    const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    text = trimZeros(value.toFixed(Math.min(decimals, 12)));
  }
  return text.replaceAll('-', '−');
}

function trimZeros(text: string): string {
  return text.includes('.') ? text.replace(/\.?0+$/, '') : text;
}

/** Formats a share p, given as 1 / (1 − p), as a percentage with all its nines. */
export function formatShare(x: number): string {
  const above = 100 / x;
  const decimals = Math.max(0, Math.ceil(-Math.log10(above) - 1e-9)) + 1;
  return `${trimZeros((100 - above).toFixed(Math.min(9, decimals)))} %`;
}

/** Formats an axis tick with the decimals that its spacing needs. */
export function formatTick(value: number, spacing: number): string {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || spacing < 1e-6 || size < 1e-5) return formatNumber(value, 5);
  const decimals = Math.max(0, Math.min(12, -Math.floor(Math.log10(spacing) + 1e-9)));
  const text = value.toFixed(decimals);
  // A spacing such as 0.25 needs one decimal more than its magnitude.
  const exact = Math.abs(Number(text) - value) > spacing / 100 ? value.toFixed(decimals + 1) : text;
  return exact.replace('-', '−');
}

export function axisTitle(axis: Axis, unit = axis.unit): string {
  return unit ? `${axis.label} (${unit})` : axis.label;
}

export function withUnit(text: string, unit: string): string {
  return unit && text !== '–' ? `${text} ${unit}` : text;
}

const SIZE: Record<string, number> = { n: 1e-9, u: 1e-6, µ: 1e-6, m: 1e-3, k: 1e3, K: 1e3, M: 1e6, G: 1e9, T: 1e12 };
const NUMBER = /^\s*[<>≤≥≈~]?\s*([-−+]?(?:\d+(?:[,\u2009\u202f]\d{3})+(?:\.\d+)?|\d+\.?\d*|\.\d+)(?:e[-−+]?\d+)?)(.*)$/is;
const PREFIX = /^\s*(?:±\s*[\d.,e−+-]+\s*)?([numkKMGTµ])i?(?:bit\/s|bit|B\/s|B|s|Hz)(?![\w/])/;

/** Sort value of a table cell: "0.95 ± 0.01" is 0.95, "50 Mbit/s" is more than "2 kbit/s", "n/a" has none. */
export function leadingNumber(text: string): number | null {
  const match = NUMBER.exec(text);
  if (!match) return null;
  const value = Number(match[1]!.replace(/[,\u2009\u202f]/g, '').replaceAll('−', '-'));
  const prefix = PREFIX.exec(match[2]!);
  return Number.isNaN(value) ? null : value * (prefix ? SIZE[prefix[1]!]! : 1);
}
