// The first view: the verdict, the cores with it, everything else below.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { address, useApi } from "../api/fetch.ts";
import type { CoreGrid, Diagnosis, Finding, Incident, Source } from "../api/types.ts";
import { CoresHeatmap } from "../cores/heatmap.tsx";
import { CoresLegend } from "../cores/legend.tsx";
import { Badge, bytes, Command, Evidences, Failure, NotSeen, Waiting, when, Words } from "../shell/parts.tsx";
import { update, type Range, type State } from "../state.ts";
import { duration } from "../time/axis.ts";
import { MonopoliesView } from "../scope/monopolies.tsx";
import { keyOf } from "./chain.ts";
import { Jump, VerdictView } from "./verdict.tsx";

interface Props { source: Source; state: State; whole: Range; range: Range; generation: number; incidents: Incident[] | null }

// The strip above all views uses the same number, so that both share one request for the whole recording.
export const GLANCE = 800;

export function Overview({ source, state, whole, range, generation, incidents }: Props) {
  const of = state.selection ?? state.range;
  const answer = useApi<Diagnosis>(source.has.diagnosis ? address("diagnosis", of ? { from: of.from, to: of.to } : {}) : null, 150, generation);
  const grid = useApi<CoreGrid>(address("cores", { from: range.from, to: range.to, columns: GLANCE }), range === whole ? 0 : 80, generation);
  const axis = answer.data?.axis;
  // Within the verdict, so that one glance shows which core it is.
  const cores = (
    <section class="glance" aria-label="The worst cores">
      <header class="bar"><h3>Cores</h3><span class="about">the worst first, over {duration(range.to - range.from)}</span><span class="grow" /><CoresLegend grid={grid.data} state={state} /><button onClick={() => update({ view: "cores" })}>Open</button></header>
      {grid.error ? <Failure error={grid.error} /> : grid.data ? <CoresHeatmap grid={grid.data} source={source} state={state} range={range} whole={whole} compact most={5} /> : <Waiting what="Reading cores" />}
    </section>
  );
  return (
    <div class={`overview ${answer.loading && answer.data ? "stale" : ""}`}>
      {of && <p class="scope-note" role="status">This verdict covers only {duration(of.to - of.from)}. <button class="link" onClick={() => update({ selection: null, range: null, band: null })}>Diagnose everything</button></p>}
      {!of && axis && axis.to - axis.from < (whole.to - whole.from) * 0.9 && <p class="scope-note">The verdict covers the last {duration(axis.to - axis.from)}; drag over another time to diagnose that.</p>}
      {answer.error ? <section class="panel"><Failure error={answer.error} /></section>
        : answer.data ? <Told diagnosis={answer.data} state={state}>{cores}</Told>
        : source.has.diagnosis ? <section class="panel"><Waiting what="Looking for the cause" tall /></section>
        : <section class="panel calm"><h2>A CPU profile</h2><p>A CPU profile has no verdict: it has no data about units, memory and network. See <button class="link" onClick={() => update({ view: "cores" })}>Cores</button> and <button class="link" onClick={() => update({ view: "profile" })}>Profile</button>.</p>{cores}</section>}
      {!source.has.diagnosis && source.has.samples && <MonopoliesView source={source} range={range} whole={whole} generation={generation} />}
      {answer.data && <Rest diagnosis={answer.data} />}
      {incidents && incidents.length > 0 && <section class="panel"><header class="bar"><h2>Incidents</h2></header><ul class="plain">{incidents.slice(0, 8).map(incident => <li key={incident.number}>
        <button class="link" onClick={() => update({ view: "incidents", incident: incident.number })}>{incident.number}. {incident.text}</button> <span class="muted">{when(incident.triggered)}</span></li>)}</ul></section>}
      <About source={source} diagnosis={answer.data} />
    </div>
  );
}

function Told({ diagnosis, state, children }: { diagnosis: Diagnosis; state: State; children: ComponentChildren }) {
  const show = (key: string) => update({ shown: key }, true);
  if (diagnosis.verdicts.length) return <>{diagnosis.verdicts.map((verdict, at) => <VerdictView key={keyOf(verdict.root_cause)} verdict={verdict} diagnosis={diagnosis} number={at + 1} shown={state.shown} onShow={show}>{at === 0 && children}</VerdictView>)}</>;
  const says = {
    "nothing wrong": ["good", "Nothing wrong in what was seen.", "Busy cores alone are not a problem: no thread waited long for one."],
    "too little seen": ["calm", "Too little was seen to tell.", "Cores were full or watched too briefly, and whether threads waited for them could not be seen."],
    "no cause found": ["calm", "Problems found, but not their cause.", "See below for what is needed to find it."],
  }[diagnosis.conclusion] ?? ["calm", diagnosis.conclusion, ""];
  return <section class={`panel conclusion ${says[0]}`}><h2>{says[1]}</h2><p>{says[2]}</p>{children}</section>;
}

