// The state of the fleet's page.
import { inAddress } from "../kept.ts";
import { NUMBERS } from "./words.ts";

export const VIEWS = ["map", "incidents"] as const;
export type View = typeof VIEWS[number];
export const SPANS = ["day", "week", "quarter"] as const;
export type Span = typeof SPANS[number];

export interface State {
  view: View;
  at: number | null;          // seconds since 1970; null: now, live
  by: string;                 // the attribute that groups; empty: one group
  colour: string;             // "problem", "up" or the name of a number
  find: string;               // only nodes that match
  worst: boolean;             // within a group, the worst first instead of by name
  problem: string;            // the key of the problem that is open
  node: string;               // the node whose drawer is open
  span: Span;                 // of the drawer's charts
}

export const START: State = { view: "map", at: null, by: "", colour: "problem", find: "", worst: false, problem: "", node: "", span: "day" };
const LONGEST = 1100;

export function write(state: State): string {
  const out: [string, string][] = [["v", state.view]];
  const put = (name: string, value: string | null | false) => { if (value) out.push([name, value]); };
  put("at", state.at !== null && String(state.at));
  put("by", state.by);
  put("colour", state.colour !== "problem" && state.colour);
  put("find", state.find);
  put("worst", state.worst && "1");
  put("problem", state.problem);
  put("node", state.node);
  put("span", state.span !== "day" && state.span);
  return "#" + out.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join("&");
}

// A URL can contain anything: invalid values are ignored.
export function read(hash: string): State {
  const values = new URLSearchParams(hash.replace(/^#/, ""));
  const text = (name: string) => { const value = values.get(name) ?? ""; return value.length <= LONGEST ? value : ""; };
  const at = values.get("at") ?? "";
  return {
    view: VIEWS.find(view => view === values.get("v")) ?? "map", at: /^\d{1,10}$/.test(at) && Number(at) < 2 ** 32 ? Number(at) : null, by: text("by"),
    colour: text("colour") === "up" || NUMBERS[text("colour")] ? text("colour") : "problem", find: text("find"), worst: values.get("worst") === "1", problem: text("problem"), node: text("node"),
    span: SPANS.find(span => span === values.get("span")) ?? "day",
  };
}

export const { start, now, update, useNow } = inAddress(START, read, write, (state, patch) => ({ ...state, ...patch }));
