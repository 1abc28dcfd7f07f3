// Where names may be broken on paper, which cannot be scrolled, and how small a table must be set to fit on it.

/** Between the parts of a name, as in `link.utilization.net_of_background`; never within a number. */
const PARTS = /(?<=[._/-])(?=\p{L})/u;

export function parts(name: string): string[] {
  return name.split(PARTS);
}

/** How tables are set on paper, and what letters and padding then take of its width, pixels. */
const SETTINGS = [
  { name: 'whole', letter: 7.4, padding: 16, broken: false },
  { name: 'small', letter: 5.6, padding: 8, broken: true },
  { name: 'smaller', letter: 4.7, padding: 6, broken: true },
] as const;
const PAPER = 660;

export type Setting = (typeof SETTINGS)[number]['name'] | 'anywhere';

/** As large as it may be, names whole or in parts; where no size would do, broken anywhere. By column, all texts. */
export function setting(columns: string[][]): Setting {
  const fits = ({ letter, padding, broken }: (typeof SETTINGS)[number]) => {
    const least = (text: string) => Math.max(...text.split(/\s+/).flatMap((word) => (broken ? parts(word) : word)).map((piece) => piece.length));
    // What a row is of stays on its line.
    const longest = (texts: string[], column: number) => Math.max(0, ...texts.map((text) => (column === 0 && !broken ? text.length : least(text))));
    return columns.reduce((sum, texts, column) => sum + longest(texts, column) * letter + padding, 0) <= PAPER;
  };
  return SETTINGS.find(fits)?.name ?? 'anywhere';
}
