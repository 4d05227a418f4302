// The audit: what runs here, what it costs, what should not run here.
import { useMemo, useState } from "preact/hooks";
import { address, useApi } from "../api/fetch.ts";
import type { Judgement, Unit, Units } from "../api/types.ts";
import { FindingView } from "../overview/view.tsx";
import { bytes, Command, count, Failure, NotSeen, rate, Waiting, Words } from "../shell/parts.tsx";
import { update, type State } from "../state.ts";

type Order = "cost" | "name" | "restarts" | "zombies" | "memory";

// One or two dead cgroups after a boot are normal.
const LEAVES_MANY = 10;

// Notable: crashloops, churns, judged unused or in conflict, failed, or leaves dead cgroups.
export function isNotable(unit: Unit, judgement: Judgement | undefined): boolean {
  return !!unit.loop || !!unit.churn?.length || (unit.cost.zombies ?? 0) >= LEAVES_MANY || unit.active_state === "failed" || ["unused", "conflict"].includes(judgement?.verdict ?? unit.verdict ?? "");
}

export function UnitsView({ state, generation }: { state: State; generation: number }) {
  const { data, error } = useApi<Units>(address("units"), 0, generation);
  const [order, setOrder] = useState<Order>("cost");
  const [text, setText] = useState("");
  const judged = useMemo(() => new Map(data?.judgements.map(one => [one.unit, one])), [data]);
  const rows = useMemo(() => {
    if (!data) return [];
    const kept = data.units.filter(unit => text ? unit.name.toLowerCase().includes(text.toLowerCase()) : state.all || state.shown === `u:${unit.name}` || isNotable(unit, judged.get(unit.name)) || (unit.cost.cores ?? 0) >= 0.001);
    const by: Record<Order, (unit: Unit) => number> = { cost: unit => unit.cost.cores ?? -1, restarts: unit => unit.cost.restarts ?? unit.restarts ?? -1, zombies: unit => unit.cost.zombies ?? -1, memory: unit => unit.cost.memory_bytes ?? -1, name: () => 0 };
    // The server sends the most expensive first; the stable sort keeps that among equals.
    return order === "cost" ? kept : order === "name" ? [...kept].sort((a, b) => a.name.localeCompare(b.name)) : [...kept].sort((a, b) => by[order](b) - by[order](a));
  }, [data, order, text, state.all, state.shown]);
  if (error) return <section class="panel"><Failure error={error} /></section>;
  if (!data) return <section class="panel"><Waiting what="Reading units" tall /></section>;
  const bad = data.judgements.filter(one => ["unused", "conflict"].includes(one.verdict));
  const head = (name: Order, title: string) => <th scope="col" class={name === "name" ? "" : "number"} aria-sort={order === name ? name === "name" ? "ascending" : "descending" : "none"}><button class="link" onClick={() => setOrder(name)}>{title}{order === name ? name === "name" ? " ▲" : " ▼" : ""}</button></th>;
  return (
    <>
      {data.findings.length > 0 && <section class="panel" aria-label="Findings about units"><header class="bar"><h2>Found</h2></header><ul class="plain findings">{data.findings.map((finding, at) => <li key={at}><FindingView finding={finding} /></li>)}</ul></section>}
      {bad.length > 0 && <section class="panel" aria-label="Agents that should not be here"><header class="bar"><h2>Should not run here</h2></header><ul class="plain">{bad.map(one => <li key={one.unit}><JudgementView judgement={one} /></li>)}</ul></section>}
      <section class="panel" aria-label="Units">
        <header class="bar"><h2>Units</h2><span class="about">{rows.length} of {data.units.length}{!data.systemd ? " · systemd could not be queried" : ""}</span><span class="grow" />
          <label class="search"><input type="search" placeholder="unit" aria-label="Find a unit" value={text} onInput={event => setText(event.currentTarget.value)} /></label>
          <button aria-pressed={state.all} onClick={() => update({ all: !state.all }, true)} title="Also show units without cost or problems (a)">Show all</button></header>
        {rows.length === 0 ? <p class="muted">{data.units.length ? "No unit uses CPU or has a problem." : "No units seen."}</p> : <div class="wide"><table class="units">
          <thead><tr>{head("name", "unit")}{head("cost", "CPU")}{head("memory", "memory")}{head("restarts", "restarts")}{head("zombies", "dead cgroups")}<th scope="col">state</th><th scope="col">enabled</th><th scope="col">package</th><th scope="col">verdict</th></tr></thead>
          <tbody>{rows.slice(0, 400).map(unit => <UnitRow key={unit.name} unit={unit} judgement={judged.get(unit.name)} marked={state.shown === `u:${unit.name}`} />)}</tbody>
        </table></div>}
        <NotSeen of={data.unseen} />
      </section>
    </>
  );
}

function UnitRow({ unit, judgement, marked }: { unit: Unit; judgement: Judgement | undefined; marked: boolean }) {
  const verdict = judgement?.verdict ?? unit.verdict;
  return (
    <tr class={`${marked ? "marked" : ""} ${isNotable(unit, judgement) ? "notable" : ""}`}>
      <td><b class="mono">{unit.name}</b>{unit.loop && <span class="muted"> restarts {rate(unit.loop.per_hour)}{unit.loop.trend ? `, ${unit.loop.trend}` : ""}</span>}</td>
      <td class="number">{unit.cost.cores === null ? "?" : `${(unit.cost.cores * 100).toFixed(1)} %`}</td><td class="number">{bytes(unit.cost.memory_bytes)}</td>
      <td class="number">{count(unit.cost.restarts ?? unit.restarts)}</td><td class="number">{count(unit.cost.zombies)}</td>
      <td class={unit.active_state === "failed" ? "bad" : ""}>{unit.active_state ? `${unit.active_state} (${unit.sub_state})` : "?"}</td><td>{unit.enablement ?? "?"}</td><td>{unit.package ? `${unit.package.name} ${unit.package.version}` : ""}</td><td>{verdict && verdict !== "fine" ? verdict : verdict ?? ""}</td>
    </tr>
  );
}

function JudgementView({ judgement }: { judgement: Judgement }) {
  return (
    <div class="judgement">
      <p><b class="mono">{judgement.unit}</b> · {judgement.what} · <span class={`certainty ${judgement.certainty === "sure" ? "proven" : judgement.certainty}`}>{judgement.verdict}, {judgement.certainty}</span>{judgement.harm === "seen" && <span class="muted"> · harm seen</span>}</p>
      <ul class="plain">{judgement.why.map((reason, at) => <li key={at}><Words text={reason.text} />{reason.source && <span class="mono muted"> {reason.source}</span>}</li>)}</ul>
      {judgement.safe_step && <p>{judgement.report_only ? <Words text={judgement.safe_step} /> : <Command text={judgement.safe_step} />}{judgement.does_not_fix && <span class="muted"> Does not fix: {judgement.does_not_fix}</span>}</p>}
    </div>
  );
}
