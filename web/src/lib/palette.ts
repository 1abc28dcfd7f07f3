// Colors of figures for light and dark backgrounds. Any two colors of a palette are distinct with protanopia,
// deuteranopia and tritanopia, and have sufficient contrast with the background; tests/unit/palette.test.ts verifies
// this.

import type { Series } from './types';

export type Mode = 'light' | 'dark';

export interface Paper {
  paper: string;
  ink: string;
  muted: string;
  rule: string;
  reference: string;
}

export const SERIES: Record<Mode, readonly string[]> = {
  light: ['#184195', '#af3917', '#2aa389', '#702e4e', '#a68901', '#0f77aa', '#898ad7', '#666367'],
  dark: ['#4f83c8', '#de8457', '#8ae7ba', '#c0587e', '#ffc04f', '#6fc0e8', '#8b97fd', '#9e9e9f'],
};

export const PAPER: Record<Mode, Paper> = {
  light: { paper: '#ffffff', ink: '#1b1f24', muted: '#5a626c', rule: '#e6e8eb', reference: '#5a626c' },
  dark: { paper: '#15181c', ink: '#e4e6e9', muted: '#9aa2ac', rule: '#2a2f36', reference: '#9aa2ac' },
};

// Lightness is monotonic, so that values are ordered without hue.
const RAMP: Record<Mode, readonly string[]> = {
  light: ['#f4f1e6', '#cfe0d4', '#93c5c4', '#4f9fb5', '#2a739f', '#1d4a83', '#172a5c'],
  dark: ['#1d2440', '#21406f', '#226690', '#3190a3', '#63b8a8', '#b0d9b0', '#f6f3d4'],
};

const LOAD: Record<Mode, readonly string[]> = {
  light: ['#a9b1bb', '#8aa0bd', '#5f83b8', '#8a5a86', '#b3341c'],
  dark: ['#505863', '#56719a', '#6d97d0', '#c088b4', '#ff8f66'],
};

export type Marker = 'circle' | 'square' | 'diamond' | 'triangle' | 'down';
const MARKERS: readonly Marker[] = ['circle', 'square', 'diamond', 'triangle', 'down'];

export function seriesColor(mode: Mode, slot: number): string {
  const colors = SERIES[mode];
  return colors[slot % colors.length]!;
}

const DASHES: readonly number[][] = [[], [10, 3], [2, 2], [5, 2], [14, 2]];

export function seriesDash(pattern: number, dashed: boolean): number[] {
  return dashed ? [6, 4] : DASHES[pattern % DASHES.length]!;
}

export function seriesMarker({ slot, pattern }: Look): Marker {
  return MARKERS[(slot + pattern) % MARKERS.length]!;
}

/** Style of a series. */
export interface Look {
  /** Index of the color. */
  slot: number;
  /** Index of the dash pattern. */
  pattern: number;
}

/**
 * Assigns the styles. A solid and a dashed series of the same group, or else of the same name, share a color. With
 * groups of equal size, the color stands for the position in the group and the pattern for the group, as in the SVG.
 */
export function looks(series: Series[]): Look[] {
  const count = SERIES.light.length;
  const dashes = series.some((s) => s.dashed);
  if (dashes && series.every((s) => s.group) && distinct(series, (s) => s.group!)) return shared(series, (s) => s.group!);
  const size = series.filter((s) => s.group === series[0]?.group).length;
  const equal = series.length > size && size > 1 && size <= count && !!series[0]?.group && series.length % size === 0 &&
    series.every((s, i) => s.group === series[i - (i % size)]!.group);
  if (equal) return series.map((_, i) => ({ slot: i % size, pattern: Math.floor(i / size) }));
  if (dashes && distinct(series, (s) => s.name)) return shared(series, (s) => s.name);
  return series.map((_, i) => ({ slot: i, pattern: Math.floor(i / count) }));
}

/** Returns whether the keys of all solid series differ, and those of all dashed ones. */
function distinct(series: Series[], key: (s: Series) => string): boolean {
  return new Set(series.map((s) => `${s.dashed ? 1 : 0}${key(s)}`)).size === series.length;
}

function shared(series: Series[], key: (s: Series) => string): Look[] {
  const slots = [...new Set(series.map(key))];
  return series.map((s) => {
    const slot = slots.indexOf(key(s));
    return { slot, pattern: Math.floor(slot / SERIES.light.length) };
  });
}

export function rampColor(mode: Mode, fraction: number): string {
  return between(RAMP[mode], fraction);
}

export function loadColor(mode: Mode, utilization: number | undefined): string {
  return utilization === undefined ? LOAD[mode][0]! : between(LOAD[mode], utilization);
}

function between(stops: readonly string[], fraction: number): string {
  const place = Math.min(1, Math.max(0, fraction)) * (stops.length - 1);
  const index = Math.min(stops.length - 2, Math.floor(place));
  const rest = place - index;
  const a = channels(stops[index]!);
  const b = channels(stops[index + 1]!);
  const mixed = a.map((v, i) => Math.round(v + (b[i]! - v) * rest));
  return `#${mixed.map((v) => v.toString(16).padStart(2, '0')).join('')}`;
}

export function channels(hex: string): [number, number, number] {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)) as [number, number, number];
}

/** WCAG relative luminance of a #rrggbb color. */
export function luminance(hex: string): number {
  const [r, g, b] = channels(hex).map((v) => {
    const c = v / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export function contrast(a: string, b: string): number {
  const [high, low] = [luminance(a), luminance(b)].sort((p, q) => q - p) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

export function withAlpha(hex: string, alpha: number): string {
  const [r, g, b] = channels(hex);
  return `rgba(${r},${g},${b},${alpha})`;
}
