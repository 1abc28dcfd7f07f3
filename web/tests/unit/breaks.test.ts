import { describe, expect, test } from 'vitest';
import { parts, setting } from '../../src/lib/breaks';

describe('tables on paper', () => {
  test('names are broken between their parts, numbers nowhere', () => {
    expect(parts('link.utilization.net_of_background')).toEqual(['link.', 'utilization.', 'net_', 'of_', 'background']);
    expect(['0.2493 packets', '-0.37 … 0.06', 'bulk[7]', '2026-11-23'].map(parts)).toEqual([['0.2493 packets'], ['-0.37 … 0.06'], ['bulk[7]'], ['2026-11-23']]);
  });

  test('few columns are set whole, more of them smaller and in parts, and those that fit in no size are broken anywhere', () => {
    const columns = (n: number, word: string) => Array.from({ length: n }, () => ['name', word]);
    expect([columns(4, 'core.forward'), columns(9, 'core.forward'), columns(14, 'core.forward'), columns(12, 'x'.repeat(30)), []].map(setting))
      .toEqual(['whole', 'small', 'smaller', 'anywhere', 'whole']);
  });
});
