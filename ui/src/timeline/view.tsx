// The timeline: events and counters below the cores, on the same axis.
import { useMemo } from "preact/hooks";
import type { Series, Source, Timeline } from "../api/types.ts";
import { FONT, fitted, useCanvas } from "../paint/canvas.ts";
import { css, mix, paletteOf, type Rgb } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { tip } from "../shell/tip.tsx";
import { now, update, type Range, type State } from "../state.ts";
import { clock, MS, place, timeAt, type Axis } from "../time/axis.ts";
import { axisOf, useTimeGestures } from "../time/gestures.ts";
import { drawGrid, drawPointer, drawSelection } from "../time/paint.ts";
import { eventLanes, near, seriesLanes, stretches, summary, told, top } from "./lanes.ts";

const EVENT = 22, SERIES = 38, CALM = 20;

interface Props { timeline: Timeline; source: Source; state: State; range: Range; whole: Range }

export function TimelineView({ timeline, source, state, range, whole }: Props) {
  const theme = useTheme(), palette = paletteOf(theme);
  const lanes = useMemo(() => eventLanes(timeline.events.filter(event => event.at >= timeline.from && event.at <= timeline.to)), [timeline]);
  const { shown, calm, unseen } = useMemo(() => seriesLanes(timeline, state.all), [timeline, state.all]);
  const height = Math.max(EVENT, lanes.length * EVENT + shown.length * SERIES + (calm.length ? CALM : 0));
  const severity = (name: string): Rgb => name === "critical" ? palette.critical : name === "warning" ? palette.warning : palette.info;

  const { ref, redraw } = useCanvas((context, width, full) => {
    const axis = axisOf(width, range);
    context.fillStyle = css(palette.panel);
    context.fillRect(0, 0, width, full);
    drawGrid(context, axis, source.start_time, palette, 0, full);
    context.textBaseline = "middle";
    let y = 0;
    for (const lane of lanes) {
      const middle = y + EVENT / 2;
      context.font = `12px ${FONT}`;
      context.fillStyle = css(palette.text);
      context.fillText(fitted(context, lane.title, axis.left - 60), 8, middle);
      context.textAlign = "right";
      context.fillStyle = css(palette.muted);
      context.fillText(String(lane.events.length), axis.left - 10, middle);
      context.textAlign = "left";
      let free = -Infinity;
      for (const event of lane.events) {
        const x = place(axis, event.at);
        const wide = event.uncertainty_ns / (range.to - range.from) * axis.width;
        if (x < axis.left - 1 || x > axis.left + axis.width + 1) continue;
        const colour = severity(event.severity);
        if (wide > 2) {
          context.fillStyle = css(mix(palette.panel, colour, 0.3));
          const a = Math.max(axis.left, x - wide), b = Math.min(axis.left + axis.width, x + wide);
          context.fillRect(a, middle - 2, b - a, 4);
        }
        context.fillStyle = css(colour);
        context.fillRect(Math.round(x) - 1, y + 4, 3, EVENT - 8);
        if (x > free) {
          const next = lane.events.find(other => other.at > event.at && place(axis, other.at) > x + 3);
          const room = Math.min(next ? place(axis, next.at) : Infinity, axis.left + axis.width) - x - 12;
          if (room > 70) {
            context.font = `11px ${FONT}`;
            context.fillStyle = css(palette.text);
            const text = fitted(context, event.title, room);
            const begin = x + 6 + (wide > 2 ? Math.min(wide, 60) : 0);
            context.fillText(text, begin, middle);
            free = begin + context.measureText(text).width;
          }
        }
      }
      y += EVENT;
    }
    for (const series of shown) { drawSeries(context, axis, series, y); y += SERIES; }
    if (calm.length) {
      context.font = `11px ${FONT}`;
      context.fillStyle = css(palette.accent);
      context.fillText(`▸ ${calm.length} at zero`, 8, y + CALM / 2);
      context.fillStyle = css(palette.muted);
      context.fillText(fitted(context, calm.map(name).join(" · "), axis.width), axis.left, y + CALM / 2);
    }
    drawSelection(context, axis, state.selection, palette, 0, full, state.base === "rest" ? null : state.base);
    drawPointer(context, axis, palette, 0, full);
  });

  function drawSeries(context: CanvasRenderingContext2D, axis: Axis, series: Series, y: number) {
    const most = top(series.values) || 1, h = SERIES - 8, bottom = y + SERIES - 3;
    context.font = `12px ${FONT}`;
    context.fillStyle = css(palette.text);
    context.fillText(fitted(context, name(series), axis.left - 18), 8, y + 12);
    context.font = `11px ${FONT}`;
    context.fillStyle = css(palette.muted);
    context.fillText(`at most ${told(top(series.values), series.unit)}`, 8, y + 27);
    const [x0, x1] = [place(axis, timeline.from), place(axis, timeline.to)], each = (x1 - x0) / series.values.length;
    context.save();
    context.beginPath();
    context.rect(axis.left, y, axis.width, SERIES);
    context.clip();
    context.fillStyle = css(palette.line);
    context.fillRect(axis.left, bottom, axis.width, 1);
    const colour = COLOURS[series.id] ? palette[COLOURS[series.id]!] : palette.info;
    // Counts per column are bars, a level is an area between polls.
    if (series.worst === "sum") {
      context.fillStyle = css(mix(palette.panel, colour, 0.9));
      series.values.forEach((value, column) => {
        if (value === null) return;
        const x = Math.floor(x0 + column * each), tall = value / most * h;
        context.fillRect(x, bottom - tall, Math.max(1, Math.ceil(x0 + (column + 1) * each) - x), tall);
      });
    } else for (const run of stretches(series.values)) {
      const path = new Path2D();
      run.forEach(([column, value], at) => {
        const x = x0 + (column + 0.5) * each, y = bottom - value / most * h;
        if (at === 0) path.moveTo(x, y); else path.lineTo(x, y);
      });
      context.strokeStyle = css(colour);
      context.lineWidth = 1.5;
      context.stroke(path);
      context.lineWidth = 1;
      path.lineTo(x0 + (run[run.length - 1]![0] + 0.5) * each, bottom);
      path.lineTo(x0 + (run[0]![0] + 0.5) * each, bottom);
      context.fillStyle = css(mix(palette.panel, colour, 0.3));
      context.globalAlpha = 0.7;
      context.fill(path);
      context.globalAlpha = 1;
    }
    context.restore();
  }

  useTimeGestures(ref, {
    whole, range,
    onPoint(x, y, event) {
      const axis = axisOf(ref.current!.clientWidth, range), at = timeAt(axis, x);
      const lane = lanes[Math.floor(y / EVENT)];
      if (lane && y < lanes.length * EVENT) {
        const found = x < axis.left ? lane.events : near(lane, at, (range.to - range.from) * 6 / axis.width);
        tip.set(found.length ? { x: event.clientX, y: event.clientY, lines: [x < axis.left ? lane.title : clock(found[0]!.at, source.start_time, MS),
          ...found.slice(0, 6).map(one => one.subject && !one.title.includes(one.subject) ? `${one.subject}: ${one.title}` : one.title), ...(found.length > 6 ? [`and ${found.length - 6} more`] : [])] } : null);
        return;
      }
      const series = shown[Math.floor((y - lanes.length * EVENT) / SERIES)];
      if (!series || x < axis.left) { tip.set(null); return; }
      const column = Math.floor((at - timeline.from) / (timeline.to - timeline.from) * series.values.length);
      tip.set({ x: event.clientX, y: event.clientY, lines: [series.title, `${clock(at, source.start_time, timeline.step_ns)}: ${told(series.values[column] ?? null, series.unit)}`] });
    },
    onLeave: () => tip.set(null),
    onClick(x, y) {
      if (calm.length && y > lanes.length * EVENT + shown.length * SERIES) { update({ all: true }); return; }
      const axis = axisOf(ref.current!.clientWidth, range);
      const lane = y < lanes.length * EVENT ? lanes[Math.floor(y / EVENT)] : undefined;
      const event = lane && x >= axis.left ? near(lane, timeAt(axis, x), (range.to - range.from) * 6 / axis.width)[0] : undefined;
      // Selects the seconds around an event.
      if (event) update({ selection: { from: Math.max(whole.from, event.at - 2e9), to: Math.min(whole.to, event.at + 2e9) }, band: null });
      else if (now().selection && x >= axis.left) update({ selection: null, band: null });
    },
  }, redraw);

  return (
    <div class="timeline">
      <canvas ref={ref} tabIndex={0} role="img" aria-label={summary(lanes, shown)} aria-describedby="keys-time" style={{ height }} />
      {(unseen.length > 0 || (timeline.events_left_out ?? 0) > 0) && <p class="note">
        {unseen.length > 0 && <>Not seen here: {unseen.map(name).join(", ")}. </>}
        {(timeline.events_left_out ?? 0) > 0 && <>{timeline.events_left_out} more events are not drawn; zoom in to see them.</>}
      </p>}
    </div>
  );
}

const name = (series: Series) => series.subject ? `${SHORT[series.id] ?? series.title} · ${series.subject}` : SHORT[series.id] ?? series.title;
// Short titles that fit beside the axis; the tooltip has the server's title.
const SHORT: Record<string, string> = {
  zombies: "dead cgroups", "runqueue-delay": "waiting for a core", "softnet-drops": "softnet drops", "softnet-squeezes": "softnet squeezes", "nic-drops": "NIC drops", "nic-tx-timeouts": "transmit timeouts", "pressure-cpu": "CPU pressure",
  "pressure-memory": "memory pressure", "pressure-io": "I/O pressure", "unit-restarts": "unit restarts (counted)", "nic-resets": "NIC resets (counted)", "oom-kills": "OOM kills (counted)", throttled: "throttled",
};
const COLOURS: Record<string, "critical" | "warning" | "irq" | "system" | "user" | "steal"> = {
  zombies: "irq", "runqueue-delay": "system", "softnet-drops": "critical", "nic-drops": "critical", "pressure-cpu": "warning", "pressure-memory": "warning", "pressure-io": "warning", throttled: "steal",
  "unit-restarts": "system",
};
