// Opens a report page from the files in dist/ in Chromium, without a network.

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { chromium, type Browser, type BrowserContextOptions, type Page } from 'playwright-core';
import { assemble } from '../../build/assemble';
import type { ReportData } from '../../src/lib/types';

const here = (path: string) => fileURLToPath(new URL(path, import.meta.url));

export const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';
export const present = existsSync(CHROMIUM);

export function sample(): ReportData {
  return JSON.parse(readFileSync(here('../../sample/report-data.json'), 'utf8')) as ReportData;
}

export class Stage {
  private constructor(readonly browser: Browser, private readonly folder: string) {}

  static async open(): Promise<Stage> {
    const browser = await chromium.launch({
      executablePath: CHROMIUM,
      args: [
        '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
        '--disable-background-networking', '--disable-component-update', '--disable-sync',
      ],
    });
    return new Stage(browser, mkdtempSync(join(tmpdir(), 'netstage-web-')));
  }

  async close(): Promise<void> {
    await this.browser.close();
    rmSync(this.folder, { recursive: true });
  }

  /** `complaints` collects errors, warnings and requests of the page; none are expected. */
  async show(data: ReportData | string, options: BrowserContextOptions = {}): Promise<{ page: Page; complaints: string[] }> {
    const file = join(this.folder, `report-${Math.random().toString(36).slice(2)}.html`);
    const title = typeof data === 'string' ? 'report' : data.title;
    writeFileSync(file, assemble(here('../../dist'), title, typeof data === 'string' ? data : JSON.stringify(data)));
    const context = await this.browser.newContext({ viewport: { width: 1400, height: 900 }, acceptDownloads: true, ...options });
    const page = await context.newPage();
    const complaints = heard(page);
    page.on('request', (r) => r.url().startsWith('http') && complaints.push(`request: ${r.url()}`));
    await page.goto(pathToFileURL(file).href);
    return { page, complaints };
  }
}

/** Collects errors, warnings and dialogs of the page from now on. */
export function heard(page: Page): string[] {
  const complaints: string[] = [];
  page.on('console', (m) => ['error', 'warning'].includes(m.type()) && complaints.push(`${m.type()}: ${m.text()}`));
  page.on('pageerror', (e) => complaints.push(`thrown: ${e.message}`));
  page.on('dialog', (d) => {
    complaints.push(`dialog: ${d.message()}`);
    void d.dismiss();
  });
  return complaints;
}

/** Returns the n-th figure, scrolled into view and drawn. */
export async function figure(page: Page, n: number) {
  const found = page.locator('figure').nth(n);
  await found.scrollIntoViewIfNeeded();
  await found.locator('canvas').waitFor();
  return found;
}

/** Counts the pixels of a canvas with about this color. */
export async function pixels(page: Page, n: number, color: [number, number, number]): Promise<number> {
  return page.locator('figure').nth(n).locator('canvas').evaluate((canvas, [r, g, b]) => {
    const c = canvas as HTMLCanvasElement;
    const { data } = c.getContext('2d')!.getImageData(0, 0, c.width, c.height);
    let count = 0;
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3]! > 200 && Math.abs(data[i]! - r) + Math.abs(data[i + 1]! - g) + Math.abs(data[i + 2]! - b) < 12) count++;
    }
    return count;
  }, color);
}
