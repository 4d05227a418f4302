// The keys.
import { useEffect, useRef } from "preact/hooks";
import type { Source } from "../api/types.ts";
import { hasRest } from "../flame/query.ts";
import { turn } from "../paint/theme.ts";
import { now, update, VIEWS, type Range } from "../state.ts";
import { moved, zoomed } from "../time/axis.ts";
import { show } from "../time/gestures.ts";

export const KEYS: [string, string][] = [
  ["1 … 7", "Overview, Cores, Waits, Profile, Zombies, Units, Incidents"],
  ["drag", "select a time range; in Cores also cores; in Profile with Alt: the same part of each second"],
  ["z", "zoom the axis to the selection (or a double click)"],
  ["Ctrl + wheel, + −", "zoom in and out"],
  ["Shift + wheel, ← →", "move in time"],
  ["0", "the whole recording"],
  ["Esc", "clear the selection"],
  ["o", "colour cores by kind or by owner"],
  ["a", "show all: quiet cores, flat counters, unremarkable units, small losses"],
  ["/", "search the flame graph; Enter: next match"],
  ["i", "invert the flame graph"],
  ["d", "compare the selection with the rest"],
  ["click, Enter", "in the flame graph: zoom into a frame; Backspace: out"],
  ["↑ ↓ ← →, w a s d", "in the flame graph: move between frames; zoom and pan"],
  ["t", "dark or light"],
  ["?", "this list"],
];

export function useKeys(source: Source | null, range: Range, whole: Range, help: () => void): void {
  const last = useRef({ source, range, whole, help });
  last.current = { source, range, whole, help };
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      const { range, whole, source } = last.current, state = now(), middle = (range.from + range.to) / 2;
      const view = VIEWS[Number(event.key) - 1];
      if (/^[1-7]$/.test(event.key) && view) update({ view });
      else if (event.key === "?") last.current.help();
      else if (event.key === "/") document.getElementById("search")?.focus();
      else if (event.key === "z" && state.selection) update({ range: state.selection });
      else if (event.key === "0") update({ range: null });
      else if (event.key === "+" || event.key === "=") show(zoomed(range, whole, middle, 0.6), whole);
      else if (event.key === "-") show(zoomed(range, whole, middle, 1 / 0.6), whole);
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") { if (target.closest("[role=tablist],[role=radiogroup]")) return; show(moved(range, whole, event.key === "ArrowLeft" ? -0.2 : 0.2), whole); }
      else if (event.key === "o") update({ coresBy: state.coresBy === "kind" ? "owner" : "kind" }, true);
      else if (event.key === "a") update({ all: !state.all }, true);
      else if (event.key === "i") update({ inverted: !state.inverted });
      else if (event.key === "d" && source?.has.samples && hasRest(state)) update({ base: state.base === "rest" ? null : "rest" });
      else if (event.key === "t") turn();
      else if (event.key === "Escape") { if (document.querySelector("dialog[open]")) return; update({ selection: null, band: null, base: null, zoom: 0 }); }
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
