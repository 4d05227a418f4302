// The flight recorder's incidents: the list, and one of them with its verdict and risers.
import { address, useApi } from "../api/fetch.ts";
import type { Incident, IncidentReport } from "../api/types.ts";
import { Risers } from "../flame/pane.tsx";
import { keyOf } from "../overview/chain.ts";
import { VerdictView } from "../overview/verdict.tsx";
import { NoIncident } from "../shell/nothing.tsx";
import { bytes, Failure, Waiting, when } from "../shell/parts.tsx";
import { update, type State } from "../state.ts";
import { onAxis } from "../time/axis.ts";
import type { Source } from "../api/types.ts";

export function IncidentsView({ incidents, source, state, generation }: { incidents: Incident[] | null; source: Source; state: State; generation: number }) {
  if (!incidents) return <section class="panel"><Waiting what="Reading incidents" tall /></section>;
  if (!incidents.length) return <NoIncident source={source} />;
  const open = state.incident ?? incidents[0]!.number;
  return (
    <div class="sides">
      <section class="panel" aria-label="Incidents"><header class="bar"><h2>Incidents</h2><span class="about">newest first</span></header>
        <ul class="plain incidents">{incidents.map(incident => <li key={incident.number}><button class="row" aria-current={incident.number === open} onClick={() => update({ incident: incident.number })}>
          <span class="amount">{incident.number}</span><span class="text">{incident.text}<br /><span class="muted">{when(incident.triggered)} · {incident.state}{incident.repeats ? ` · ${incident.repeats} repeats` : ""}{incident.bytes ? ` · ${bytes(incident.bytes)}` : ""}</span></span><span class="code">{incident.code}</span></button></li>)}</ul>
      </section>
      <Report key={open} number={open} source={source} state={state} generation={generation} known={incidents.find(one => one.number === open) ?? null} />
    </div>
  );
}

function Report({ number, source, state, generation, known }: { number: number; source: Source; state: State; generation: number; known: Incident | null }) {
  const { data, error } = useApi<IncidentReport>(address(`incidents/${number}`), 0, generation);
  const from = known?.from ?? onAxis(known?.window.from, source.start_time), to = known?.to ?? onAxis(known?.window.to, source.start_time), at = known?.trigger_ns ?? onAxis(known?.triggered, source.start_time);
  const inside = from !== null && to !== null && at !== null && to > 0 && from < source.length_ns;
  return (
    <div class="report">
      {known && <section class="panel"><header class="bar"><h2>Incident {number}</h2><span class="about">{when(known.triggered)}</span><span class="grow" />
        {inside && <button onClick={() => update({ view: "cores", range: { from: Math.max(0, from), to: Math.min(source.length_ns, to) }, selection: { from: Math.max(0, at - 3e9), to: Math.min(source.length_ns, at + 3e9) }, filters: known.core !== null ? { core: String(known.core) } : {} })}>Show on the time axis</button>}</header>
        <p>{known.text}</p>{known.error && <p class="bad">{known.error}</p>}</section>}
      {error ? <section class="panel"><Failure error={error} /></section> : !data ? <section class="panel"><Waiting what="Reading the incident" tall /></section> : <>
        {data.unreadable && <section class="panel"><p class="bad">{data.unreadable}</p></section>}
        {data.diagnosis?.verdicts.map((verdict, index) => <VerdictView key={keyOf(verdict.root_cause)} verdict={verdict} diagnosis={data.diagnosis!} number={index + 1} shown={state.shown} onShow={key => update({ shown: key }, true)} />)}
        {data.diagnosis && !data.diagnosis.verdicts.length && <section class="panel calm"><h2>{data.diagnosis.conclusion === "nothing wrong" ? "Nothing wrong in what was seen." : "No cause found."}</h2><ul class="plain">{data.diagnosis.findings.map((finding, index) => <li key={index}>{finding.title}</li>)}</ul></section>}
        <section class="panel"><Risers risers={data.risers} against="the hour before" />
          {data.missing_samples.length > 0 && <p class="note">Samples are missing: {data.missing_samples.map(one => `core ${one.core}: ${one.lost} lost${one.throttled_ms ? `, sampling throttled for ${one.throttled_ms} ms` : ""}`).join("; ")}.</p>}</section>
      </>}
    </div>
  );
}
