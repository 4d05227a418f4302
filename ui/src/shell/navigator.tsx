// The whole source as a thin strip above every view: the visible range and the incidents. Drag over it to go there.
import { useMemo } from "preact/hooks";
import type { CoreGrid, Incident, Source } from "../api/types.ts";
import { highest } from "../cores/rows.ts";
import { useCanvas } from "../paint/canvas.ts";
import { css, mix, paletteOf } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { now, update, type Range, type State } from "../state.ts";
import { place, timeAt, within, type Axis } from "../time/axis.ts";
import { axisOf } from "../time/gestures.ts";
import { drawAxis, AXIS_HEIGHT } from "../time/paint.ts";
import { useRef } from "preact/hooks";

const HEIGHT = 38;

export function Navigator({ source, grid, incidents, state, range, whole }: { source: Source; grid: CoreGrid | null; incidents: Incident[] | null; state: State; range: Range; whole: Range }) {
  const palette = paletteOf(useTheme());
  // The worst core at each time: an average would hide it.
  const worst = useMemo(() => grid ? Array.from({ length: grid.columns }, (_, column) => {
    const busy = highest(grid.cores.map(row => row.busy[column] ?? null));
    const row = busy === null ? undefined : grid.cores.find(row => row.busy[column] === busy);
    return { busy, byUser: (row?.user[column] ?? 0) > (busy ?? 0) / 2 };
  }) : [], [grid]);
  const drag = useRef<{ mode: "move" | "new"; at: number; range: Range } | null>(null);
  const { ref } = useCanvas((context, width, height) => {
    const axis = axisOf(width, whole), h = height - AXIS_HEIGHT;
    context.fillStyle = css(palette.panel);
    context.fillRect(0, 0, width, height);
    drawAxis(context, axis, source.start_time, palette);
    context.fillStyle = css(palette.empty);
    context.fillRect(axis.left, AXIS_HEIGHT, axis.width, h);
    if (grid) {
      const [x0, x1] = [place(axis, grid.from), place(axis, grid.to)], each = (x1 - x0) / grid.columns;
      worst.forEach(({ busy, byUser }, column) => {
        if (x0 + column * each >= axis.left + axis.width) return;
        context.fillStyle = css(busy === null ? palette.unseen : mix(palette.other, byUser ? palette.user : palette.system, busy >= 95 ? 1 : (busy / 100) ** 3 * 0.6));
        const tall = busy === null ? h : busy / 100 * h;
        const a = Math.floor(x0 + column * each);
        context.fillRect(a, AXIS_HEIGHT + h - tall, Math.min(Math.ceil(x0 + (column + 1) * each), axis.left + axis.width) - a, tall);
      });
      context.font = "11px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillStyle = css(palette.muted);
      context.fillText("worst core", 8, AXIS_HEIGHT + h / 2);
      context.fillText(source.start_time ? "UTC" : "from the start", 8, AXIS_HEIGHT / 2);
    }
    for (const incident of incidents ?? []) {
      const at = incident.trigger_ns ?? null;
      if (at === null) continue;
      const x = place(axis, at);
      context.fillStyle = css(palette.critical);
      context.beginPath();
      context.moveTo(x - 5, AXIS_HEIGHT - 3);
      context.lineTo(x + 5, AXIS_HEIGHT - 3);
      context.lineTo(x, AXIS_HEIGHT + 5);
      context.fill();
    }
    const shade = (from: number, to: number) => { if (to > from) { context.globalAlpha = 0.62; context.fillStyle = css(palette.panel); context.fillRect(from, AXIS_HEIGHT, to - from, h); context.globalAlpha = 1; } };
    const [a, b] = [place(axis, range.from), place(axis, range.to)];
    shade(axis.left, a);
    shade(b, axis.left + axis.width);
    if (state.range) { context.strokeStyle = css(palette.text); context.lineWidth = 1.5; context.strokeRect(a, AXIS_HEIGHT + 1, Math.max(3, b - a), h - 2); context.lineWidth = 1; }
    if (state.selection) {
      context.fillStyle = css(palette.accent);
      const [c, d] = [place(axis, state.selection.from), place(axis, state.selection.to)];
      context.fillRect(c, height - 4, Math.max(3, d - c), 4);
    }
  });
  const axis = (): Axis => axisOf(ref.current!.clientWidth, whole);
  const at = (event: PointerEvent) => Math.min(Math.max(timeAt(axis(), event.clientX - ref.current!.getBoundingClientRect().left), whole.from), whole.to);
  return <canvas ref={ref} class="navigator" role="img" style={{ height: HEIGHT }} aria-label={`The whole recording; the axis shows ${state.range ? "a part of it" : "all of it"}.`}
    onPointerDown={event => {
      if (event.button !== 0) return;
      event.currentTarget.setPointerCapture(event.pointerId);
      const time = at(event), inside = state.range && time >= state.range.from && time <= state.range.to;
      drag.current = { mode: inside ? "move" : "new", at: time, range };
    }}
    onPointerMove={event => {
      const hold = drag.current;
      if (!hold) return;
      const time = at(event);
      if (hold.mode === "move") update({ range: within({ from: hold.range.from + time - hold.at, to: hold.range.to + time - hold.at }, whole) }, true);
      else if (Math.abs(time - hold.at) > (whole.to - whole.from) / 400) update({ range: { from: Math.round(Math.min(time, hold.at)), to: Math.round(Math.max(time, hold.at)) } }, true);
    }}
    onPointerUp={event => {
      const hold = drag.current;
      drag.current = null;
      if (hold?.mode === "new" && Math.abs(at(event) - hold.at) <= (whole.to - whole.from) / 400 && now().range) update({ range: null });
    }}
    onDblClick={() => update({ range: null })} />;
}
