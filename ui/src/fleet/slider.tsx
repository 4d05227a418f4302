// The time strip: how many nodes were sick, over the retention. A click shows the fleet as it was then.
import { useMemo, useRef } from "preact/hooks";
import { FONT, useCanvas } from "../paint/canvas.ts";
import { css, mix, paletteOf } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { place, timeAt, type Axis } from "../time/axis.ts";
import { axisOf } from "../time/gestures.ts";
import { AXIS_HEIGHT, drawAxis } from "../time/paint.ts";
import { tip } from "../shell/tip.tsx";
import { update } from "./state.ts";
import type { FleetHistory } from "./types.ts";
import { ago, clockOf, many, plain } from "./words.ts";

const HEIGHT = 74;
const NS = 1e9;

export interface Times { from: number; until: number }

// To the minute; the newest is live.
export function momentOf(at: number, times: Times): number | null {
  const minute = Math.round(at / 60) * 60;
  return minute >= times.until - 60 ? null : Math.max(minute, times.from);
}

export function Slider({ history, at, times, code }: { history: FleetHistory | null; at: number | null; times: Times; code: string | null }) {
  const palette = paletteOf(useTheme());
  const start = useMemo(() => new Date(times.from * 1000).toISOString(), [times.from]);
  const whole = { from: 0, to: Math.max(60, times.until - times.from) * NS };
  const held = useRef(false);
  const own = history?.problems.find(problem => problem.code === code)?.nodes ?? null;
  const most = Math.max(1, ...(history?.sick ?? []));
  const { ref, redraw } = useCanvas((context, width, height) => {
    const axis = axisOf(width, whole), h = height - AXIS_HEIGHT - 4, bottom = height - 2;
    context.fillStyle = css(palette.panel);
    context.fillRect(0, 0, width, height);
    drawAxis(context, axis, start, palette);
    context.fillStyle = css(palette.empty);
    context.fillRect(axis.left, AXIS_HEIGHT, axis.width, bottom - AXIS_HEIGHT);
    context.save();
    context.beginPath();
    context.rect(axis.left, AXIS_HEIGHT, axis.width, bottom - AXIS_HEIGHT);
    context.clip();
    const x = (step: number) => place(axis, (history!.from_s + step * history!.step_s - times.from) * NS);
    const bars = (nodes: number[], fill: string) => {
      context.fillStyle = fill;
      nodes.forEach((count, step) => {
        if (!count) return;
        const [a, b] = [Math.floor(x(step)), Math.ceil(x(step + 1))], tall = Math.max(2, count / most * h);
        context.fillRect(a, bottom - tall, Math.max(1, b - a), tall);
      });
    };
    if (history) {
      bars(history.sick, css(own ? mix(palette.empty, palette.other, 0.55) : mix(palette.panel, palette.system, 0.75)));
      if (own) bars(own, css(palette.system));
    }
    context.restore();
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    context.fillStyle = css(palette.muted);
    context.fillText(width < 700 ? "sick" : own && code ? plain(code) : "sick nodes", 8, AXIS_HEIGHT + 12);
    context.fillText(`peak ${Math.max(0, ...(own ?? history?.sick ?? [0])).toLocaleString("en")}`, 8, AXIS_HEIGHT + 30);
    context.fillText("UTC", 8, AXIS_HEIGHT / 2);
    const mark = Math.min(Math.max(place(axis, ((at ?? times.until) - times.from) * NS), axis.left), axis.left + axis.width);
    context.fillStyle = css(at === null ? palette.muted : palette.accent);
    context.fillRect(mark - 1, AXIS_HEIGHT - 4, 2, height - AXIS_HEIGHT + 4);
    context.beginPath();
    context.moveTo(mark - 6, AXIS_HEIGHT - 5);
    context.lineTo(mark + 6, AXIS_HEIGHT - 5);
    context.lineTo(mark, AXIS_HEIGHT + 4);
    context.fill();
  });
  const axis = (): Axis => axisOf(ref.current!.clientWidth, whole);
  const secondsAt = (event: PointerEvent) => times.from + Math.min(Math.max(timeAt(axis(), event.clientX - ref.current!.getBoundingClientRect().left), 0), whole.to) / NS;
  const go = (seconds: number, quietly: boolean) => update({ at: momentOf(seconds, times) }, quietly);
  const count = (seconds: number, nodes: number[]) => history ? nodes[Math.floor((seconds - history.from_s) / history.step_s)] : undefined;
  return <canvas ref={ref} class="slider" tabIndex={0} role="slider" aria-label="Time" aria-valuemin={times.from} aria-valuemax={times.until} aria-valuenow={at ?? times.until}
    aria-valuetext={at === null ? "live" : clockOf(at)} style={{ height: HEIGHT }}
    onPointerDown={event => { if (event.button !== 0) return; event.currentTarget.setPointerCapture(event.pointerId); held.current = true; go(secondsAt(event), false); }}
    onPointerMove={event => {
      const seconds = secondsAt(event);
      if (held.current) go(seconds, true);
      const sick = history && count(seconds, history.sick), having = own && count(seconds, own);
      tip.set({ x: event.clientX, y: event.clientY, lines: [clockOf(seconds), ...(sick == null ? [] : [many(sick, "sick node")]), ...(having == null ? [] : [`${having.toLocaleString("en")} with ${plain(code!)}`])] });
    }}
    onPointerUp={() => { held.current = false; }} onPointerCancel={() => { held.current = false; }} onPointerLeave={() => tip.set(null)}
    onKeyDown={event => { if (event.key === "Home") go(times.from, false); else if (event.key === "End") update({ at: null }); else return; event.preventDefault(); redraw(); }} />;
}

export function TimeBar({ at, times }: { at: number | null; times: Times }) {
  const step = (seconds: number) => update({ at: momentOf((at ?? times.until) + seconds, times) });
  return (
    <div class="selection" role="group" aria-label="Time">
      {at === null ? <span class="live">live</span> : <span class="chip strong">as of {clockOf(at)}<span class="muted"> · {ago(times.until - at)} ago</span></span>}
      <span class="choice"><button onClick={() => step(-3600)} title="←">− 1 h</button><button onClick={() => step(-60)} title="Shift + ←">− 1 min</button><button disabled={at === null} onClick={() => step(60)} title="Shift + →">+ 1 min</button><button disabled={at === null} onClick={() => step(3600)} title="→">+ 1 h</button></span>
      <button disabled={at === null} onClick={() => update({ at: null })} title="l">Live</button>
    </div>
  );
}
