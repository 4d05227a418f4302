// The time axis: positions, tick marks and formatting of times. In nanoseconds after the start of the source.
import type { Range } from "../state.ts";

export const MS = 1e6;
export const SECOND = 1e9;
const MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;
// The fastest samples are a millisecond apart, so nothing finer can be shown.
export const SHORTEST = 20 * MS;

export interface Axis extends Range { left: number; width: number }

export const place = (axis: Axis, at: number): number => axis.left + (at - axis.from) / (axis.to - axis.from) * axis.width;
export const timeAt = (axis: Axis, x: number): number => axis.from + (x - axis.left) / axis.width * (axis.to - axis.from);

const STEPS = [
  MS / 1000, MS / 500, MS / 200, MS / 100, MS / 50, MS / 20, MS / 10, MS / 5, MS / 2, MS, 2 * MS, 5 * MS, 10 * MS, 20 * MS, 50 * MS, 100 * MS, 200 * MS, 500 * MS, SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 15 * SECOND,
  30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY,
];

// Marks at round wall-clock times if known (`epoch`: ns of the day at the start of the source), else round source times.
export function marks(axis: Axis, epoch: number | null, apart = 110): { at: number; step: number }[] {
  const most = Math.max(1, Math.floor(axis.width / apart));
  const length = axis.to - axis.from;
  const step = STEPS.find(step => length / step <= most) ?? Math.ceil(length / most / DAY) * DAY;
  const shift = (epoch ?? 0) % step;
  const out = [];
  for (let at = Math.ceil((axis.from + shift) / step) * step - shift; at <= axis.to && out.length < 200; at += step) out.push({ at, step });
  return out;
}

const two = (n: number) => String(n).padStart(2, "0");

// The start of the source: nanoseconds since midnight UTC, and the day.
export function midnight(start: string | null): { epoch: number; day: number } | null {
  if (!start) return null;
  const ms = Date.parse(start);
  if (Number.isNaN(ms)) return null;
  const fraction = /\.(\d{1,9})/.exec(start);
  const ns = fraction ? Number(fraction[1]!.padEnd(9, "0")) % 1e6 : 0;
  const day = Math.floor(ms / 86_400_000);
  return { epoch: (ms - day * 86_400_000) * 1e6 + ns, day };
}

const digits = (step: number) => step >= SECOND ? 0 : step >= 100 * MS ? 1 : step >= 10 * MS ? 2 : step >= MS ? 3 : 6;

// A time of day (UTC), or seconds after the start if the wall clock is unknown.
export function clock(at: number, start: string | null, step: number): string {
  const zero = midnight(start);
  if (!zero) return elapsed(at, step);
  const places = digits(step);
  const unit = 10 ** (9 - places);
  let ns = Math.round((zero.epoch + at) / unit) * unit;
  const days = Math.floor(ns / DAY);
  ns -= days * DAY;
  const s = Math.floor(ns / SECOND);
  const time = step >= MINUTE ? `${two(Math.floor(s / 3600))}:${two(Math.floor(s / 60) % 60)}` : `${two(Math.floor(s / 3600))}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
  const fraction = places ? "." + String(Math.round(ns % SECOND / unit)).padStart(places, "0") : "";
  if (step >= DAY) return new Date((zero.day + days) * 86_400_000).toISOString().slice(5, 10);
  return time + fraction;
}

export function elapsed(at: number, step: number): string {
  const sign = at < 0 ? "−" : "";
  const s = Math.abs(at) / SECOND;
  if (s < 60 || step < SECOND) return `${sign}${s.toFixed(digits(step))} s`;
  const whole = Math.round(s);
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)}:${two(whole % 60)}`;
  return `${sign}${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
}

export function duration(ns: number): string {
  const s = ns / SECOND;
  if (s < 0.001) return `${Math.round(ns / 1000)} µs`;
  if (s < 0.0995) return `${trim(ns / MS, s < 0.00995 ? 1 : 0)} ms`;
  if (s < 1) return `${Math.round(ns / MS)} ms`;
  if (s < 10) return `${trim(s, 2)} s`;
  if (s < 120) return `${trim(s, 1)} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min${Math.round(s % 60) && s < 1800 ? ` ${Math.round(s % 60)} s` : ""}`;
  if (s < 172_800) return `${Math.floor(s / 3600)} h${Math.floor(s / 60) % 60 ? ` ${Math.floor(s / 60) % 60} min` : ""}`;
  return `${trim(s / 86_400, 1)} days`;
}
const trim = (value: number, places: number) => value.toFixed(places).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");

// Zooms around a point, within the source, and not below SHORTEST.
export function zoomed(range: Range, whole: Range, at: number, factor: number): Range {
  const length = Math.min(Math.max((range.to - range.from) * factor, SHORTEST), whole.to - whole.from);
  const share = (at - range.from) / (range.to - range.from);
  return within({ from: at - share * length, to: at + (1 - share) * length }, whole);
}
export function within(range: Range, whole: Range): Range {
  const length = Math.min(range.to - range.from, whole.to - whole.from);
  const from = Math.min(Math.max(range.from, whole.from), whole.to - length);
  return { from: Math.round(from), to: Math.round(from + length) };
}
export const moved = (range: Range, whole: Range, share: number): Range => {
  const by = (range.to - range.from) * share;
  return within({ from: range.from + by, to: range.to + by }, whole);
};
export const same = (a: Range | null, b: Range | null): boolean => a === b || (!!a && !!b && a.from === b.from && a.to === b.to);

// Converts wall-clock text to the axis.
export function onAxis(time: string | null | undefined, start: string | null): number | null {
  if (!time || !start) return null;
  const [a, b] = [Date.parse(time), Date.parse(start)];
  return Number.isNaN(a) || Number.isNaN(b) ? null : (a - b) * 1e6;
}
