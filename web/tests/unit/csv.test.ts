import { describe, expect, test } from 'vitest';
import { csvCell, figureCsv, tableCsv } from '../../src/lib/csv';
import type { FigureData } from '../../src/lib/types';

const figure = (part: Partial<FigureData>): FigureData => ({
  name: 'f', title: 'F', kind: 'line', x: { label: 'Time', unit: 's' }, y: { label: 'Rate', unit: 'bit/s' }, series: [], ...part,
});

describe('csvCell', () => {
  test('quotes values if needed', () => {
    expect(csvCell('plain')).toBe('plain');
    expect(csvCell('a,b')).toBe('"a,b"');
    expect(csvCell('say "so"')).toBe('"say ""so"""');
    expect(csvCell('two\nlines')).toBe('"two\nlines"');
  });

  test('escapes formulas, but not numbers', () => {
    expect(csvCell('=HYPERLINK("x")')).toBe('"\'=HYPERLINK(""x"")"');
    expect(csvCell('@cmd')).toBe("'@cmd");
    expect(csvCell('-5.25')).toBe('-5.25');
    expect(csvCell('+1e-3')).toBe('+1e-3');
    expect(csvCell('-x')).toBe("'-x");
  });

  test('numbers keep all digits, missing values are empty', () => {
    expect(csvCell(0.1 + 0.2)).toBe('0.30000000000000004');
    expect(csvCell(null)).toBe('');
    expect(csvCell(NaN)).toBe('');
  });
});

test('a line figure with shared x and a band', () => {
  const csv = figureCsv(figure({
    shared_x: [0, 1],
    series: [{ name: 'a', group: 'g', y: [1, null], low: [0.5, null], high: [1.5, null] }, { name: 'b', y: [3, 4] }],
  })).join('');
  expect(csv).toBe('Time (s),g: a,g: a low,g: a high,b\r\n0,1,0.5,1.5,3\r\n1,,,,4\r\n');
});

test('series of different x are joined', () => {
  const csv = figureCsv(figure({ series: [{ name: 'a', x: [0, 2], y: [1, 2] }, { name: 'b', x: [1, 2], y: [5, 6] }] })).join('');
  expect(csv).toBe('Time (s),a,b\r\n0,1,\r\n1,,5\r\n2,2,6\r\n');
});

test('many long series of different x become one long table', () => {
  const n = 40_000;
  const series = Array.from({ length: 12 }, (_, k) => ({ name: `s${k}`, x: Array.from({ length: n }, (_, i) => i + k / 100), y: new Array<number>(n).fill(k) }));
  const chunks = figureCsv(figure({ series }));
  const lines = chunks.join('').split('\r\n');
  expect(lines[0]).toBe('series,Time (s),Rate (bit/s),low,high');
  expect(lines.length).toBe(12 * n + 2);
  expect(lines[n + 1]).toBe('s1,0.01,1,,');
  expect(chunks.length).toBeGreaterThan(50);
});

test('bars and heat maps', () => {
  expect(figureCsv(figure({ kind: 'bar', x: { label: 'Size' }, categories: ['46 B', '66 B'], series: [{ name: 'IP', y: [1, 2] }] })).join(''))
    .toBe('Size,IP\r\n46 B,1\r\n66 B,2\r\n');
  expect(figureCsv(figure({ kind: 'heatmap', x: { label: 'a' }, y: { label: 'b' }, categories: ['1', '2'], y_categories: ['p', 'q'], cells: [[1, 2], [3, null]] })).join(''))
    .toBe('b \\ a,1,2\r\np,1,2\r\nq,3,\r\n');
});

test('a table', () => {
  expect(tableCsv({ title: 't', columns: [{ name: 'VPN' }, { name: 'Rate', unit: 'Mbit/s' }], rows: [['vpn1', '2.9']] }))
    .toBe('VPN,Rate (Mbit/s)\r\nvpn1,2.9\r\n');
});
