import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Page } from 'playwright-core';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { channels, PAPER, SERIES } from '../../src/lib/palette';
import type { ReportData } from '../../src/lib/types';
import { CHROMIUM, figure, pixels, present, sample, Stage } from './page';

const THROUGHPUT = 1;
const HEAT = 3;
const BARS = 4;

describe.skipIf(!present)(`the report in ${CHROMIUM}`, () => {
  let stage: Stage;
  beforeAll(async () => {
    stage = await Stage.open();
  });
  afterAll(async () => stage.close());
  afterEach(async () => {
    for (const c of stage.browser.contexts()) await c.close();
  });

  const range = async (page: Page, n: number, of: 'x' | 'y') => {
    const plot = page.locator('figure').nth(n).locator('.plot');
    return [Number(await plot.getAttribute(`data-${of}-min`)), Number(await plot.getAttribute(`data-${of}-max`))] as [number, number];
  };
  const over = async (page: Page, n: number) => (await (await figure(page, n)).locator('.u-over').boundingBox())!;

  test('shows all parts of the sample without errors or requests', async () => {
    const data = sample();
    const { page, complaints } = await stage.show(data);
    expect(await page.title()).toBe(data.title);
    expect(await page.locator('h1').textContent()).toBe(data.title);
    expect(await page.locator('.warnings').textContent()).toContain(data.warnings[0]);
    expect(await page.locator('.verdict').textContent()).toContain('1 of 7 expectations is not met');
    expect(await page.locator('#expectations .one').count()).toBe(data.expectations.length);
    expect(await page.locator('#expectations .failed .mark').textContent()).toContain('not met');
    expect(await page.locator('.facts dt').allTextContents()).toEqual(data.facts.map((f) => f.name));
    expect(await page.locator('figure').count()).toBe(data.figures.length);
    expect(await page.locator('#topology .node').count()).toBe(data.topology!.nodes.length);
    expect(await page.locator('#topology .link').count()).toBe(data.topology!.links.length);
    expect(await page.locator('#tables tbody tr').count()).toBe(data.tables[0]!.rows.length);
    for (let i = 0; i < data.figures.length; i++) {
      const f = await figure(page, i);
      expect(await f.locator('figcaption').textContent()).toContain(data.figures[i]!.caption);
      if (data.figures[i]!.claim) expect(await f.locator('.claim').textContent()).toContain(data.figures[i]!.claim);
    }
    await page.locator('#scenario summary').click();
    // A details element fires its toggle event in a later task.
    await page.locator('#scenario code span').first().waitFor();
    expect((await page.locator('#scenario code').textContent())!.trim()).toBe(data.scenario!.trim());
    expect(complaints).toEqual([]);
  });

  test('draws lines, bars and cells in their colors', async () => {
    const { page } = await stage.show(sample(), { colorScheme: 'light' });
    await figure(page, THROUGHPUT);
    for (let s = 0; s < 5; s++) expect(await pixels(page, THROUGHPUT, channels(SERIES.light[s]!)), `series ${s}`).toBeGreaterThan(150);
    await figure(page, BARS);
    expect(await pixels(page, BARS, channels(SERIES.light[1]!))).toBeGreaterThan(20_000);
    await figure(page, HEAT);
    expect(await pixels(page, HEAT, [0x17, 0x2a, 0x5c])).toBeGreaterThan(2_000);
  });

  test('the legend hides a series, shows a single one, and restores all', async () => {
    const { page } = await stage.show(sample(), { colorScheme: 'light' });
    const f = await figure(page, THROUGHPUT);
    const rows = f.locator('.legend .row');
    const colors = SERIES.light.slice(0, 5).map(channels);
    await rows.nth(1).click();
    expect(await rows.nth(1).getAttribute('aria-pressed')).toBe('false');
    await expect.poll(() => pixels(page, THROUGHPUT, colors[1]!)).toBe(0);
    expect(await pixels(page, THROUGHPUT, colors[0]!)).toBeGreaterThan(150);
    await rows.nth(4).click({ modifiers: ['Shift'] });
    await page.mouse.move(5, 5);
    await expect.poll(() => pixels(page, THROUGHPUT, colors[0]!)).toBe(0);
    expect(await pixels(page, THROUGHPUT, colors[4]!)).toBeGreaterThan(150);
    await rows.nth(4).click({ modifiers: ['Shift'] });
    await page.mouse.move(5, 5);
    await expect.poll(() => pixels(page, THROUGHPUT, colors[0]!)).toBeGreaterThan(150);
  });

  test('hiding the tallest series rescales the others', async () => {
    const { page } = await stage.show(sample());
    const f = await figure(page, THROUGHPUT);
    const [, before] = await range(page, THROUGHPUT, 'y');
    await f.locator('.legend .row').nth(4).click();
    await expect.poll(async () => (await range(page, THROUGHPUT, 'y'))[1]).toBeLessThan(before * 0.8);
  });

  test('many series: a filter, none and all', async () => {
    const data = sample();
    const time = Array.from({ length: 50 }, (_, i) => i);
    data.figures = [{ ...data.figures[THROUGHPUT]!, shared_x: time, series: Array.from({ length: 60 }, (_, k) => ({ name: `bulk[${k}]`, y: time.map((t) => k + t / 50) })) }];
    const { page } = await stage.show(data);
    const f = await figure(page, 0);
    const rows = f.locator('.legend .row');
    await f.getByRole('button', { name: 'None' }).click();
    expect(await f.locator('.legend .row[aria-pressed="true"]').count()).toBe(0);
    await f.getByRole('searchbox').fill('[5');
    expect(await rows.count()).toBe(11);
    await f.getByRole('button', { name: 'All' }).click();
    await f.getByRole('searchbox').fill('');
    expect(await f.locator('.legend .row[aria-pressed="true"]').count()).toBe(11);
  });

  test('a drag zooms x, a diagonal drag both axes; the button and a double click reset', async () => {
    const { page, complaints } = await stage.show(sample());
    const box = await over(page, THROUGHPUT);
    const full = await range(page, THROUGHPUT, 'x');
    expect(full).toEqual([0, 49.5]);
    const drag = async (x0: number, y0: number, x1: number, y1: number) => {
      await page.mouse.move(box.x + box.width * x0, box.y + box.height * y0);
      await page.mouse.down();
      await page.mouse.move(box.x + box.width * x1, box.y + box.height * y1, { steps: 4 });
      await page.mouse.up();
    };
    await drag(0.4, 0.5, 0.6, 0.52);
    await expect.poll(async () => (await range(page, THROUGHPUT, 'x'))[0]).toBeCloseTo(19.8, 0);
    expect((await range(page, THROUGHPUT, 'x'))[1]).toBeCloseTo(29.7, 0);
    await page.locator('figure').nth(THROUGHPUT).getByRole('button', { name: 'Reset zoom' }).click();
    await expect.poll(() => range(page, THROUGHPUT, 'x')).toEqual(full);
    const [, top] = await range(page, THROUGHPUT, 'y');
    await drag(0.2, 0.25, 0.7, 0.75);
    await expect.poll(async () => (await range(page, THROUGHPUT, 'y'))[1]).toBeCloseTo(top * 0.75, -5);
    expect((await range(page, THROUGHPUT, 'y'))[0]).toBeCloseTo(top * 0.25, -5);
    await page.mouse.dblclick(box.x + box.width / 2, box.y + box.height / 2);
    await expect.poll(() => range(page, THROUGHPUT, 'x')).toEqual(full);
    await expect.poll(() => range(page, THROUGHPUT, 'y')).toEqual([0, top]);
    expect(complaints).toEqual([]);
  });

  test('two fingers zoom, a double tap resets', async () => {
    const { page } = await stage.show(sample(), { viewport: { width: 375, height: 812 }, hasTouch: true, isMobile: true });
    const box = await over(page, THROUGHPUT);
    const full = await range(page, THROUGHPUT, 'x');
    const client = await page.context().newCDPSession(page);
    const touch = (type: 'touchStart' | 'touchMove' | 'touchEnd', xs: number[]) =>
      client.send('Input.dispatchTouchEvent', { type, touchPoints: xs.map((x, id) => ({ x: box.x + box.width * x, y: box.y + box.height / 2, id })) });
    await touch('touchStart', [0.4]);
    await touch('touchStart', [0.4, 0.6]);
    for (const by of [0.05, 0.1, 0.15, 0.2]) await touch('touchMove', [0.4 - by, 0.6 + by]);
    await touch('touchEnd', []);
    await expect.poll(async () => {
      const [low, high] = await range(page, THROUGHPUT, 'x');
      return (high - low) / (full[1] - full[0]);
    }).toBeCloseTo(1 / 3, 1);
    const tap = () => page.touchscreen.tap(box.x + box.width / 2, box.y + box.height / 2);
    // On a busy machine, two taps can be too far apart to be one gesture.
    await expect.poll(async () => {
      await tap();
      await tap();
      return range(page, THROUGHPUT, 'x');
    }, { timeout: 10_000 }).toEqual(full);
  });

  test('the pointer highlights the nearest series and shows all values', async () => {
    const data = sample();
    const { page } = await stage.show(data);
    const box = await over(page, THROUGHPUT);
    const [low, high] = await range(page, THROUGHPUT, 'y');
    const sampleAt = 30;
    const { y } = data.figures[THROUGHPUT]!.series[4]!;
    const x = data.figures[THROUGHPUT]!.shared_x![sampleAt]!;
    await page.mouse.move(box.x + (box.width * x) / 49.5, box.y + box.height * (1 - (y[sampleAt]! - low) / (high - low)));
    const f = page.locator('figure').nth(THROUGHPUT);
    expect(await f.locator('.tip-name').textContent()).toBe('vpn5, weight 4');
    expect(await f.locator('.tip-value').textContent()).toBe(`${Number((y[sampleAt]! / 1e6).toPrecision(4))} Mbit/s`);
    expect(await f.locator('.legend .row.lit .name').textContent()).toBe('vpn5, weight 4');
    const values = await f.locator('.legend .value').allTextContents();
    expect(values.map(Number)).toEqual(data.figures[THROUGHPUT]!.series.map((s) => Number((s.y[sampleAt]! / 1e6).toPrecision(4))));
    await page.mouse.move(5, 5);
    await f.locator('.tip').waitFor({ state: 'detached' });
  });

  test('the keyboard reads values and zooms', async () => {
    const { page } = await stage.show(sample());
    const f = await figure(page, THROUGHPUT);
    await f.locator('.plot').focus();
    await page.keyboard.press('Home');
    await page.keyboard.press('ArrowRight');
    const said = f.locator('.plot > [aria-live]');
    expect(await said.textContent()).toBe('vpn1, weight 1: 0 Mbit/s at 1.5 s');
    await page.keyboard.press('ArrowDown');
    expect(await said.textContent()).toBe('vpn2, weight 2: 0 Mbit/s at 1.5 s');
    await page.keyboard.press('+');
    await expect.poll(async () => (await range(page, THROUGHPUT, 'x'))[1]).toBeLessThan(49.5);
    await page.keyboard.press('0');
    await expect.poll(() => range(page, THROUGHPUT, 'x')).toEqual([0, 49.5]);
  });

  test.each([
    ['the sample', (d: ReportData) => d],
    ['long words', (d: ReportData): ReportData => {
      const long = 'a'.repeat(300);
      d.title = d.subtitle = long;
      d.warnings = [long];
      d.facts = [{ name: long, value: long }];
      d.expectations = [{ name: long, metric: long, condition: long, achieved: long, claim: long, cell: long, pass: false }];
      d.tables[0]!.title = d.tables[0]!.note = d.tables[0]!.rows[0]![0] = d.tables[0]!.columns[0]!.name = long;
      d.figures.forEach((f) => {
        f.title = f.caption = f.claim = long;
        f.series.forEach((s) => (s.name = s.group = long));
        f.categories = f.categories?.map(() => long);
        f.y_categories = f.y_categories?.map(() => long);
      });
      d.topology!.nodes[0]!.name = d.topology!.vpns![0]!.name = long;
      return d;
    }],
  ])('nothing makes the page wider than a phone: %s', async (_, change) => {
    const { page, complaints } = await stage.show(change(sample()), { viewport: { width: 375, height: 812 }, isMobile: true, hasTouch: true });
    for (let i = 0; i < 6; i++) {
      const f = await figure(page, i);
      await f.getByRole('button', { name: 'Table' }).click();
    }
    for (const d of await page.locator('details').all()) await d.evaluate((e: HTMLDetailsElement) => (e.open = true));
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBe(375);
    expect(complaints).toEqual([]);
  });

  test('dark if the system is dark; the selection survives a reload', async () => {
    const { page } = await stage.show(sample(), { colorScheme: 'dark' });
    const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const rgb = (hex: string) => `rgb(${channels(hex).join(', ')})`;
    expect(await paper()).toBe(rgb(PAPER.dark.paper));
    await figure(page, THROUGHPUT);
    expect(await pixels(page, THROUGHPUT, channels(SERIES.dark[4]!))).toBeGreaterThan(150);
    await page.getByText('Light', { exact: true }).click();
    expect(await paper()).toBe(rgb(PAPER.light.paper));
    await expect.poll(() => pixels(page, THROUGHPUT, channels(SERIES.light[4]!))).toBeGreaterThan(150);
    await page.reload();
    expect(await paper()).toBe(rgb(PAPER.light.paper));
    await page.getByText('Auto', { exact: true }).click();
    expect(await paper()).toBe(rgb(PAPER.dark.paper));
  });

  test('works without storage', async () => {
    const context = await stage.browser.newContext();
    await context.addInitScript(() => Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } }));
    const { page: first } = await stage.show(sample());
    const page = await context.newPage();
    const thrown: string[] = [];
    page.on('pageerror', (e) => thrown.push(e.message));
    await page.goto(first.url());
    await page.getByText('Dark', { exact: true }).click();
    expect(await page.evaluate(() => document.documentElement.dataset.theme)).toBe('dark');
    expect(thrown).toEqual([]);
  });

  test('markup in names is escaped', async () => {
    const evil = '<img src=x onerror="alert(1)"></script><script>alert(2)</script><!--<script>${alert(3)}{@html 1}';
    const taint = (value: unknown): unknown =>
      typeof value === 'string' ? evil
      : Array.isArray(value) ? value.map(taint)
      : value && typeof value === 'object' ? Object.fromEntries(Object.entries(value).map(([k, v]) => [k, ['kind', 'scale', 'align', 'ends', 'path'].includes(k) ? v : taint(v)]))
      : value;
    const data = taint(sample()) as ReportData;
    // Names that connect elements must remain unique.
    data.topology!.nodes = sample().topology!.nodes.map((n) => ({ ...n, kind: evil }));
    const { page, complaints } = await stage.show(data);
    for (let i = 0; i < data.figures.length; i++) {
      const f = await figure(page, i);
      await f.getByRole('button', { name: 'Table' }).click();
    }
    await (await page.locator('#topology .wire').all())[0]!.dispatchEvent('pointerenter');
    await page.locator('#scenario summary').click();
    const box = await over(page, THROUGHPUT);
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    expect(await page.locator('h1').textContent()).toBe(evil);
    expect(await page.locator('img').count()).toBe(0);
    expect(await page.locator('script').count()).toBe(2);
    expect(complaints).toEqual([]);
  });

  test('tables sort by value and scroll separately', async () => {
    const { page } = await stage.show(sample(), { viewport: { width: 375, height: 812 } });
    const table = page.locator('#tables .scroll');
    const cells = () => table.locator('tbody tr td:nth-child(2)').allTextContents();
    const before = await cells();
    await table.getByRole('button', { name: /^Fairness/ }).click();
    expect(await cells()).toEqual([...before].sort((a, b) => parseFloat(a) - parseFloat(b)));
    expect(await table.locator('th[aria-sort="ascending"]').count()).toBe(1);
    await table.getByRole('button', { name: /^Fairness/ }).click();
    await table.getByRole('button', { name: /^Fairness/ }).click();
    expect(await cells()).toEqual(before);
    expect(await table.evaluate((e) => e.scrollWidth > e.clientWidth)).toBe(true);
  });

  test('a VPN highlights its path, and a link shows rate, delay and load', async () => {
    const { page } = await stage.show(sample());
    await page.locator('#topology').getByRole('button', { name: /^vpn3/ }).click();
    const lit = await page.locator('#topology .link.lit').evaluateAll((all) => all.map((e) => (e as HTMLElement).dataset.link));
    expect(lit.sort()).toEqual(['access3', 'core', 'egress3']);
    await page.locator('#topology .scroll').first().focus();
    await page.keyboard.press('ArrowLeft');
    expect(await page.locator('#topology [aria-live]').first().textContent()).toBe('core, Rate 50 Mbit/s, Delay 10 ms, Utilization 96 %');
  });

  test('prints in light colors with all figures in the dark theme', async () => {
    const { page, complaints } = await stage.show(sample(), { colorScheme: 'dark' });
    await page.evaluate(() => window.dispatchEvent(new Event('beforeprint')));
    await page.emulateMedia({ media: 'print', colorScheme: 'dark' });
    await expect.poll(() => page.locator('figure canvas').count()).toBe(6);
    await expect.poll(() => pixels(page, THROUGHPUT, channels(SERIES.light[4]!))).toBeGreaterThan(150);
    expect(await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).toBe('rgb(255, 255, 255)');
    expect(await page.locator('figure').nth(THROUGHPUT).locator('.legend .row').first().isVisible()).toBe(true);
    expect(await page.locator('.actions').first().getByRole('button').first().isVisible()).toBe(false);
    expect(complaints).toEqual([]);
  });

  test('in print, no element is wider than the page, and details are open', async () => {
    const { page } = await stage.show(sample());
    // Print layout does not notify the page of its new width.
    await page.addInitScript(() => {
      ResizeObserver.prototype.observe = () => {};
    });
    await page.reload();
    await page.evaluate(() => window.dispatchEvent(new Event('beforeprint')));
    await expect.poll(() => page.locator('figure canvas').count()).toBe(6);
    expect(await page.locator('details:not(.contents):not([open])').count()).toBe(0);
    await page.emulateMedia({ media: 'print' });
    await page.setViewportSize({ width: 718, height: 1000 });
    expect(await page.evaluate(() => {
      const all = [...document.querySelectorAll<HTMLElement>('.page, .page :not(.hidden-text)')];
      const cropped = (e: HTMLElement) => getComputedStyle(e).overflowX !== 'visible' && e.clientWidth > 1 && e.scrollWidth > e.clientWidth;
      return all.filter((e) => e.getBoundingClientRect().right > innerWidth || cropped(e)).map((e) => `${e.tagName} ${e.getAttribute('class')}`);
    })).toEqual([]);
    // The font of tables is only as small as their columns need, and names are broken only between parts.
    expect(await page.locator('.anywhere').count()).toBe(0);
    if (process.env.PICTURES) await page.screenshot({ path: join(process.env.PICTURES, 'printed.png'), fullPage: true });
  });

  test('CSV and PNG are saved from the data', async () => {
    const data = sample();
    const { page, complaints } = await stage.show(data);
    const save = async (n: number, what: 'CSV' | 'PNG') => {
      const f = await figure(page, n);
      const [file] = await Promise.all([page.waitForEvent('download'), f.getByRole('button', { name: `as ${what}` }).click()]);
      return { name: file.suggestedFilename(), bytes: readFileSync(await file.path()) };
    };
    const csv = await save(THROUGHPUT, 'CSV');
    expect(csv.name).toBe('throughput.csv');
    const lines = csv.bytes.toString('utf8').trim().split('\r\n');
    expect(lines).toHaveLength(51);
    expect(lines[0]!.startsWith('Time (s),"vpn1, weight 1","vpn1, weight 1 low"')).toBe(true);
    expect(lines[31]!.split(',')[1]).toBe(String(data.figures[THROUGHPUT]!.series[0]!.y[30]));
    for (const n of [THROUGHPUT, HEAT, BARS]) {
      const png = await save(n, 'PNG');
      expect(png.name).toBe(`${data.figures[n]!.name}.png`);
      expect(png.bytes.subarray(1, 4).toString()).toBe('PNG');
      expect(png.bytes.readUInt32BE(16)).toBeGreaterThanOrEqual(1700);
      expect(png.bytes.length).toBeGreaterThan(15_000);
    }
    expect(complaints).toEqual([]);
  });

  test('every control has a name and is reachable by the Tab key', async () => {
    const { page } = await stage.show(sample());
    for (let i = 0; i < 6; i++) await figure(page, i);
    const nameless = await page.locator('button, input, [role=application], [role=region], summary').evaluateAll((all) =>
      all.filter((e) => !(e.getAttribute('aria-label') ?? (e.textContent || (e as HTMLInputElement).labels?.[0]?.textContent))?.trim()).map((e) => e.outerHTML));
    expect(nameless).toEqual([]);
    const described = await page.locator('figure [role=application]').evaluateAll((all) =>
      all.map((e) => document.getElementById(e.getAttribute('aria-describedby') ?? '')?.textContent ?? ''));
    expect(described).toHaveLength(6);
    expect(described[THROUGHPUT]).toContain('Line chart of Throughput in Mbit/s over Time');
    await page.evaluate(() => scrollTo(0, 0));
    const reached = new Set<string>();
    for (let i = 0; i < 160; i++) {
      await page.keyboard.press('Tab');
      reached.add(await page.evaluate(() => document.activeElement?.className.split(' ')[0] ?? ''));
    }
    for (const what of ['plot', 'heat', 'row', 'quiet', 'scroll']) expect([...reached]).toContain(what);
  });

  test.each([
    ['{"schema":2}', 'schema 1; this one has schema 2'],
    ['{"schema":', 'cannot be read'],
  ])('says why it shows nothing: %s', async (data, text) => {
    const { page } = await stage.show(data);
    expect(await page.getByRole('alert').textContent()).toContain(text);
  });

  test('a void measurement is not shown as meeting its expectations', async () => {
    const data = sample();
    data.expectations = data.expectations.filter((e) => e.pass);
    data.void = 'emu is void';
    const { page } = await stage.show(data);
    const verdict = page.locator('.verdict');
    expect((await verdict.textContent())!.replace(/\s+/g, ' ').trim()).toBe('All 6 expectations are met, but emu is void');
    expect(await verdict.getAttribute('class')).toContain('bad');
  });

  test('the smallest report', async () => {
    const { page, complaints } = await stage.show({ schema: 1, title: 'empty', tool: 'netstage 0.1.0', warnings: [], facts: [], expectations: [], tables: [], figures: [] });
    expect(await page.locator('h1').textContent()).toBe('empty');
    expect(await page.locator('h2').count()).toBe(0);
    expect(complaints).toEqual([]);
  });

  test('figures without values and an undrawable figure do not affect the others', async () => {
    const data = sample();
    const axis = { label: 'x' };
    data.figures = [
      { name: 'none', title: 'none', kind: 'line', x: axis, y: axis, series: [] },
      { name: 'null', title: 'null', kind: 'line', x: axis, y: axis, shared_x: [1], series: [{ name: 'n', y: [null] }] },
      { name: 'bars', title: 'bars', kind: 'bar', x: axis, y: axis, series: [] },
      { name: 'cells', title: 'cells', kind: 'heatmap', x: axis, y: axis, series: [] },
      { name: 'broken', title: 'broken', kind: 'line', x: axis, y: axis, series: null as never },
      data.figures[THROUGHPUT]!,
    ];
    const { page } = await stage.show(data);
    expect(await page.getByRole('alert').textContent()).toContain('Figure 5, broken, cannot be drawn');
    for (let i = 0; i < 5; i++) await figure(page, i);
    expect(await page.locator('figure').count()).toBe(5);
  });

  test('boxes are drawn and explained, and a part without values is left out', async () => {
    const data = sample();
    const axis = { label: 'flow.delay', unit: 'ms' };
    const parts = ['5 %', '25 %', 'median', '75 %', '95 %'];
    const series = parts.map((name, i) => ({ name, y: [10 + 5 * i, i % 4 === 0 ? null : 20 + i] }));
    const [low, high] = [[18, 21], [22, 23]];
    const boxes = { ...series[2]!, low, high };
    series.splice(2, 1, boxes);
    data.figures = [{
      name: 'boxes', title: 'boxes', kind: 'box', x: { label: '' }, y: axis, categories: ['plain', 'fair'], series,
      intervals: 'Box: 25 %, median, 75 %.',
    }];
    const { page, complaints } = await stage.show(data, { colorScheme: 'light' });
    const f = await figure(page, 0);
    expect(await f.locator('figcaption').textContent()).toContain('Box: 25 %, median, 75 %.');
    expect(await pixels(page, 0, channels(SERIES.light[0]!))).toBeGreaterThan(500);
    const [bottom, top] = await range(page, 0, 'y');
    expect(bottom).toBeLessThan(10);
    expect(top).toBeGreaterThan(30);
    expect(complaints).toEqual([]);
  });

  test('a million points are drawn fast', async () => {
    const data = sample();
    const x = Array.from({ length: 50_000 }, (_, i) => i / 1000);
    const series = Array.from({ length: 20 }, (_, k) => ({ name: `flow${k}`, y: x.map((_, i) => k * 1000 + ((i * 7919) % 1000)) }));
    data.figures = [{ ...data.figures[THROUGHPUT]!, shared_x: x, series }];
    delete data.topology;
    data.expectations = [];
    const { page, complaints } = await stage.show(data, { viewport: { width: 1400, height: 1200 } });
    await figure(page, 0);
    await expect.poll(() => range(page, 0, 'x')).toEqual([0, 49.999]);
    // A desktop needs about two seconds; the bound only catches unbounded growth on a busy machine.
    const there = await page.evaluate(() => performance.now());
    console.log(`a million points after ${there.toFixed(0)} ms`);
    expect(there).toBeLessThan(10_000);
    expect(complaints).toEqual([]);
  });
});
