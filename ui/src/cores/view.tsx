// Cores, the timeline below them on the same axis, and the flame graph of the selection.
import { address, useApi } from "../api/fetch.ts";
import type { CoreGrid, Source, Timeline } from "../api/types.ts";
import { FlamePane } from "../flame/pane.tsx";
import { Failure, Waiting } from "../shell/parts.tsx";
import { update, type Range, type State } from "../state.ts";
import { duration } from "../time/axis.ts";
import { TimelineView } from "../timeline/view.tsx";
import { CoresHeatmap } from "./heatmap.tsx";
import { CoresLegend } from "./legend.tsx";
import { Holders } from "./holders.tsx";

interface Props { source: Source; state: State; whole: Range; range: Range; generation: number }

// As many columns as pixels, rounded: otherwise every pixel of a resize would send a request.
export const columnsFor = (width: number): number => Math.min(2400, Math.max(400, Math.round((width - 220) / 200) * 200));

export function CoresView({ source, state, whole, range, generation }: Props) {
  const asked = { from: range.from, to: range.to, columns: columnsFor(innerWidth) };
  const grid = useApi<CoreGrid>(address("cores", { ...asked, owners: state.coresBy === "owner" ? 1 : undefined }), 90, generation);
  const timeline = useApi<Timeline>(source.has.evidence ? address("timeline", asked) : null, 90, generation);
  return (
    <>
      <section class="panel" aria-label="Cores over time" aria-busy={grid.loading}>
        <header class="bar"><h2>Cores</h2><span class="about">{grid.data ? `${grid.data.cores.length} cores, the worst first · each column ${duration(grid.data.step_ns)}${grid.data.source === "samples" ? ", from samples" : ""}` : ""}</span><span class="grow" />
          <CoresLegend grid={grid.data} state={state} />
          {(grid.data?.cores.length ?? 0) > 8 && <button aria-pressed={state.all} onClick={() => update({ all: !state.all }, true)} title="Also show quiet cores and flat counters (a)">Show all</button>}
        </header>
        {grid.error ? <Failure error={grid.error} /> : grid.data ? <CoresHeatmap grid={grid.data} source={source} state={state} range={range} whole={whole} /> : <Waiting what="Reading cores" tall />}
        <OwnersNote grid={grid.data} state={state} />
        {timeline.error ? <Failure error={timeline.error} /> : timeline.data && <TimelineView timeline={timeline.data} source={source} state={state} range={range} whole={whole} />}
      </section>
      {grid.data && <Holders grid={grid.data} state={state} />}
      {source.has.samples ? <FlamePane source={source} state={state} generation={generation} /> : <NoSamples />}
    </>
  );
}

// For long times only some samples, or none, are read to name owners.
export function OwnersNote({ grid, state }: { grid: CoreGrid | null; state: State }) {
  const part = grid?.owner_part ?? 1;
  if (part >= 1) return null;
  if (!grid!.owner_source) return <p class="note">Owners are not computed for such a long time: zoom in, or <button class="link" onClick={() => update({ coresBy: "owner" }, true)}>read 1/{Math.round(1 / part)} of the samples</button>.</p>;
  return <p class="note">{state.coresBy === "owner" ? "Owners are" : "Owners of cores are"} based on 1/{Math.round(1 / part)} of the samples, so some columns have none. Choose a shorter time to use all samples.</p>;
}

export const NoSamples = () => <section class="panel small"><h2>No stack samples</h2><p class="muted">This recording has counters and events but no stacks, so there is no flame graph. <code>coroner record</code> samples stacks unless <code>--rate 0</code> is given or the kernel does not allow it; <code>perf record -F 999 -a -g</code> files also open here.</p></section>;
