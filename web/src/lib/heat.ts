// Heat map on canvas: cells colored by value, the values in the cells if they fit, and the color scale.

import { axisTitle, formatNumber, scaleUnit } from './format';
import { PAPER, contrast, rampColor, type Mode } from './palette';
import type { FigureData } from './types';

export interface Heat {
  figure: FigureData;
  rows: number;
  columns: number;
  columnNames: string[];
  rowNames: string[];
  low: number;
  high: number;
  log: boolean;
  factor: number;
  unit: string;
}

export interface HeatGeometry {
  left: number;
  top: number;
  cellWidth: number;
  cellHeight: number;
}

export interface Cell {
  row: number;
  column: number;
}

export function buildHeat(figure: FigureData): Heat {
  const cells = figure.cells ?? [];
  const columns = Math.max(figure.categories?.length ?? 0, ...cells.map((r) => r.length));
  const rows = Math.max(figure.y_categories?.length ?? 0, cells.length);
  const log = figure.value?.scale === 'log';
  let low = Infinity;
  let high = -Infinity;
  for (const row of cells) {
    for (const v of row) {
      if (v === null || (log && v <= 0)) continue;
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
  }
  low = figure.value?.min ?? low;
  high = figure.value?.max ?? high;
  if (!Number.isFinite(low) || !Number.isFinite(high)) [low, high] = [log ? 1 : 0, log ? 10 : 1];
  const scaled = scaleUnit(figure.value?.unit, Math.max(Math.abs(low), Math.abs(high)));
  const names = (given: string[] | undefined, count: number) => Array.from({ length: count }, (_, i) => given?.[i] ?? String(i + 1));
  return {
    figure, rows, columns, low, high, log,
    columnNames: names(figure.categories, columns),
    rowNames: names(figure.y_categories, rows),
    ...scaled,
  };
}

export function cellValue(heat: Heat, cell: Cell): number | null {
  return heat.figure.cells?.[cell.row]?.[cell.column] ?? null;
}

export function fractionOf(heat: Heat, value: number): number {
  if (heat.low === heat.high) return 0.5;
  if (!heat.log) return (value - heat.low) / (heat.high - heat.low);
  return value <= 0 ? 0 : Math.log(value / heat.low) / Math.log(heat.high / heat.low);
}

export function heatText(heat: Heat, value: number | null): string {
  return formatNumber(value === null ? null : value * heat.factor, 3);
}

export function describeHeat(heat: Heat): string {
  const { figure } = heat;
  const what = figure.value?.label ?? figure.title;
  return `Heat map of ${what}: ${heat.columns} columns of ${figure.x.label}, ${heat.rows} rows of ${figure.y.label}; values from ${heatText(heat, heat.low)} to ${heatText(heat, heat.high)}${heat.unit ? ` ${heat.unit}` : ''}.`;
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif';

/** Returns the height for the number of rows at this width. */
export function heatHeight(heat: Heat, width: number): number {
  return Math.round(Math.min(560, Math.max(200, heat.rows * (width < 480 ? 42 : 52)) + 62));
}

export function drawHeat(ctx: CanvasRenderingContext2D, heat: Heat, width: number, height: number, mode: Mode, focus: Cell | null): HeatGeometry {
  const paper = PAPER[mode];
  const small = width < 480;
  const font = (size: number) => `${size}px ${FONT}`;
  ctx.font = font(12);
  const nameWidth = Math.min(110, Math.max(0, ...heat.rowNames.slice(0, 60).map((n) => ctx.measureText(n).width)));
  const bar = small ? 10 : 14;
  const barText = Math.max(ctx.measureText(heatText(heat, heat.low)).width, ctx.measureText(heatText(heat, heat.high)).width);
  const left = Math.ceil(nameWidth) + 32;
  const right = Math.ceil(barText) + bar + (small ? 20 : 34);
  const top = 10;
  const cellWidth = Math.max(1, (width - left - right) / Math.max(1, heat.columns));
  const widest = Math.max(0, ...heat.columnNames.slice(0, 60).map((n) => ctx.measureText(n).width));
  const bottom = 46;
  const cellHeight = Math.max(1, (height - top - bottom) / Math.max(1, heat.rows));
  const gap = Math.min(cellWidth, cellHeight) > 14 ? 1.5 : 0;

  ctx.clearRect(0, 0, width, height);
  ctx.textBaseline = 'middle';
  ctx.textAlign = 'center';
  const size = Math.min(13, cellHeight * 0.4, cellWidth * 0.26);
  for (let row = 0; row < heat.rows; row++) {
    for (let column = 0; column < heat.columns; column++) {
      const value = cellValue(heat, { row, column });
      const x = left + column * cellWidth;
      const y = top + (heat.rows - 1 - row) * cellHeight;
      if (value === null) {
        ctx.strokeStyle = paper.reference;
        ctx.globalAlpha = 0.45;
        ctx.lineWidth = 1;
        ctx.strokeRect(x + gap + 0.5, y + gap + 0.5, cellWidth - 2 * gap - 1, cellHeight - 2 * gap - 1);
        ctx.beginPath();
        ctx.moveTo(x + gap + 1, y + cellHeight - gap - 1);
        ctx.lineTo(x + cellWidth - gap - 1, y + gap + 1);
        ctx.stroke();
        ctx.globalAlpha = 1;
        continue;
      }
      const color = rampColor(mode, fractionOf(heat, value));
      ctx.fillStyle = color;
      // Whole pixels avoid visible seams between small cells.
      const [x0, y0] = [Math.round(x), Math.round(y)];
      ctx.fillRect(x0 + gap / 2, y0 + gap / 2, Math.round(x + cellWidth) - x0 - gap, Math.round(y + cellHeight) - y0 - gap);
      if (size >= 9) {
        ctx.font = font(size);
        ctx.fillStyle = contrast(color, '#ffffff') >= contrast(color, '#14171b') ? '#ffffff' : '#14171b';
        ctx.fillText(heatText(heat, value), x + cellWidth / 2, y + cellHeight / 2);
      }
    }
  }
  if (focus) {
    ctx.strokeStyle = paper.ink;
    ctx.lineWidth = 2;
    ctx.strokeRect(left + focus.column * cellWidth, top + (heat.rows - 1 - focus.row) * cellHeight, cellWidth, cellHeight);
  }

  ctx.fillStyle = paper.muted;
  ctx.font = font(12);
  const below = top + heat.rows * cellHeight;
  const everyColumn = Math.max(1, Math.ceil((Math.min(widest, 90) + 10) / cellWidth));
  heat.columnNames.forEach((name, i) => {
    if (i % everyColumn === 0) ctx.fillText(fit(ctx, name, everyColumn * cellWidth - 4), left + (i + 0.5) * cellWidth, below + 14);
  });
  ctx.textAlign = 'right';
  const everyRow = Math.max(1, Math.ceil(15 / cellHeight));
  heat.rowNames.forEach((name, i) => {
    if (i % everyRow === 0) ctx.fillText(fit(ctx, name, nameWidth), left - 7, top + (heat.rows - 0.5 - i) * cellHeight);
  });
  ctx.textAlign = 'center';
  ctx.fillText(axisTitle(heat.figure.x), left + (heat.columns * cellWidth) / 2, below + 34);
  ctx.save();
  ctx.translate(11, top + (heat.rows * cellHeight) / 2);
  ctx.rotate(-Math.PI / 2);
  ctx.fillText(axisTitle(heat.figure.y), 0, 0);
  ctx.restore();

  const barLeft = width - right + (small ? 10 : 20);
  const barHeight = heat.rows * cellHeight;
  for (let i = 0; i < barHeight; i++) {
    ctx.fillStyle = rampColor(mode, 1 - i / barHeight);
    ctx.fillRect(barLeft, top + i, bar, 1.5);
  }
  ctx.fillStyle = paper.muted;
  ctx.textAlign = 'left';
  ctx.fillText(heatText(heat, heat.high), barLeft + bar + 5, top + 7);
  ctx.fillText(heatText(heat, heat.low), barLeft + bar + 5, top + barHeight - 7);
  if (heat.unit) ctx.fillText(heat.unit, barLeft, top + barHeight + 14);
  return { left, top, cellWidth, cellHeight };
}

export function cellAt(heat: Heat, g: HeatGeometry, x: number, y: number): Cell | null {
  const column = Math.floor((x - g.left) / g.cellWidth);
  const row = heat.rows - 1 - Math.floor((y - g.top) / g.cellHeight);
  return column >= 0 && column < heat.columns && row >= 0 && row < heat.rows ? { row, column } : null;
}

function fit(ctx: CanvasRenderingContext2D, text: string, room: number): string {
  if (ctx.measureText(text).width <= room) return text;
  let cut = text;
  while (cut.length > 1 && ctx.measureText(`${cut}…`).width > room) cut = cut.slice(0, -1);
  return `${cut}…`;
}
