// The state of the page.
import { inAddress } from "./kept.ts";

export const VIEWS = ["overview", "cores", "waits", "profile", "zombies", "units", "incidents"] as const;
export type View = typeof VIEWS[number];
export interface Range { from: number; to: number }
export const WAITS_BY = ["process", "thread", "cgroup", "unit", "pod"] as const;

export const FILTERS = ["core", "comm", "pid", "tid", "cgroup", "symbol", "event"] as const;
export type Filters = Partial<Record<typeof FILTERS[number], string>>;

export interface State {
  view: View;
  range: Range | null;            // the visible range; null: everything
  selection: Range | null;        // the selection, shown by flame graph and lists
  band: Range | null;             // part of each second, in ns
  base: "rest" | Range | null;    // what the selection is compared with
  filters: Filters;
  search: string;
  inverted: boolean;
  coresBy: "kind" | "owner";
  flameBy: "place" | "language";
  waitsBy: typeof WAITS_BY[number];
  zoom: number;                   // the frame that fills the flame graph
  shown: string;                  // the finding, link or waiter whose evidence is open
  incident: number | null;
  all: boolean;                   // also quiet cores, flat series and unremarkable units
}

export const START: State = {
  view: "overview", range: null, selection: null, band: null, base: null, filters: {}, search: "", inverted: false, coresBy: "kind",
  flameBy: "place", waitsBy: "process", zoom: 0, shown: "", incident: null, all: false,
};

// Seconds with as many digits as whole nanoseconds need.
function seconds(ns: number): string {
  const text = (ns / 1e9).toFixed(9).replace(/\.?0+$/, "");
  return text === "-0" ? "0" : text;
}
const span = (range: Range) => `${seconds(range.from)}..${seconds(range.to)}`;

function readSpan(text: string | null): Range | null {
  const parts = (text ?? "").split("..");
  if (parts.length !== 2 || parts.some(part => !/^-?\d{1,12}(\.\d{1,9})?$/.test(part))) return null;
  const [from, to] = parts.map(part => Math.round(Number(part) * 1e9));
  return from! < to! ? { from: from!, to: to! } : null;
}

export function write(state: State): string {
  const out: [string, string][] = [["v", state.view]];
  const put = (name: string, value: string | null | false) => { if (value) out.push([name, value]); };
  put("t", state.range && span(state.range));
  put("sel", state.selection && span(state.selection));
  put("band", state.band && span(state.band));
  put("base", state.base === "rest" ? "rest" : state.base && span(state.base));
  for (const name of FILTERS) put(name, state.filters[name] ?? null);
  put("q", state.search);
  put("inv", state.inverted && "1");
  put("by", state.coresBy === "owner" && "owner");
  put("colour", state.flameBy === "language" && "language");
  put("per", state.waitsBy !== "process" && state.waitsBy);
  put("z", state.zoom > 0 && String(state.zoom));
  put("show", state.shown);
  put("n", state.incident !== null && String(state.incident));
  put("all", state.all && "1");
  return "#" + out.map(([name, value]) => `${name}=${encodeURIComponent(value).replace(/%2C/g, ",")}`).join("&");
}

// A URL can contain anything: invalid values are ignored.
export function read(hash: string): State {
  let values: URLSearchParams;
  try { values = new URLSearchParams(hash.replace(/^#/, "")); } catch { return START; }
  const number = (name: string) => /^\d{1,9}$/.test(values.get(name) ?? "") ? Number(values.get(name)) : null;
  const view = VIEWS.find(view => view === values.get("v")) ?? "overview";
  const filters: Filters = {};
  for (const name of FILTERS) {
    const value = values.get(name);
    if (value && value.length <= 400) filters[name] = value;
  }
  const base = values.get("base");
  return {
    view, range: readSpan(values.get("t")), selection: readSpan(values.get("sel")), band: readSpan(values.get("band")),
    base: base === "rest" ? "rest" : readSpan(base), filters, search: (values.get("q") ?? "").slice(0, 400), inverted: values.get("inv") === "1",
    coresBy: values.get("by") === "owner" ? "owner" : "kind", flameBy: values.get("colour") === "language" ? "language" : "place",
    waitsBy: WAITS_BY.find(by => by === values.get("per")) ?? "process", zoom: number("z") ?? 0, shown: (values.get("show") ?? "").slice(0, 400), incident: number("n"), all: values.get("all") === "1",
  };
}

// Changes that give another flame graph, in which the zoomed frame no longer exists.
const REGRAPHS: (keyof State)[] = ["selection", "band", "base", "filters", "inverted"];

export function change(state: State, patch: Partial<State>): State {
  const next = { ...state, ...patch };
  if (patch.zoom === undefined && REGRAPHS.some(key => key in patch && JSON.stringify(patch[key]) !== JSON.stringify(state[key]))) next.zoom = 0;
  return next;
}

export const { start, now, update, useNow: useStateOfPage } = inAddress(START, read, write, change);