function Rest({ diagnosis }: { diagnosis: Diagnosis }) {
  const told = new Set(diagnosis.verdicts.flatMap(verdict => [verdict.root_cause, ...verdict.context, ...verdict.chain.map(link => link.to)].map(keyOf)));
  const unexplained = new Map(diagnosis.unexplained.map(one => [keyOf(one.finding), one]));
  const others = diagnosis.findings.filter(finding => !told.has(keyOf(finding)));
  return (
    <>
      {others.length > 0 && <section class="panel"><header class="bar"><h2>{diagnosis.verdicts.length ? "Also found" : "Found"}</h2></header>
        <ul class="plain findings">{others.map(finding => <li key={keyOf(finding)}><FindingView finding={finding} />{unexplained.has(keyOf(finding)) && <p class="muted">Its cause is unknown. <Words text={unexplained.get(keyOf(finding))!.needs} /> <Command text={unexplained.get(keyOf(finding))!.command} /> <Words text={unexplained.get(keyOf(finding))!.then} /></p>}</li>)}</ul></section>}
      {(diagnosis.ruled_out.length > 0 || diagnosis.unseen.length > 0) && <section class="panel small">
        {diagnosis.ruled_out.length > 0 && <details class="fold"><summary>Ruled out <span class="count">{diagnosis.ruled_out.length}</span></summary><ul class="plain">{diagnosis.ruled_out.map((one, at) => <li key={at}><b>{one.code}</b>: <Words text={one.why} /></li>)}</ul></details>}
        <NotSeen of={diagnosis.unseen} />
      </section>}
    </>
  );
}

export function FindingView({ finding }: { finding: Finding }) {
  const [open, setOpen] = useState(false);
  return (
    <div>
      <button class="row" aria-expanded={open} onClick={() => setOpen(!open)}><Badge severity={finding.severity} /><span class="text"><Words text={finding.title} /></span><span class="code">{finding.code}</span></button>
      {open && <div class="opened"><p><Words text={finding.detail} /></p>{finding.remedy && <p><b>What to do:</b> <Words text={finding.remedy} copy /></p>}<Evidences of={finding.evidence} /><Jump finding={finding} /></div>}
    </div>
  );
}

function About({ source, diagnosis }: { source: Source; diagnosis: Diagnosis | null }) {
  const node = diagnosis?.node ?? source.node;
  const rows: [string, string][] = [];
  const put = (name: string, value: unknown) => { if (value !== null && value !== undefined && value !== "") rows.push([name, String(value)]); };
  if (node) {
    put("node", node.host); put("kernel", node.kernel); put("system", node.os); put("cores", node.cores ?? source.cores.length);
    put("memory", typeof node.memory_bytes === "number" ? bytes(node.memory_bytes) : null); put("booted", when(node.booted)); put("machine id", node.machine_id); put("boot id", node.boot_id);
  } else put("cores", source.cores.length);
  put("source", `${source.name} (${source.kind}${source.format && source.format !== source.kind ? `, ${source.format}` : ""})`);
  put("length", duration(source.length_ns));
  put("begins", source.start_time ? when(source.start_time) : null);
  put("diagnosed", diagnosis ? `${when(diagnosis.window.from)} … ${when(diagnosis.window.to)}` : null);
  put("samples", source.samples === null || source.samples === undefined ? null : `${source.samples.toLocaleString("en")}${source.lost ? `, ${source.lost.toLocaleString("en")} lost` : ""}`);
  return (
    <section class="panel small" aria-label="About this recording">
      <dl class="about-node">{rows.map(([name, value]) => <div key={name}><dt>{name}</dt><dd class={/id$|source/.test(name) ? "mono" : ""}>{value}</dd></div>)}</dl>
      {(source.unused?.length ?? 0) > 0 && <details class="fold"><summary>Not imported <span class="count">{source.unused!.length}</span></summary><ul class="plain">{source.unused!.map((one, at) => <li key={at}>{one.kind.replace(/_/g, " ")}: {one.count} <span class="mono muted">{one.example}</span></li>)}</ul></details>}
      {(source.unnamed?.length ?? 0) > 0 && <details class="fold"><summary>Functions without names <span class="count">{source.unnamed!.length}</span></summary><ul class="plain">{source.unnamed!.map((one, at) => <li key={at}>{one}</li>)}</ul></details>}
    </section>
  );
}
