// Small charts: lines over time, survival after boot, points of uptime and a number. Each has its numbers as text, too.
import { FONT, useCanvas } from "../paint/canvas.ts";
import { css, mix, paletteOf, type Palette } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { tip } from "../shell/tip.tsx";
import { marks, clock, place, timeAt, type Axis } from "../time/axis.ts";
import type { Curve, Minutes, Numbers, Points } from "./types.ts";
import { SEVERITIES } from "./colours.ts";
import { ago, clockOf, NUMBERS, ofAnHour, plain, titleOf, told } from "./words.ts";
import { nearest, shownPoints, type Shown } from "./points.ts";
import { update } from "./state.ts";
import { useMemo } from "preact/hooks";

const NS = 1e9, LEFT = 52, RIGHT = 10;

function background(context: CanvasRenderingContext2D, width: number, height: number, palette: Palette): void {
  context.fillStyle = css(palette.panel);
  context.fillRect(0, 0, width, height);
  context.font = `11px ${FONT}`;
  context.textBaseline = "middle";
}

export const extremes = (values: Numbers): { low: number; high: number; last: number } | null => {
  const seen = values.filter((value): value is number => value !== null);
  return seen.length ? { low: Math.min(...seen), high: Math.max(...seen), last: seen[seen.length - 1]! } : null;
};

// One number of one node.
export function LineChart({ name, minutes, from, until, boots }: { name: string; minutes: Minutes; from: number; until: number; boots: number[] }) {
  const palette = paletteOf(useTheme());
  const values = minutes.numbers[name]!, range = extremes(values)!;
  const top = NUMBERS[name]?.kind === "share" ? 1 : Math.max(range.high, 1);
  const start = new Date(from * 1000).toISOString();
  const axisFor = (width: number): Axis => ({ from: 0, to: (until - from) * NS, left: LEFT, width: Math.max(1, width - LEFT - RIGHT) });
  const { ref } = useCanvas((context, width, height) => {
    background(context, width, height, palette);
    const axis = axisFor(width), bottom = height - 18, y = (value: number) => bottom - value / top * (bottom - 6);
    context.fillStyle = css(palette.line);
    context.fillRect(LEFT, bottom, axis.width, 1);
    context.textAlign = "center";
    for (const { at, step } of marks(axis, (from % 86_400) * NS, 70)) {
      const x = place(axis, at);
      context.fillStyle = css(palette.line);
      context.fillRect(Math.round(x), bottom, 1, 3);
      context.fillStyle = css(palette.muted);
      if (x > LEFT + 12 && x < width - RIGHT - 12) context.fillText(clock(at, start, step), x, height - 8);
    }
    context.textAlign = "right";
    context.fillText(told(name, top, true), LEFT - 5, 8);
    context.fillText("0", LEFT - 5, bottom - 2);
    context.textAlign = "left";
    context.strokeStyle = css(palette.muted);
    context.setLineDash([2, 3]);
    for (const boot of boots) {
      const x = Math.round(place(axis, (boot - from) * NS)) + 0.5;
      if (x < LEFT || x > width - RIGHT) continue;
      context.beginPath();
      context.moveTo(x, 2);
      context.lineTo(x, bottom);
      context.stroke();
    }
    context.setLineDash([]);
    context.strokeStyle = context.fillStyle = css(palette.irq);
    context.lineWidth = 1.5;
    context.beginPath();
    let before = -Infinity;
    minutes.at_s.forEach((at, index) => {
      const value = values[index] ?? null;
      if (value === null) return;
      const x = place(axis, (at - from) * NS);
      // A gap is not bridged: what was not reported is not known.
      if (at - before > 3 * minutes.step_s) { context.moveTo(x, y(value)); context.fillRect(x - 1, y(value) - 1, 2, 2); } else context.lineTo(x, y(value));
      before = at;
    });
    context.stroke();
    context.lineWidth = 1;
  });
  const per = minutes.step_s === 60 ? "" : ` ${ofAnHour(name)},`;
  return (
    <figure class="line"><figcaption><b>{titleOf(name)}</b><span class="muted">{per} last {told(name, range.last)}, peak {told(name, range.high)}</span></figcaption>
      <canvas ref={ref} role="img" aria-label={`${titleOf(name)}: between ${told(name, range.low)} and ${told(name, range.high)}, last ${told(name, range.last)}.`} style={{ height: 76 }}
        onPointerMove={event => {
          const at = from + timeAt(axisFor(ref.current!.clientWidth), event.clientX - ref.current!.getBoundingClientRect().left) / NS;
          let best = -1;
          minutes.at_s.forEach((one, index) => { if (values[index] != null && (best < 0 || Math.abs(one - at) < Math.abs(minutes.at_s[best]! - at))) best = index; });
          if (best >= 0) tip.set({ x: event.clientX, y: event.clientY, lines: [told(name, values[best]), clockOf(minutes.at_s[best]!)] });
        }} onPointerLeave={() => tip.set(null)} /></figure>
  );
}

