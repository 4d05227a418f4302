// The keys of the fleet's page.
import { useEffect, useRef } from "preact/hooks";
import { turn } from "../paint/theme.ts";
import { momentOf, type Times } from "./slider.tsx";
import { now, update } from "./state.ts";
import type { FleetMap } from "./types.ts";
import { NUMBERS } from "./words.ts";

export const KEYS: [string, string][] = [
  ["l", "live: the fleet as it is now"],
  ["← →", "an hour back or forward; with Shift a minute"],
  ["j, k", "the next or previous problem"],
  ["g", "group by the next attribute; with Shift the previous"],
  ["c", "colour by the worst problem, uptime, dead cgroups, busy"],
  ["s", "the worst nodes of a group first, or by name"],
  ["/", "find nodes: part of a name, or zone=us-east-1a"],
  ["← ↑ ↓ →, Enter", "on the map: move between nodes; open one"],
  ["Home, End", "on the time strip: the oldest moment; live"],
  ["1 … 2", "Map, Incidents"],
  ["Esc", "close the node, then the problem, then clear the search"],
  ["t", "dark or light"],
  ["?", "this list"],
];
const COLOURS = ["problem", "up", ...Object.keys(NUMBERS).slice(0, 2)];

const after = <T,>(list: T[], current: T, by: number): T | undefined => list[(list.indexOf(current) + by + list.length) % list.length];

export function useKeys(map: FleetMap | null, times: Times | null, help: () => void): void {
  const last = useRef({ map, times, help });
  last.current = { map, times, help };
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || document.querySelector("dialog[open]")) return;
      const { map, times } = last.current, state = now();
      const step = (seconds: number) => { if (times) update({ at: momentOf((state.at ?? times.until) + seconds, times) }); };
      if (event.key === "?") last.current.help();
      else if (event.key === "t") turn();
      else if (event.key === "l") update({ at: null });
      else if (event.key === "1") update({ view: "map" });
      else if (event.key === "2") update({ view: "incidents" });
      else if (event.key === "/") document.getElementById("find")?.focus();
      else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        if (target.closest("[role=tablist],[role=radiogroup]")) return;
        step((event.key === "ArrowLeft" ? -1 : 1) * (event.shiftKey ? 60 : 3600));
      } else if ((event.key === "j" || event.key === "k") && map?.problems.length) {
        const keys = ["", ...map.problems.map(problem => problem.key)];
        update({ problem: after(keys, state.problem, event.key === "j" ? 1 : -1) ?? "" });
      } else if ((event.key === "g" || event.key === "G") && map) update({ by: after(["", ...map.attributes.filter(one => one.values.length > 1).map(one => one.name)], state.by, event.key === "g" ? 1 : -1) ?? "" });
      else if (event.key === "c") update({ colour: after(COLOURS, state.colour, 1)! });
      else if (event.key === "s") update({ worst: !state.worst }, true);
      else if (event.key === "Escape") update(state.node ? { node: "" } : state.problem ? { problem: "" } : { find: "" });
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
}
