// One node: what it is, what is wrong with it, and how its numbers went.
import { useEffect, useRef } from "preact/hooks";
import { address, useApi } from "../api/fetch.ts";
import { Badge, Failure, Waiting, Words } from "../shell/parts.tsx";
import { extremes, LineChart } from "./chart.tsx";
import { Recording } from "./recording.tsx";
import { SPANS, update, type Span, type State } from "./state.ts";
import type { Episode, Minutes, NodeDetail } from "./types.ts";
import { quoted } from "./groups.ts";
import { ago, attributeTitle, clockOf, NUMBERS, plain, secondsOf, titleOf, told } from "./words.ts";

const LENGTHS: Record<Span, [string, number]> = { day: ["24 h", 86_400], week: ["7 days", 7 * 86_400], quarter: ["90 days", 90 * 86_400] };
// What is drawn first; the others follow.
const FIRST = ["zombies", "busy", "worst_core_system", "restarts", "drops", "cpu_stall_ms"];

export function Drawer({ state, generation, until }: { state: State; generation: number; until: number }) {
  const ref = useRef<HTMLElement>(null);
  const at = state.at ?? until, from = at - LENGTHS[state.span][1];
  const name = encodeURIComponent(state.node);
  const detail = useApi<NodeDetail>(address(`nodes/${name}`), 0, generation);
  // To the minute, so that a repeated poll of the same minute is one request.
  const minutes = useApi<Minutes>(address(`nodes/${name}/minutes`, { from: Math.floor(from / 60) * 60, until: Math.ceil(at / 60) * 60 }), 60, generation);
  useEffect(() => ref.current?.focus(), [state.node]);
  const close = () => { update({ node: "" }); document.querySelector<HTMLCanvasElement>(".map canvas")?.focus({ preventScroll: true }); };
  const data = detail.data, shown = data && (data.node.host === state.node || data.node.node === state.node) ? data : null;
  return (
    <aside ref={ref} class="drawer" tabIndex={-1} role="dialog" aria-label={`Node ${plain(state.node)}`} onKeyDown={event => { if (event.key === "Escape") { close(); event.stopPropagation(); } }}>
      <header class="bar"><h2 class="mono">{plain(state.node)}</h2>{shown?.node.is_silent && <span class="over">silent</span>}<span class="grow" /><button onClick={close} title="Esc" aria-label="Close">✕</button></header>
      {detail.error ? <Failure error={detail.error} /> : !shown ? <Waiting what="Reading the node" tall /> : <Detail data={shown} at={state.at} />}
      <h3>Numbers <span class="choice spans" role="radiogroup" aria-label="Time span">{SPANS.map(span => <button key={span} role="radio" aria-checked={state.span === span} onClick={() => update({ span }, true)}>{LENGTHS[span][0]}</button>)}</span></h3>
      {minutes.error ? <Failure error={minutes.error} /> : !minutes.data ? <Waiting what="Reading its numbers" tall /> : <div class={minutes.loading ? "stale" : ""}><Charts minutes={minutes.data} from={from} until={at} boots={(shown?.boots ?? []).flatMap(boot => boot.booted ? [secondsOf(boot.booted)] : [])} /></div>}
      {shown && <More data={shown} />}
    </aside>
  );
}

const wentOn = (episode: Episode, at: number | null): boolean => at === null ? episode.ended === null : secondsOf(episode.began) <= at && (episode.ended === null || secondsOf(episode.ended) >= at);

