// Line breaks within names in printed tables, which cannot scroll, and the font size at which a table fits the page.

/** Between the parts of a name, as in `link.utilization.net_of_background`; never within a number. */
const PARTS = /(?<=[._/-])(?=\p{L})/u;

export function parts(name: string): string[] {
  return name.split(PARTS);
}

/** Font sizes of printed tables, with the widths of letters and padding in pixels. */
const SETTINGS = [
  { name: 'whole', letter: 7.4, padding: 16, broken: false },
  { name: 'small', letter: 5.6, padding: 8, broken: true },
  { name: 'smaller', letter: 4.7, padding: 6, broken: true },
] as const;
const PAPER = 660;

export type Setting = (typeof SETTINGS)[number]['name'] | 'anywhere';

/**
 * Returns the largest setting that fits: with whole names, with names broken between parts, or with breaks anywhere.
 * The parameter contains all texts of each column.
 */
export function setting(columns: string[][]): Setting {
  const fits = ({ letter, padding, broken }: (typeof SETTINGS)[number]) => {
    const least = (text: string) => Math.max(...text.split(/\s+/).flatMap((word) => (broken ? parts(word) : word)).map((piece) => piece.length));
    // The first column, which names the row, is not broken.
    const longest = (texts: string[], column: number) => Math.max(0, ...texts.map((text) => (column === 0 && !broken ? text.length : least(text))));
    return columns.reduce((sum, texts, column) => sum + longest(texts, column) * letter + padding, 0) <= PAPER;
  };
  return SETTINGS.find(fits)?.name ?? 'anywhere';
}
