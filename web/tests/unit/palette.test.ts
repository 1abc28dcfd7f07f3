import { describe, expect, test } from 'vitest';
import { channels, contrast, looks, luminance, PAPER, rampColor, seriesDash, SERIES, type Mode } from '../../src/lib/palette';
import type { Series } from '../../src/lib/types';

// Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
const EYES: Record<string, number[][]> = {
  normal: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protan: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deutan: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritan: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

function linear(hex: string): number[] {
  return channels(hex).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
}

function oklab(rgb: number[]): number[] {
  const [r, g, b] = rgb as [number, number, number];
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function seen(hex: string, eye: string): number[] {
  const rgb = linear(hex);
  return oklab(EYES[eye]!.map((row) => Math.min(1, Math.max(0, row.reduce((sum, w, i) => sum + w * rgb[i]!, 0)))));
}

describe.each(['light', 'dark'] as Mode[])('colors on %s paper', (mode) => {
  test.each(Object.keys(EYES))('any two stay apart for %s eyes', (eye) => {
    const lab = SERIES[mode].map((c) => seen(c, eye));
    for (let i = 0; i < lab.length; i++) {
      for (let j = 0; j < i; j++) {
        const distance = Math.hypot(...lab[i]!.map((v, k) => v - lab[j]![k]!));
        expect(distance, `${SERIES[mode][i]} and ${SERIES[mode][j]}`).toBeGreaterThan(0.07);
      }
    }
  });

  test('lines and text have sufficient contrast', () => {
    for (const color of SERIES[mode]) expect(contrast(color, PAPER[mode].paper), color).toBeGreaterThanOrEqual(3);
    expect(contrast(PAPER[mode].ink, PAPER[mode].paper)).toBeGreaterThan(12);
    expect(contrast(PAPER[mode].muted, PAPER[mode].paper)).toBeGreaterThan(4.5);
  });

  test('the lightness of the ramp is monotonic', () => {
    const light = Array.from({ length: 50 }, (_, i) => luminance(rampColor(mode, i / 49)));
    for (let i = 1; i < light.length; i++) expect(Math.sign(light[i]! - light[i - 1]!)).toBe(mode === 'light' ? -1 : 1);
  });
});

describe('color assignment', () => {
  const s = (name: string, group?: string, dashed?: boolean): Series => ({ name, y: [], ...(group ? { group } : {}), ...(dashed ? { dashed } : {}) });
  const slots = (series: Series[]) => looks(series).map((l) => l.slot);
  const patterns = (series: Series[]) => looks(series).map((l) => l.pattern);

  test('a solid and a dashed series of one group', () => {
    expect(slots([s('fairness', 'a = 1'), s('utilization', 'a = 1', true), s('fairness', 'a = 2'), s('utilization', 'a = 2', true)])).toEqual([0, 0, 1, 1]);
  });

  test('a solid and a dashed series of one name', () => {
    expect(slots([s('vpn1'), s('vpn2'), s('vpn1', undefined, true), s('vpn2', undefined, true)])).toEqual([0, 1, 0, 1]);
  });

  test('groups of one by color', () => {
    expect(looks([s('a', 'a'), s('b', 'b'), s('c', 'c')]).map((l) => l.slot)).toEqual([0, 1, 2]);
    expect(looks([s('a', 'a'), s('b', 'b'), s('c', 'w', true), s('d', 'w', true)]).map((l) => l.slot)).toEqual([0, 1, 2, 3]);
  });

  test('the same position in groups of equal size, with different patterns', () => {
    const series = [s('vpn1', 'a = 1'), s('vpn2', 'a = 1'), s('vpn1', 'a = 2'), s('vpn2', 'a = 2')];
    expect(slots(series)).toEqual([0, 1, 0, 1]);
    expect(patterns(series)).toEqual([0, 0, 1, 1]);
  });

  test('otherwise each has its own color, and after the last color its own pattern', () => {
    expect(slots([s('x', 'p'), s('x', 'p'), s('y', 'q')])).toEqual([0, 1, 2]);
    const many = Array.from({ length: 20 }, (_, i) => s(`v${i}`));
    expect(patterns(many)[7]).toBe(0);
    expect(patterns(many)[8]).toBe(1);
    expect(seriesDash(0, false)).not.toEqual(seriesDash(1, false));
  });
});
