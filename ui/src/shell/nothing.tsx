// A view for which the source has no data: why, and how to get it.
import { NoSamples } from "../cores/view.tsx";
import type { Source } from "../api/types.ts";
import type { View } from "../state.ts";
import { Command } from "./parts.tsx";

export function Nothing({ view, source }: { view: View; source: Source }) {
  if (view === "profile") return <NoSamples />;
  if (view === "incidents") return <NoIncident source={source} />;
  return (
    <section class="panel calm"><h2>{view === "units" ? "No units" : view === "waits" ? "No wait ledger" : "No dead cgroups"} in a CPU profile</h2>
      <p>A profile has stacks but nothing else about the node. On the node, <Command text={`coroner ${view}`} /> shows them now; <Command text="coroner record --for 30s -o node.coroner" /> records them, and <Command text="coroner view node.coroner" /> shows them here.</p></section>
  );
}

export const NoIncident = ({ source }: { source: Source }) => (
  <section class="panel calm"><h2>No incident</h2>
    {source.kind === "recorder" || source.kind === "directory"
      ? <p>The flight recorder freezes one when a NIC is reset, a core is stuck in the kernel, somebody is kept off a core, packets are dropped, a process is OOM-killed or a unit begins to crashloop; none of these happened. To freeze one by hand: <Command text={'coroner mark "what happened"'} /></p>
      : <p>Incidents are kept by the flight recorder, in its directory; this is {source.kind === "profile" ? "a CPU profile" : "one recording"}. Start it with <Command text="coroner record --dir DIR" /> (it freezes one when a NIC is reset, a core is stuck in the kernel, a process is OOM-killed or a unit begins to crashloop), and open <Command text="coroner view DIR" /></p>}
  </section>
);
