// Threads that had a core to themselves: for a profile, the nearest thing to a verdict. A click selects the run.
import { address, useApi } from "../api/fetch.ts";
import type { Monopolies, Source } from "../api/types.ts";
import { ownerName } from "../cores/rows.ts";
import { css, ownerColour, ownerKey } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { Failure, Waiting } from "../shell/parts.tsx";
import { now, update, type Range } from "../state.ts";
import { clock, duration, MS } from "../time/axis.ts";

const SHOWN = 6;

export function MonopoliesView({ source, range, whole, generation }: { source: Source; range: Range; whole: Range; generation: number }) {
  const theme = useTheme();
  const { data, error } = useApi<Monopolies>(address("monopolies", { from: range.from, to: range.to, threshold: "100ms" }), 200, generation);
  // An empty selection is reported elsewhere on the page.
  if (error) return error.status === 404 ? null : <section class="panel small"><Failure error={error} /></section>;
  if (!data) return <section class="panel small"><Waiting what="Looking for threads that had a core to themselves" /></section>;
  const all = data.monopolies;
  return (
    <section class="panel small" aria-label="Threads that had a core to themselves">
      <header class="bar"><h2>{all.length ? "Had a core to itself" : "No thread had a core to itself for 100 ms"}{range.to - range.from < whole.to - whole.from && ` within ${duration(range.to - range.from)}`}</h2>{all.length > 0 && <span class="about">100 ms or longer, longest first{all.length > SHOWN ? `; ${all.length - SHOWN} more` : ""}</span>}</header>
      {all.length > 0 && <ul class="monopolies">{all.slice(0, SHOWN).map((one, at) => {
        const comm = one.thread?.comm ?? "interrupts", from = one.axis_ns, to = one.axis_ns + one.length_ms * MS;
        const leaf = one.stacks[0]?.frames[one.stacks[0].frames.length - 1];
        return <li key={at}><button class="row" onClick={() => update({ view: "profile", selection: { from: Math.max(whole.from, Math.round(from)), to: Math.min(whole.to, Math.round(to)) }, band: null, filters: { ...now().filters, core: String(one.core) } })}>
          <i style={{ background: css(ownerColour(ownerKey(comm), theme)) }} /><b class="amount">{duration(one.length_ms * MS)}</b><span>core {one.core}</span><b class="mono">{one.by === "thread" && one.thread ? ownerName(one.thread) : "interrupts"}</b>
          <span class="muted">{clock(from, source.start_time, 100 * MS)}, {Math.round(one.kernel * 100)} % in the kernel{leaf ? <>, mostly <span class="mono">{leaf.replace(/_\[[kij]\]$/, "")}</span></> : ""}</span></button></li>;
      })}</ul>}
    </section>
  );
}
