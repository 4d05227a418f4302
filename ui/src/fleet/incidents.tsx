// Incidents of all nodes, newest first.
import type { ApiError } from "../api/fetch.ts";
import { Failure, Waiting } from "../shell/parts.tsx";
import { update } from "./state.ts";
import type { FleetIncidents } from "./types.ts";
import { ago, called, clockOf, plain } from "./words.ts";

export function Incidents({ data, error, at, most }: { data: FleetIncidents | null; error: ApiError | null; at: number; most: number }) {
  const then = data?.incidents.filter(({ incident }) => incident.triggered_real_ns / 1e9 <= at) ?? [];
  return (
    <section class="panel" aria-label="Incidents"><header class="bar"><h2>Incidents</h2><span class="about">of 7 days, newest first</span></header>
      {error ? <Failure error={error} /> : !data ? <Waiting what="Reading incidents" /> : then.length === 0 ? <p class="muted">No incidents in this time.</p>
        : <ul class="plain">{then.slice(0, most).map(({ node, host, incident }) => <li key={`${node} ${incident.number} ${incident.triggered_real_ns}`}><button class="row" onClick={() => update({ node: called(node, host) })}>
          <span class="text">{plain(incident.text)}<br /><span class="muted"><b class="mono">{plain(called(node, host))}</b> · <span title={clockOf(incident.triggered_real_ns / 1e9)}>{ago(at - incident.triggered_real_ns / 1e9)} ago</span> · {plain(incident.state)}{incident.repeats ? ` · ${incident.repeats} repeats` : ""}</span></span><span class="code">{plain(incident.code)}</span></button></li>)}</ul>}
      {then.length > most && <p class="note"><button class="link" onClick={() => update({ view: "incidents" })}>{then.length - most} more</button></p>}
    </section>
  );
}
