// Gestures on every canvas with a time axis: select a range, zoom, move. All share the crosshair.
import type { RefObject } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { cell } from "../cell.ts";
import { now, update, type Range } from "../state.ts";
import { moved, same, timeAt, zoomed, type Axis } from "./axis.ts";

// The time under the mouse, for the crosshair in every canvas.
export const pointed = cell<number | null>(null);
// The range being selected, until the button is released.
export const brushing = cell<{ range: Range; cores: string | null } | null>(null);

const GUTTER = 176;
export const gutter = (width: number): number => width < 700 ? 96 : GUTTER;

export function axisOf(width: number, range: Range): Axis {
  const left = gutter(width);
  return { ...range, left, width: Math.max(1, width - left - 12) };
}

export interface Hands {
  whole: Range;
  range: Range;
  // The cores between two heights, as a filter; null if heights mean nothing.
  coresBetween?: (top: number, bottom: number) => string | null;
  onPoint?: (x: number, y: number, event: PointerEvent) => void;
  onLeave?: () => void;
  // A click without a drag.
  onClick?: (x: number, y: number) => void;
}

export function useTimeGestures(ref: RefObject<HTMLCanvasElement>, hands: Hands, redraw: () => void): void {
  const last = useRef(hands);
  last.current = hands;
  useEffect(() => {
    const forgetPoint = pointed.subscribe(redraw), forgetBrush = brushing.subscribe(redraw);
    const canvas = ref.current!;
    let begin: { x: number; y: number; brushed: boolean } | null = null;
    const axis = () => axisOf(canvas.clientWidth, last.current.range);
    const spot = (event: PointerEvent | WheelEvent) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const clamp = (at: number) => Math.min(Math.max(at, last.current.range.from), last.current.range.to);
    const down = (event: PointerEvent) => {
      if (event.button !== 0) return;
      const { x, y } = spot(event);
      begin = { x, y, brushed: false };
      if (x >= axis().left) canvas.setPointerCapture(event.pointerId);
    };
    const move = (event: PointerEvent) => {
      const { x, y } = spot(event);
      const scale = axis();
      pointed.set(x >= scale.left && x <= scale.left + scale.width ? timeAt(scale, x) : null);
      if (begin && begin.x >= scale.left && (begin.brushed || Math.abs(x - begin.x) > 3)) {
        begin.brushed = true;
        const [a, b] = [clamp(timeAt(scale, Math.min(begin.x, x))), clamp(timeAt(scale, Math.max(begin.x, x)))];
        if (b > a) brushing.set({ range: { from: Math.round(a), to: Math.round(b) }, cores: last.current.coresBetween?.(Math.min(begin.y, y), Math.max(begin.y, y)) ?? null });
      }
      last.current.onPoint?.(x, y, event);
    };
    const up = (event: PointerEvent) => {
      if (!begin) return;
      const { x, y } = spot(event);
      const brushed = brushing.get();
      if (begin.brushed && brushed) {
        const { core: _, ...others } = now().filters;
        const filters = last.current.coresBetween ? brushed.cores ? { ...others, core: brushed.cores } : others : now().filters;
        update({ selection: brushed.range, band: null, filters });
      } else last.current.onClick?.(x, y);
      begin = null;
      brushing.set(null);
    };
    const cancel = () => { begin = null; brushing.set(null); };
    const leave = () => { pointed.set(null); last.current.onLeave?.(); };
    const wheel = (event: WheelEvent) => {
      const scale = axis(), { x } = spot(event);
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
      if (event.ctrlKey || event.metaKey || event.altKey) {
        event.preventDefault();
        show(zoomed(last.current.range, last.current.whole, clamp(timeAt(scale, x)), Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 250)), last.current.whole);
      } else if (sideways) {
        event.preventDefault();
        show(moved(last.current.range, last.current.whole, sideways / scale.width), last.current.whole);
      }
    };
    const double = () => { const { selection } = now(); if (selection) update({ range: selection }); };
    canvas.addEventListener("pointerdown", down);
    canvas.addEventListener("pointermove", move);
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", cancel);
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("wheel", wheel, { passive: false });
    canvas.addEventListener("dblclick", double);
    return () => {
      forgetPoint(); forgetBrush();
      canvas.removeEventListener("pointerdown", down);
      canvas.removeEventListener("pointermove", move);
      canvas.removeEventListener("pointerup", up);
      canvas.removeEventListener("pointercancel", cancel);
      canvas.removeEventListener("pointerleave", leave);
      canvas.removeEventListener("wheel", wheel);
      canvas.removeEventListener("dblclick", double);
    };
  }, []);
}

// Sets the visible range; quietly, as a gesture has many steps.
export function show(range: Range, whole: Range): void {
  update({ range: same(range, whole) ? null : range }, true);
}