function Detail({ data, at }: { data: NodeDetail; at: number | null }) {
  const { node } = data, now = secondsOf(data.at);
  const current = data.history.filter(episode => wentOn(episode, at));
  return (
    <>
      <p class="about">{at === null ? <>{node.is_silent ? `last heard of ${ago(now - secondsOf(node.last_seen))} ago` : "reporting"}{node.booted && ` · up ${ago(now - secondsOf(node.booted))}`}{node.conclusion === null ? " · not diagnosed yet" : node.problems.length === 0 && " · nothing wrong now"}</> : <>as of {clockOf(at)}</>}</p>
      <h3>{at === null ? "Wrong now" : "Wrong then"}</h3>
      {current.length ? <ul class="plain">{current.map((episode, index) => <li key={index}><Badge severity={episode.severity} /> <Words text={plain(episode.title)} /> <button class="link code" onClick={() => update({ problem: episode.key, node: "" })}>{plain(episode.key)}</button><span class="muted"> since {ago((at ?? now) - secondsOf(episode.began))}{episode.certainty ? ` · ${plain(episode.certainty)}` : ""}</span></li>)}</ul> : <p class="muted">Nothing.</p>}
      {data.incidents.length > 0 && <><h3>Incidents</h3><ul class="plain">{data.incidents.slice(0, 20).map(incident => <li key={incident.number}><span class="code">{plain(incident.code)}</span> {plain(incident.text)}<br /><span class="muted">{clockOf(incident.triggered_real_ns / 1e9)} · {plain(incident.state)}{incident.repeats ? ` · ${incident.repeats} repeats` : ""} · number {incident.number} on the node</span> <Recording node={node.node} number={incident.number} /></li>)}</ul></>}
    </>
  );
}

function Charts({ minutes, from, until, boots }: { minutes: Minutes; from: number; until: number; boots: number[] }) {
  if (!minutes.at_s.length) return <p class="muted">Nothing was reported in this time.</p>;
  const known = Object.keys(minutes.numbers).filter(name => NUMBERS[name]);
  const rank = (name: string) => { const at = FIRST.indexOf(name); return at < 0 ? FIRST.length : at; };
  known.sort((a, b) => rank(a) - rank(b));
  const flat = (name: string) => { const range = extremes(minutes.numbers[name]!); return !range || range.high === range.low; };
  const quiet = known.filter(flat);
  return (
    <>
      {known.filter(name => !flat(name)).map(name => <LineChart key={name} name={name} minutes={minutes} from={from} until={until} boots={boots} />)}
      {quiet.length > 0 && <p class="note">The same throughout: {quiet.map(name => `${titleOf(name)} ${told(name, extremes(minutes.numbers[name]!)?.last)}`).join(", ")}.</p>}
      {boots.some(boot => boot > from && boot < until) && <p class="note">A dotted line is a boot.</p>}
    </>
  );
}

function More({ data }: { data: NodeDetail }) {
  const attributes = Object.entries(data.node.attributes);
  const past = data.history.filter(episode => episode.ended !== null);
  return (
    <>
      {past.length > 0 && <details class="fold"><summary>What was wrong before <span class="count">{past.length}</span></summary><ul class="plain">{past.slice(0, 100).map((episode, at) => <li key={at}><Words text={plain(episode.title)} /><br /><span class="muted">{clockOf(secondsOf(episode.began))}, for {ago(secondsOf(episode.ended!) - secondsOf(episode.began))} </span><button class="link" onClick={() => update({ at: Math.ceil(secondsOf(episode.began) / 60) * 60 })}>go there</button></li>)}</ul></details>}
      <details class="fold" open={attributes.length < 24}><summary>What it is <span class="count">{attributes.length}</span></summary>
        <table class="attributes"><tbody>{attributes.map(([name, value]) => <tr key={name}><th scope="row">{attributeTitle(name)}</th><td class="mono">{plain(value)}</td><td><button class="link" title="All nodes with this" onClick={() => update({ find: quoted(name, value), by: "", node: "" })}>alike</button></td></tr>)}
          <tr><th scope="row">id</th><td class="mono">{plain(data.node.node)}</td><td /></tr>{data.node.version && <tr><th scope="row">coroner</th><td class="mono">{plain(data.node.version)}</td><td /></tr>}</tbody></table></details>
      {data.boots.length > 0 && <details class="fold"><summary>Boots <span class="count">{data.boots.length}</span></summary><ul class="plain">{data.boots.slice(0, 50).map(boot => <li key={boot.boot_id}>{boot.booted ? clockOf(secondsOf(boot.booted)) : "unknown"}<span class="muted">, heard of until {clockOf(secondsOf(boot.last_seen))}</span></li>)}</ul></details>}
    </>
  );
}
