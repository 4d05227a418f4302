// The selection as query parameters. Pure.
import type { Parameters } from "../api/fetch.ts";
import type { Range, State } from "../state.ts";

const milliseconds = (ns: number) => `${Number((ns / 1e6).toFixed(3))}ms`;
export const bandText = (band: Range): string => `${milliseconds(band.from)}..${milliseconds(band.to)}`;

// The flame graph shows the selection; without one, the visible range.
export function selected(state: State): Parameters {
  const range = state.selection ?? state.range;
  return { from: range?.from, to: range?.to, band: state.band ? bandText(state.band) : undefined, ...state.filters };
}

export function compared(state: State): Parameters {
  if (state.base === "rest") return { ...selected(state), base: "rest", invert: state.inverted ? 1 : undefined };
  return { ...selected(state), base_from: state.base?.from, base_to: state.base?.to, invert: state.inverted ? 1 : undefined };
}

// There is a rest only if the selection is not everything.
export const hasRest = (state: State): boolean => !!(state.selection ?? state.range ?? state.band);

export const FORMATS = [
  ["svg", "SVG", "one file for any browser, with zoom and search"],
  ["folded", "folded stacks", "one line per stack: for flamegraph.pl, inferno, diff"],
  ["pprof", "pprof", "for go tool pprof and Pyroscope"],
  ["speedscope", "speedscope", "for speedscope.app"],
  ["coroner", "recording", "small; every coroner command opens it"],
] as const;
