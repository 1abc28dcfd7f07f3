// The page the binary makes, made here for tests: the template's places are filled in one pass, so that
// nothing inserted is searched again.

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
