// Exports a figure as PNG for papers and slides: title, plot and legend on white, at twice the screen resolution.

import { fullName, type Chart, type View } from './chart';
import { drawHeat, heatHeight, type Heat } from './heat';
import { PAPER, seriesColor, seriesDash, type Mode } from './palette';
import { Plot } from './plot';

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif';
const MODE: Mode = 'light';
const WIDTH = 860;

export async function chartPicture(chart: Chart, view: View, shown: boolean[]): Promise<Blob> {
  const scale = scaleNeeded();
  const host = document.createElement('div');
  const state = { view, shown, highlight: null, mode: MODE };
  const plot = new Plot(host, chart, state, WIDTH * scale, 430 * scale, scale);
  try {
    // uPlot draws in a microtask.
    await Promise.resolve();
    const names = chart.traces.filter((t) => shown[t.index]);
    return compose(chart.figure.title, plot.uplot.ctx.canvas, names.map((t) => ({
      text: fullName(t),
      color: seriesColor(MODE, t.slot),
      dash: seriesDash(t.pattern, t.dashed),
      block: chart.bars,
    })));
  } finally {
    plot.destroy();
  }
}

export function heatPicture(heat: Heat): Blob {
  const height = heatHeight(heat, WIDTH);
  const canvas = document.createElement('canvas');
  canvas.width = WIDTH * 2;
  canvas.height = height * 2;
  const ctx = canvas.getContext('2d')!;
  ctx.scale(2, 2);
  drawHeat(ctx, heat, WIDTH, height, MODE, null);
  return compose(heat.figure.title, canvas, []);
}

function scaleNeeded(): number {
  return window.devicePixelRatio >= 2 ? 1 : 2;
}

interface Name {
  text: string;
  color: string;
  dash: number[];
  block: boolean;
}

function compose(title: string, picture: HTMLCanvasElement, names: Name[]): Blob {
  const k = picture.width / WIDTH;
  const canvas = document.createElement('canvas');
  const ctx = canvas.getContext('2d')!;
  const nameFont = `${12 * k}px ${FONT}`;
  const margin = 20 * k;
  ctx.font = nameFont;
  const places: { x: number; y: number }[] = [];
  let x = margin;
  let y = 0;
  for (const n of names) {
    const width = ctx.measureText(n.text).width + 48 * k;
    if (x > margin && x + width > picture.width + margin) {
      x = margin;
      y += 20 * k;
    }
    places.push({ x, y });
    x += width;
  }
  const head = 46 * k;
  const foot = names.length > 0 ? y + 36 * k : 12 * k;
  canvas.width = picture.width + 2 * margin;
  canvas.height = head + picture.height + foot;
  ctx.fillStyle = PAPER[MODE].paper;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  ctx.fillStyle = PAPER[MODE].ink;
  ctx.textBaseline = 'middle';
  ctx.font = `600 ${15 * k}px ${FONT}`;
  ctx.fillText(title, margin, head / 2, canvas.width - 2 * margin);
  ctx.drawImage(picture, margin, head);
  ctx.font = nameFont;
  names.forEach((n, i) => {
    const at = places[i]!;
    const middle = head + picture.height + at.y + 16 * k;
    ctx.strokeStyle = ctx.fillStyle = n.color;
    ctx.lineWidth = 2 * k;
    ctx.setLineDash(n.dash.map((d) => d * k));
    if (n.block) ctx.fillRect(at.x, middle - 5 * k, 14 * k, 10 * k);
    else {
      ctx.beginPath();
      ctx.moveTo(at.x, middle);
      ctx.lineTo(at.x + 22 * k, middle);
      ctx.stroke();
    }
    ctx.fillStyle = PAPER[MODE].ink;
    ctx.fillText(n.text, at.x + 28 * k, middle);
  });
  // Chromium delays toBlob until it is idle, by seconds in the worst case.
  const bytes = atob(canvas.toDataURL('image/png').slice('data:image/png;base64,'.length));
  return new Blob([Uint8Array.from(bytes, (c) => c.charCodeAt(0))], { type: 'image/png' });
}
