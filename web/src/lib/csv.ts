// Comma-separated values (RFC 4180) of figures and tables.

import { align, sameX, seriesX } from './align';
import { axisTitle } from './format';
import { fullName } from './chart';
import type { FigureData, TableData } from './types';

const WIDEST = 4_000_000;

/** Quotes a value if needed. Text that a spreadsheet would evaluate as a formula is escaped. */
export function csvCell(value: string | number | null | undefined): string {
  if (value === null || value === undefined) return '';
  if (typeof value === 'number') return Number.isFinite(value) ? String(value) : '';
  let text = value;
  if (/^[=+\-@\t\r]/.test(text) && !/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function line(cells: (string | number | null | undefined)[]): string {
  return `${cells.map(csvCell).join(',')}\r\n`;
}

export function tableCsv(table: TableData): string {
  const head = line(table.columns.map((c) => (c.unit ? `${c.name} (${c.unit})` : c.name)));
  return head + table.rows.map(line).join('');
}

/** Written in chunks, so that a large figure never needs one long string. */
export function figureCsv(figure: FigureData): string[] {
  if (figure.kind === 'heatmap') return heatmapCsv(figure);
  if (figure.kind === 'bar' || figure.kind === 'box') return barCsv(figure);
  const xs = figure.series.map((s) => seriesX(figure, s));
  let longest = 0;
  let total = 0;
  for (const x of xs) {
    longest = Math.max(longest, x.length);
    total += x.length;
  }
  const shared = xs.every((x) => sameX(x, xs[0]!));
  return shared || total * xs.length <= WIDEST ? wide(figure, xs) : long(figure, xs);
}

function columnsOf(figure: FigureData): { name: string; series: number; of: (number | null)[] }[] {
  return figure.series.flatMap((s, series) => {
    const name = fullName(s);
    return [
      { name, series, of: s.y },
      ...(s.low ? [{ name: `${name} low`, series, of: s.low }] : []),
      ...(s.high ? [{ name: `${name} high`, series, of: s.high }] : []),
    ];
  });
}

function wide(figure: FigureData, xs: number[][]): string[] {
  const columns = columnsOf(figure);
  const joined = align(xs);
  return chunked(line([axisTitle(figure.x), ...columns.map((c) => c.name)]), joined.x.length, (i) =>
    line([joined.x[i]!, ...columns.map((c) => {
      const row = joined.rows[c.series];
      const at = row ? row[i]! : i;
      return at < 0 ? null : c.of[at];
    })]),
  );
}

function long(figure: FigureData, xs: number[][]): string[] {
  const head = line(['series', axisTitle(figure.x), axisTitle(figure.y), 'low', 'high']);
  return figure.series.flatMap((s, k) =>
    chunked(k === 0 ? head : '', xs[k]!.length, (i) => line([fullName(s), xs[k]![i], s.y[i], s.low?.[i], s.high?.[i]])),
  );
}

function barCsv(figure: FigureData): string[] {
  const columns = columnsOf(figure);
  const count = figure.categories?.length ?? Math.max(0, ...figure.series.map((s) => s.y.length));
  return chunked(line([axisTitle(figure.x), ...columns.map((c) => c.name)]), count, (i) =>
    line([figure.categories?.[i] ?? figure.shared_x?.[i] ?? i + 1, ...columns.map((c) => c.of[i])]),
  );
}

function heatmapCsv(figure: FigureData): string[] {
  const cells = figure.cells ?? [];
  const width = Math.max(0, ...cells.map((r) => r.length));
  const head = line([
    `${axisTitle(figure.y)} \\ ${axisTitle(figure.x)}`,
    ...Array.from({ length: width }, (_, i) => figure.categories?.[i] ?? i + 1),
  ]);
  return chunked(head, cells.length, (r) => line([figure.y_categories?.[r] ?? r + 1, ...cells[r]!]));
}

function chunked(head: string, count: number, row: (i: number) => string): string[] {
  const chunks: string[] = [];
  let text = head;
  for (let i = 0; i < count; i++) {
    text += row(i);
    if (text.length > 1 << 16) {
      chunks.push(text);
      text = '';
    }
  }
  chunks.push(text);
  return chunks;
}
