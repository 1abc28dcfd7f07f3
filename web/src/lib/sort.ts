// Order of names and table rows: numbers by value, and names in natural order (vpn2 before vpn10).

import { leadingNumber } from './format';

const collator = new Intl.Collator('en', { numeric: true, sensitivity: 'base' });

export function compareNames(a: string, b: string): number {
  return collator.compare(a, b) || (a < b ? -1 : a > b ? 1 : 0);
}

/** Returns "5 ms" if all values are equal, otherwise "5 ms … 40 ms". */
export function spanOf(values: string[]): string {
  const worth = (v: string) => leadingNumber(v) ?? Infinity;
  const sorted = [...new Set(values)].sort((a, b) => (worth(a) === worth(b) ? 0 : worth(a) - worth(b)) || compareNames(a, b));
  return sorted.length < 2 ? (sorted[0] ?? '') : `${sorted[0]} … ${sorted.at(-1)}`;
}

/** Returns the common name of equal nodes: "client" for client1 and client2; their first name if they have none. */
export function groupName(names: string[]): string {
  const stems = new Set(names.map((name) => name.replace(/[-_.[]*\d+]?$/, '')));
  const [stem] = stems;
  return stems.size === 1 && stem ? stem : names[0]!;
}

/** Returns "32 flows", "1 flow", or an empty text for none. */
export function flowsText(flows: number | undefined): string {
  return flows ? `${flows} ${flows === 1 ? 'flow' : 'flows'}` : '';
}

export type Direction = 'ascending' | 'descending';

/**
 * Returns the row numbers in the order of one column. Rows without a value come last in both directions; the order is
 * stable.
 */
export function sortRows(rows: string[][], column: number, direction: Direction): number[] {
  const cells = rows.map((r) => r[column] ?? '');
  const numbers = cells.map(leadingNumber);
  const empty = (i: number) => /^\s*[-–—]?\s*$/.test(cells[i]!);
  const numeric = cells.every((_, i) => empty(i) || numbers[i] !== null);
  const sign = direction === 'ascending' ? 1 : -1;
  return rows
    .map((_, i) => i)
    .sort((a, b) => {
      if (empty(a) || empty(b)) return Number(empty(a)) - Number(empty(b)) || a - b;
      const order = numeric ? numbers[a]! - numbers[b]! : compareNames(cells[a]!, cells[b]!);
      return sign * order || a - b;
    });
}
