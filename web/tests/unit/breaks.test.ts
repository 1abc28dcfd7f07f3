import { describe, expect, test } from 'vitest';
import { parts, setting } from '../../src/lib/breaks';

describe('tables on paper', () => {
  test('names break between parts, numbers nowhere', () => {
    expect(parts('link.utilization.net_of_background')).toEqual(['link.', 'utilization.', 'net_', 'of_', 'background']);
    expect(['0.2493 packets', '-0.37 … 0.06', 'bulk[7]', '2026-11-23'].map(parts)).toEqual([['0.2493 packets'], ['-0.37 … 0.06'], ['bulk[7]'], ['2026-11-23']]);
  });

  test('few columns stay whole, more are smaller and broken between parts, and too many are broken anywhere', () => {
    const columns = (n: number, word: string) => Array.from({ length: n }, () => ['name', word]);
    expect([columns(4, 'core.forward'), columns(9, 'core.forward'), columns(14, 'core.forward'), columns(12, 'x'.repeat(30)), []].map(setting))
      .toEqual(['whole', 'small', 'smaller', 'anywhere', 'whole']);
  });
});
