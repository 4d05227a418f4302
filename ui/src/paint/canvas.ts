// A canvas at screen resolution, drawn at most once per frame.
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";

export type Draw = (context: CanvasRenderingContext2D, width: number, height: number) => void;

export interface Painted { ref: RefObject<HTMLCanvasElement>; redraw: () => void }

export function useCanvas(draw: Draw): Painted {
  const ref = useRef<HTMLCanvasElement>(null);
  const last = useRef(draw);
  last.current = draw;
  const pending = useRef(0);
  const redraw = useRef(() => {
    if (pending.current) return;
    pending.current = requestAnimationFrame(() => {
      pending.current = 0;
      const canvas = ref.current;
      if (!canvas) return;
      const { clientWidth: width, clientHeight: height } = canvas;
      const density = Math.min(devicePixelRatio || 1, 3);
      const [w, h] = [Math.round(width * density), Math.round(height * density)];
      if (canvas.width !== w) canvas.width = w;
      if (canvas.height !== h) canvas.height = h;
      const context = canvas.getContext("2d", { alpha: false });
      if (!context || w === 0 || h === 0) return;
      context.setTransform(density, 0, 0, density, 0, 0);
      last.current(context, width, height);
    });
  }).current;
  useLayoutEffect(redraw);
  useEffect(() => {
    const watch = new ResizeObserver(redraw);
    watch.observe(ref.current!);
    return () => { watch.disconnect(); cancelAnimationFrame(pending.current); pending.current = 0; };
  }, []);
  return { ref, redraw };
}

export const FONT = "ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif";
export const MONO = "ui-monospace, 'SF Mono', 'Cascadia Code', Menlo, Consolas, 'DejaVu Sans Mono', monospace";

const widths = new Map<string, number>();
export function textWidth(context: CanvasRenderingContext2D, text: string): number {
  const key = context.font + text;
  let width = widths.get(key);
  if (width === undefined) {
    width = context.measureText(text).width;
    if (widths.size > 5000) widths.clear();
    widths.set(key, width);
  }
  return width;
}

// Truncates text to the available width, with ….
export function fitted(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (textWidth(context, text) <= room) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(text.slice(0, middle) + "…").width <= room) low = middle; else high = middle - 1;
  }
  return low > 0 ? text.slice(0, low) + "…" : "";
}