const CURVES: Record<Curve["of"], string> = { all: "all nodes", cohort: "nodes of the first cohort", elsewhere: "elsewhere" };

export function Survival({ curves }: { curves: Curve[] }) {
  const drawn = curves.filter(curve => curve.watched_hours > 0);
  return drawn.some(curve => curve.points.length > 0) ? <Curves drawn={drawn} /> : <p class="muted">No curve: too few boots were watched.</p>;
}

function Curves({ drawn }: { drawn: Curve[] }) {
  const palette = paletteOf(useTheme());
  const most = Math.max(24, ...drawn.map(curve => curve.watched_hours));
  const colour = (curve: Curve) => curve.of === "elsewhere" ? palette.user : palette.system;
  const { ref } = useCanvas((context, width, height) => {
    background(context, width, height, palette);
    const w = width - LEFT - RIGHT, bottom = height - 20, x = (hours: number) => LEFT + hours / most * w, y = (share: number) => bottom - share * (bottom - 8);
    context.fillStyle = css(palette.muted);
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      context.fillStyle = css(palette.line);
      context.fillRect(LEFT, Math.round(y(share)), w, 1);
      context.fillStyle = css(palette.muted);
      context.fillText(`${share * 100} %`, LEFT - 5, y(share));
    }
    context.textAlign = "center";
    const step = [1, 2, 5, 10, 20, 50].find(days => most / 24 / days <= 10) ?? 100;
    for (let day = 0; day * 24 <= most; day += step) context.fillText(day ? `${day} d` : "boot", Math.max(LEFT + 10, Math.min(x(day * 24), width - 16)), height - 8);
    context.textAlign = "left";
    for (const curve of drawn) {
      context.strokeStyle = css(colour(curve));
      context.lineWidth = 2;
      if (curve.of === "elsewhere") context.setLineDash([5, 3]);
      context.beginPath();
      context.moveTo(x(0), y(1));
      let last = 1;
      for (const point of curve.points) { context.lineTo(x(point.hours), y(last)); context.lineTo(x(point.hours), y(point.survival)); last = point.survival; }
      context.lineTo(x(curve.watched_hours), y(last));
      context.stroke();
      context.setLineDash([]);
    }
    context.lineWidth = 1;
  });
  // All at the same time, at which each of them was still watched.
  const hours = Math.min(...drawn.map(curve => curve.watched_hours));
  const share = (curve: Curve) => curve.points.filter(point => point.hours <= hours).at(-1)?.survival ?? 1;
  const text = (curve: Curve) => `${CURVES[curve.of]}: ${Math.round(share(curve) * 100)} % of ${curve.lives.toLocaleString("en")} boots without trouble after ${ago(hours * 3600)}`;
  return (
    <figure><figcaption><b>Boots without this trouble, by time since boot</b></figcaption>
      <canvas ref={ref} role="img" aria-label={drawn.map(text).join("; ")} style={{ height: 190 }} />
      <ul class="plain small">{drawn.map(curve => <li key={curve.of}><span class="legend"><i aria-hidden="true" style={{ background: css(colour(curve)) }} /></span>{text(curve)}</li>)}</ul></figure>
  );
}

// Nodes as points, their growth as a short line.
export function Scatter({ points }: { points: Points }) {
  const shown = useMemo(() => shownPoints(points), [points]);
  return shown.points.length ? <Cloud points={points} shown={shown} /> : <p class="muted">No node tells its uptime and its {titleOf(points.number)}.</p>;
}

