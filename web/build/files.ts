// Splits a bundle into the three files that the program embeds: a script, a style sheet and a page. Script and style
// sheet of the report are embedded in its page, and the page's content security policy allows only these two by their
// hashes. Those of the app are served as files.

import { createHash } from 'node:crypto';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Plugin, Rolldown } from 'vite';

export function reportFiles(template: string): Plugin {
  return {
    name: 'netstage-report-files',
    apply: 'build',
    enforce: 'post',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const { script, style } = pair(bundle, 'report');
        script.code = `${notices(Object.keys(script.modules))}${inlineScript(script.code.trim())}\n`;
        style.source = `${String(style.source).trim()}\n`;
        if (/<\/style/i.test(style.source)) throw new Error('the style sheet would end its element');
        const policy = [
          "default-src 'none'",
          `script-src '${hash(script.code)}'`,
          `style-src '${hash(style.source)}'`,
          'img-src data: blob:',
          "base-uri 'none'",
          "form-action 'none'",
        ].join('; ');
        const page = readFileSync(template, 'utf8').replace('NETSTAGE_CSP', policy);
        this.emitFile({ type: 'asset', fileName: 'report.html', source: page });
      },
    },
  };
}

export function appFiles(page: string): Plugin {
  return {
    name: 'netstage-app-files',
    apply: 'build',
    enforce: 'post',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const { script, style } = pair(bundle, 'app');
        script.code = `${notices(Object.keys(script.modules))}${script.code.trim()}\n`;
        style.source = `${String(style.source).trim()}\n`;
        this.emitFile({ type: 'asset', fileName: 'app.html', source: readFileSync(page, 'utf8') });
      },
    },
  };
}

/** Returns the only script and the only style sheet of a bundle. */
function pair(bundle: Rolldown.OutputBundle, name: string): { script: Rolldown.OutputChunk; style: Rolldown.OutputAsset } {
  const [script, style] = [bundle[`${name}.js`], bundle[`${name}.css`]];
  if (script?.type !== 'chunk' || style?.type !== 'asset') throw new Error(`the bundle lacks ${name}.js or ${name}.css`);
  const others = Object.keys(bundle).filter((f) => f !== `${name}.js` && f !== `${name}.css`);
  if (others.length > 0) throw new Error(`more files than one script and one style sheet: ${others.join(', ')}`);
  return { script, style };
}

/** Escapes sequences that would end or comment out the script element. */
export function inlineScript(code: string): string {
  return code.replaceAll('<!--', '\\x3c!--').replace(/<(\/?script)/gi, '\\x3c$1');
}

function hash(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`;
}

/** Returns the licenses of the packages in the bundle. */
function notices(modules: string[]): string {
  const folders = new Map<string, string>();
  for (const path of modules) {
    const found = /^\0?(.*\/node_modules\/((?:@[^/]+\/)?[^/]+))\//.exec(path.replaceAll('\\', '/'));
    if (found) folders.set(found[2]!, found[1]!);
  }
  const texts = [...folders.keys()].sort().map((name) => {
    const folder = folders.get(name)!;
    const { version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Record<string, string>;
    const file = ['LICENSE', 'LICENSE.md', 'license'].map((f) => join(folder, f)).find(existsSync);
    if (!file) throw new Error(`${name} is bundled but has no licence file`);
    return `${name} ${version} (${license})\n\n${readFileSync(file, 'utf8').trim()}`;
  });
  return `/*!\nThis file includes:\n\n${texts.join('\n\n---\n\n').replaceAll('*/', '* /')}\n*/\n`;
}
