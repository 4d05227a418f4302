// Profile: FlameScope's view, filters, and the flame graph of the selection.
import { address, useApi } from "../api/fetch.ts";
import type { OffsetHeatmap, Owners, Source } from "../api/types.ts";
import { NoSamples } from "../cores/view.tsx";
import { FlamePane } from "../flame/pane.tsx";
import { Failure, Waiting } from "../shell/parts.tsx";
import { FILTERS, now, update, type Filters, type Range, type State } from "../state.ts";
import { duration } from "../time/axis.ts";
import { longestOf } from "./cells.ts";
import { MonopoliesView } from "./monopolies.tsx";
import { ScopeView } from "./view.tsx";

interface Props { source: Source; state: State; whole: Range; range: Range; generation: number }

export function ProfileView({ source, state, whole, range, generation }: Props) {
  const longest = longestOf(source), long = range.to - range.from > longest;
  const shown = long ? { from: range.to - longest, to: range.to } : range;
  const map = useApi<OffsetHeatmap>(source.has.samples ? address("heatmap", { by: "offset", rows: 50, from: shown.from, to: shown.to, ...state.filters }) : null, 60, generation);
  if (!source.has.samples) return <NoSamples />;
  return (
    <>
      <section class="panel" aria-label="FlameScope view" aria-busy={map.loading}>
        <header class="bar"><h2>Seconds</h2><span class="about">one column per second, bottom to top</span><span class="grow" /><FilterBar state={state} generation={generation} /></header>
        {long && <p class="note">Only the last {duration(longest)} of {duration(range.to - range.from)} are shown; zoom the time axis to see the rest.</p>}
        {map.error ? <Failure error={map.error} /> : map.data ? <ScopeView map={map.data} source={source} state={state} whole={whole} /> : <Waiting what="Reading samples" tall />}
      </section>
      <FlamePane source={source} state={state} generation={generation} />
      <MonopoliesView source={source} range={shown} whole={whole} generation={generation} />
    </>
  );
}

const TITLES: Record<typeof FILTERS[number], string> = { core: "core", comm: "command", pid: "process", tid: "thread", cgroup: "cgroup", symbol: "function", event: "event" };
const EXAMPLES: Record<string, string> = { core: "0-3,7", comm: "kubelet", cgroup: "/kubepods", symbol: "shrink_node" };

function FilterBar({ state, generation }: { state: State; generation: number }) {
  const range = state.selection ?? state.range;
  const owners = useApi<Owners>(address("owners", { from: range?.from, to: range?.to }), 400, generation);
  const set = (name: keyof Filters, value: string) => {
    const { [name]: _, ...others } = now().filters;
    update({ filters: value.trim() ? { ...others, [name]: value.trim() } : others });
  };
  return (
    <span class="filters" role="group" aria-label="Filters">
      {(["core", "comm", "cgroup", "symbol"] as const).map(name => <label key={name}><span>{TITLES[name]}</span>
        <input value={state.filters[name] ?? ""} placeholder={EXAMPLES[name]} list={`list-${name}`} spellcheck={false} size={name === "core" ? 6 : 13} onChange={event => set(name, event.currentTarget.value)} onKeyDown={event => { if (event.key === "Enter") set(name, event.currentTarget.value); }} /></label>)}
      <datalist id="list-comm">{owners.data?.comms.slice(0, 50).map(one => <option key={one.comm} value={one.comm}>{Math.round(one.share * 100)} %</option>)}</datalist>
      <datalist id="list-cgroup">{owners.data?.cgroups.slice(0, 50).map(one => <option key={one.cgroup} value={one.cgroup} />)}</datalist>
    </span>
  );
}