function Cloud({ points, shown }: { points: Points; shown: Shown }) {
  const theme = useTheme(), palette = paletteOf(theme);
  const { mostHours, most } = shown;
  const box = (width: number, height: number) => ({ left: LEFT, top: 8, width: Math.max(1, width - LEFT - RIGHT), height: height - 28 });
  const [fewer, sick] = [mix(palette.panel, palette.other, 0.75), SEVERITIES[theme][3]!];
  const { ref } = useCanvas((context, width, height) => {
    background(context, width, height, palette);
    const area = box(width, height), x = (hours: number) => area.left + hours / mostHours * area.width, y = (value: number) => area.top + (1 - value / most) * area.height;
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) {
      context.fillStyle = css(palette.line);
      context.fillRect(area.left, Math.round(y(most * share)), area.width, 1);
      context.fillStyle = css(palette.muted);
      context.fillText(told(points.number, Math.round(most * share), true), LEFT - 5, y(most * share));
    }
    context.textAlign = "center";
    const days = mostHours / 24, step = [0.25, 0.5, 1, 2, 5, 10, 20, 50, 100].find(step => days / step <= Math.max(2, area.width / 70)) ?? 200;
    for (let day = 0; day <= days; day += step) context.fillText(day ? `${day} d` : "boot", Math.max(area.left + 10, x(day * 24)), height - 8);
    context.textAlign = "left";
    context.save();
    context.beginPath();
    context.rect(area.left, 0, area.width + RIGHT, area.top + area.height + 2);
    context.clip();
    for (const isSick of [false, true]) {
      context.fillStyle = context.strokeStyle = css(isSick ? sick : fewer);
      context.globalAlpha = isSick ? 0.85 : 0.7;
      context.beginPath();
      for (const point of shown.points) {
        if (point.sick !== isSick) continue;
        context.fillRect(x(point.hours) - 1.5, y(point.value) - 1.5, 3, 3);
        // Where it was a few hours ago, at this growth.
        const back = Math.min(mostHours / 25, point.hours);
        if (point.growth) { context.moveTo(x(point.hours), y(point.value)); context.lineTo(x(point.hours - back), y(point.value - point.growth * back)); }
      }
      context.lineWidth = 0.8;
      context.stroke();
    }
    context.restore();
    context.globalAlpha = 1;
    context.lineWidth = 1;
  });
  const find = (event: MouseEvent) => {
    const canvas = ref.current!.getBoundingClientRect(), area = box(canvas.width, canvas.height);
    return nearest(shown.points, point => [area.left + point.hours / mostHours * area.width, area.top + (1 - point.value / most) * area.height], event.clientX - canvas.left, event.clientY - canvas.top);
  };
  const growth = (of: number | null) => of === null ? "unknown (under three hours)" : `${of.toLocaleString("en", { maximumFractionDigits: of < 10 ? 1 : 0 })} an hour`;
  return (
    <figure><figcaption><b>Uptime and {titleOf(points.number)}</b> <span class="muted">a point is a node, its line the growth of the last {points.slope_hours} h</span></figcaption>
      <canvas ref={ref} role="img" aria-label={`${shown.points.length} nodes by uptime and ${titleOf(points.number)}; at most ${told(points.number, most)}. Median growth: sick ${growth(shown.sickGrowth)}, others ${growth(shown.otherGrowth)}.`} style={{ height: 230, cursor: "pointer" }}
        onPointerMove={event => { const point = find(event); tip.set(point ? { x: event.clientX, y: event.clientY, lines: [plain(point.node), `up ${ago(point.hours * 3600)}`, `${titleOf(points.number)}: ${told(points.number, point.value)}`, `growth: ${growth(point.growth)}`] } : null); }}
        onPointerLeave={() => tip.set(null)} onClick={event => { const point = find(event); if (point) update({ node: point.node }); }} />
      <ul class="plain small"><li><span class="legend"><i aria-hidden="true" style={{ background: css(sick) }} /></span>with this problem: median growth {growth(shown.sickGrowth)}</li><li><span class="legend"><i aria-hidden="true" style={{ background: css(fewer) }} /></span>others: {growth(shown.otherGrowth)}</li></ul></figure>
  );
}
