// A view of which the source has nothing: why, and what to do to have it the next time.
import { NoSamples } from "../cores/view.tsx";
import type { Source } from "../api/types.ts";
import type { View } from "../state.ts";
import { Command } from "./parts.tsx";

export function Nothing({ view, source }: { view: View; source: Source }) {
  if (view === "profile") return <NoSamples />;
  if (view === "incidents") return <NoIncident source={source} />;
  return (
    <section class="panel calm"><h2>{view === "units" ? "No units" : "No dead cgroups"} in a CPU profile</h2>
      <p>A profile has stacks and nothing else of the node. On the node, {view === "units" ? <Command text="coroner units" /> : <Command text="coroner zombies" />} tells now; <Command text="coroner record --for 30s -o node.coroner" /> takes it along, and <Command text="coroner view node.coroner" /> shows it here.</p></section>
  );
}

export const NoIncident = ({ source }: { source: Source }) => (
  <section class="panel calm"><h2>No incident</h2>
    {source.kind === "recorder" || source.kind === "directory"
      ? <p>The flight recorder freezes one when a NIC is reset, a core is full in the kernel, packets are dropped, something is killed or begins to crashloop; none of this was seen. By hand: <Command text={'coroner mark "what happened"'} /></p>
      : <p>Incidents are kept by the flight recorder, in its directory; this is {source.kind === "profile" ? "a CPU profile" : "one recording"}. Start it with <Command text="coroner record --dir DIR" /> (it freezes one when a NIC is reset, a core is full in the kernel, something is killed or begins to crashloop), and open <Command text="coroner view DIR" /></p>}
  </section>
);
