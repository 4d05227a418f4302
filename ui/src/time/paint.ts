// What every canvas with a time axis shows: marks, selection, crosshair.
import { css, type Palette } from "../paint/colour.ts";
import { FONT, textWidth } from "../paint/canvas.ts";
import type { Range } from "../state.ts";
import { clock, marks, midnight, place, type Axis } from "./axis.ts";
import { brushing, pointed } from "./gestures.ts";

export const AXIS_HEIGHT = 22;

export function drawAxis(context: CanvasRenderingContext2D, axis: Axis, start: string | null, palette: Palette): void {
  context.font = `11px ${FONT}`;
  context.textBaseline = "middle";
  context.textAlign = "center";
  const zero = midnight(start);
  for (const { at, step } of marks(axis, zero?.epoch ?? null)) {
    const x = Math.round(place(axis, at)) + 0.5;
    context.fillStyle = css(palette.line);
    context.fillRect(x - 0.5, AXIS_HEIGHT - 5, 1, 5);
    context.fillStyle = css(palette.muted);
    const text = clock(at, start, step);
    const half = textWidth(context, text) / 2;
    context.fillText(text, Math.min(Math.max(x, axis.left + half), axis.left + axis.width - half), AXIS_HEIGHT / 2 - 1);
  }
  context.textAlign = "left";
}

export function drawGrid(context: CanvasRenderingContext2D, axis: Axis, start: string | null, palette: Palette, top: number, bottom: number): void {
  context.fillStyle = css(palette.line);
  for (const { at } of marks(axis, midnight(start)?.epoch ?? null)) context.fillRect(Math.round(place(axis, at)), top, 1, bottom - top);
}

// Dims everything outside the selection; colours inside stay unchanged.
export function drawSelection(context: CanvasRenderingContext2D, axis: Axis, selection: Range | null, palette: Palette, top: number, bottom: number, base: Range | null = null): void {
  const range = brushing.get()?.range ?? selection;
  const right = axis.left + axis.width;
  const clamp = (x: number) => Math.min(Math.max(x, axis.left), right);
  const edges = (of: Range) => [clamp(place(axis, of.from)), clamp(place(axis, of.to))] as const;
  if (range) {
    const [a, b] = edges(range);
    context.globalAlpha = 0.5;
    context.fillStyle = css(palette.panel);
    context.fillRect(axis.left, top, a - axis.left, bottom - top);
    context.fillRect(b, top, right - b, bottom - top);
    context.globalAlpha = 1;
    context.fillStyle = css(palette.accent);
    if (range.from >= axis.from && range.from <= axis.to) context.fillRect(Math.round(a) - 1, top, 2, bottom - top);
    if (range.to >= axis.from && range.to <= axis.to) context.fillRect(Math.round(b) - 1, top, 2, bottom - top);
  }
  if (base) {
    const [a, b] = edges(base);
    context.strokeStyle = css(palette.muted);
    context.setLineDash([4, 3]);
    context.strokeRect(Math.round(a) + 0.5, top + 0.5, Math.max(1, Math.round(b - a) - 1), bottom - top - 1);
    context.setLineDash([]);
  }
}

export function drawPointer(context: CanvasRenderingContext2D, axis: Axis, palette: Palette, top: number, bottom: number): void {
  const at = pointed.get();
  if (at === null || at < axis.from || at > axis.to) return;
  context.fillStyle = css(palette.text);
  context.globalAlpha = 0.55;
  context.fillRect(Math.round(place(axis, at)), top, 1, bottom - top);
  context.globalAlpha = 1;
}
