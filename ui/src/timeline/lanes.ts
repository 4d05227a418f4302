// The lanes of the timeline: one per kind of event, one per series. Pure.
import type { Column, Series, Timeline, TimelineEvent } from "../api/types.ts";

export interface EventLane { kind: string; title: string; events: TimelineEvent[]; worst: string }

// Incidents first, then by severity.
const ORDER = ["incident", "mark", "nic-reset", "lockup", "oom-kill", "unit-restart", "gap", "log"];
const TITLES: Record<string, string> = {
  incident: "incidents", mark: "marks", "nic-reset": "NIC resets", lockup: "lockups, stalls", "oom-kill": "OOM kills", "unit-restart": "unit restarts (log)", log: "kernel log", gap: "not recorded",
};
const RANK: Record<string, number> = { critical: 3, warning: 2, info: 1 };

export function eventLanes(events: TimelineEvent[]): EventLane[] {
  const lanes = new Map<string, EventLane>();
  for (const event of events) {
    const lane = lanes.get(event.kind) ?? { kind: event.kind, title: TITLES[event.kind] ?? event.kind.replace(/-/g, " "), events: [], worst: "info" };
    lane.events.push(event);
    if ((RANK[event.severity] ?? 0) > (RANK[lane.worst] ?? 0)) lane.worst = event.severity;
    lanes.set(event.kind, lane);
  }
  const rank = (lane: EventLane) => { const at = ORDER.indexOf(lane.kind); return at < 0 ? ORDER.length : at; };
  for (const lane of lanes.values()) lane.events.sort((a, b) => a.at - b.at);
  return [...lanes.values()].sort((a, b) => rank(a) - rank(b) || a.title.localeCompare(b.title));
}

export const top = (values: Column): number | null => {
  let most: number | null = null;
  for (const value of values) if (value !== null && (most === null || value > most)) most = value;
  return most;
};

// Series that also have events. One lane is enough, unless more was counted than there are events.
const TOLD_BY: Record<string, string> = { "unit-restarts": "unit-restart", "nic-resets": "nic-reset", "oom-kills": "oom-kill" };
export function isToldByEvents(series: Series, events: TimelineEvent[]): boolean {
  const told = events.filter(event => event.kind === TOLD_BY[series.id]).length;
  return told > 0 && told >= series.values.reduce<number>((sum, value) => sum + (value ?? 0), 0);
}

// Calm series are always zero. Series never seen are left out too, but named.
export function seriesLanes(timeline: Timeline, all: boolean): { shown: Series[]; calm: Series[]; unseen: Series[] } {
  const unseen = timeline.series.filter(series => top(series.values) === null);
  const calm = all ? [] : timeline.series.filter(series => top(series.values) === 0);
  const shown = timeline.series.filter(series => !unseen.includes(series) && !calm.includes(series) && !isToldByEvents(series, timeline.events));
  return { shown, calm, unseen };
}

const trim = (value: number) => value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en") : value >= 10 ? value.toFixed(1) : value.toPrecision(2);

export function told(value: number | null, unit: string): string {
  if (value === null) return "not seen";
  if (unit === "ns") return value >= 1e9 ? `${trim(value / 1e9)} s` : value >= 1e6 ? `${trim(value / 1e6)} ms` : `${trim(value / 1e3)} µs`;
  if (unit === "us" || unit === "µs") return told(value * 1000, "ns");
  if (unit === "ms") return told(value * 1e6, "ns");
  if (unit === "s") return told(value * 1e9, "ns");
  if (unit === "bytes" || unit === "B") {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0, left = value;
    while (left >= 1024 && at < units.length - 1) { left /= 1024; at++; }
    return `${trim(left)} ${units[at]}`;
  }
  return unit ? `${trim(value)} ${unit}` : trim(value);
}

// A level is polled now and then: values at the usual distance are joined, a longer gap separates them.
export function stretches(values: Column): [number, number][][] {
  const known: [number, number][] = [];
  values.forEach((value, column) => { if (value !== null) known.push([column, value]); });
  const apart = known.slice(1).map(([column], at) => column - known[at]![0]).sort((a, b) => a - b);
  const usual = apart[Math.floor((apart.length - 1) / 2)] ?? 1;
  const out: [number, number][][] = [];
  for (const one of known) {
    const last = out[out.length - 1];
    if (last && one[0] - last[last.length - 1]![0] <= usual * 2) last.push(one); else out.push([one]);
  }
  return out;
}

// The events near a time, nearest first.
export function near(lane: EventLane, at: number, reach: number): TimelineEvent[] {
  return lane.events.filter(event => Math.abs(event.at - at) <= Math.max(reach, 0)).sort((a, b) => Math.abs(a.at - at) - Math.abs(b.at - at));
}

export function summary(lanes: EventLane[], shown: Series[]): string {
  const events = lanes.map(lane => `${lane.events.length} ${lane.title}`).join(", ") || "no events";
  const series = shown.map(one => `${one.title} at most ${told(top(one.values), one.unit)}`).join("; ");
  return `Timeline: ${events}.${series ? ` ${series}.` : ""}`;
}
