// Assembles the report page for tests as the program does: all placeholders of the template are replaced in one pass,
// so inserted text is never searched.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export function assemble(dist: string, title: string, data: string): string {
  const read = (name: string) => readFileSync(join(dist, name), 'utf8');
  const parts: Record<string, string> = {
    NETSTAGE_TITLE: title.replaceAll('&', '&amp;').replaceAll('<', '&lt;'),
    '/*NETSTAGE_CSS*/': read('report.css'),
    NETSTAGE_DATA: data.replaceAll('<', '\\u003c'),
    '/*NETSTAGE_JS*/': read('report.js'),
  };
  return read('report.html').replace(/NETSTAGE_TITLE|NETSTAGE_DATA|\/\*NETSTAGE_(?:CSS|JS)\*\//g, (place) => parts[place]!);
}
