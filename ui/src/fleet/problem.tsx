// One problem: what the sick nodes have in common, in words, as a table, and as curves.
import { useEffect, useState } from "preact/hooks";
import { address, useApi } from "../api/fetch.ts";
import { Failure, Waiting, Words } from "../shell/parts.tsx";
import { Scatter, Survival } from "./chart.tsx";
import { quoted } from "./groups.ts";
import { update, type State } from "./state.ts";
import type { Attributes, Cohort, FleetMap, Points, Why } from "./types.ts";
import { attributeTitle, many, NUMBERS, plain, titleOf } from "./words.ts";

const SINCE_S = 7 * 86_400;

export function ProblemView({ map, state, generation }: { map: FleetMap; state: State; generation: number }) {
  const key = state.problem, problem = map.problems.find(problem => problem.key === key);
  const number = NUMBERS[state.colour] ? state.colour : "zombies";
  const why = useApi<Why>(address("why", { condition: key, since: SINCE_S }), 0, generation);
  const points = useApi<Points>(address("problem", { code: key, number, at: state.at }), 0, generation);
  return (
    <section class="panel problem" aria-label="The open problem">
      <header class="bar"><button onClick={() => update({ problem: "" })} title="Esc">Close</button><h2>{plain(key)}</h2>{problem && <span class="muted">{problem.nodes > 1 && "for example: "}<Words text={plain(problem.title)} /></span>}</header>
      {!problem && <p class="muted">No node has it {map.live ? "now" : "at this time"}; below is what nodes had within the last 7 days.</p>}
      {why.error ? <Failure error={why.error} /> : !why.data ? <Waiting what="Comparing nodes" /> : <div class={why.loading ? "stale" : ""}><Cohorts why={why.data} map={map} /></div>}
      {!map.live && <p class="note">The comparison is of the last 7 days until now, not of the time that is shown.</p>}
      <div class="charts">
        <div>{why.data && <Survival curves={why.data.uptime.curves} />}</div>
        <div>{points.error ? <Failure error={points.error} /> : !points.data ? <Waiting what="Reading nodes" tall /> : <Scatter points={points.data} />}
          <p class="note">Colour the map by another number to see it here instead of {titleOf(number)}.</p></div>
      </div>
      <Flame problem={key} />
    </section>
  );
}

const named = (attributes: Attributes): string => Object.entries(attributes).map(([name, value]) => `${attributeTitle(name)} ${plain(value)}`).join(", ");

function Cohorts({ why, map }: { why: Why; map: FleetMap }) {
  // Uptime is no attribute of the map.
  const canFind = (attributes: Attributes) => Object.keys(attributes).every(name => map.attributes.some(attribute => attribute.name === name));
  const show = (attributes: Attributes) => update({ find: Object.entries(attributes).map(([name, value]) => quoted(name, value)).join(" "), by: "" });
  return (
    <>
      <div class="said-why">{why.words.map((line, at) => <p key={at} class={at ? "" : "first"}><Words text={plain(line)} copy /></p>)}</div>
      <p class="about">{many(why.nodes.sick, "node")} had it within 7 days, {why.nodes.healthy.toLocaleString("en")} did not.</p>
      {why.cohorts.length > 0 && <div class="wide"><table class="cohorts"><caption>Cohorts, the best explanation first</caption>
        <thead><tr><th scope="col">nodes with</th><th scope="col" class="number">sick</th><th scope="col" class="number">elsewhere</th><th scope="col" class="number">risk ×</th><th scope="col">cannot be told apart from</th><th scope="col" /></tr></thead>
        <tbody>{why.cohorts.map((cohort, at) => <tr key={at}><td><b>{named(cohort.attributes)}</b>{cohort.protective && <span class="muted"> spared</span>}</td>
          <td class="number" data-label="sick">{share(cohort.sick, cohort.of)}</td><td class="number" data-label="elsewhere">{share(cohort.elsewhere_sick, cohort.elsewhere)}</td><td class="number" data-label="risk ×">{risk(cohort)}</td>
          <td data-label="cannot be told apart from">{cohort.aliases.map(named).join("; ") || <span class="muted">–</span>}{cohort.rivals.length > 0 && <span class="muted"> or: {cohort.rivals.map(named).join("; ")}</span>}{cohort.told_apart_by.length > 0 && <span class="muted"> but for {cohort.told_apart_by.slice(0, 4).map(plain).join(", ")}</span>}</td>
          <td>{canFind(cohort.attributes) && <button onClick={() => show(cohort.attributes)}>Show these</button>}</td></tr>)}</tbody></table></div>}
      {why.remedy && <Remedy remedy={why.remedy} />}
    </>
  );
}

// The lines belong to the first sentence.
function Remedy({ remedy }: { remedy: NonNullable<Why["remedy"]> }) {
  const [first, ...more] = remedy.words;
  return (
    <div class="said-why remedy"><h3>What to do</h3>{first && <p><Words text={plain(first)} copy /></p>}
      {remedy.image_lines.length > 0 && <ul class="plain">{remedy.image_lines.map(line => <li key={line}><Words text={`\`${plain(line)}\``} copy /></li>)}</ul>}
      {more.map(line => <p key={line}><Words text={plain(line)} copy /></p>)}</div>
  );
}

const share = (sick: number, of: number): string => `${sick.toLocaleString("en")} of ${of.toLocaleString("en")}`;
const figure = (value: number): string => value >= 100 ? Math.round(value).toLocaleString("en") : value.toPrecision(2).replace(/\.0$/, "");
// Without a sick node on one side the ratio is a guess.
const risk = ({ risk_ratio: { value, low, high }, elsewhere_sick, sick }: Cohort): string => elsewhere_sick === 0 ? `≥ ${figure(low)}` : sick === 0 ? `≤ ${figure(high)}` : `${figure(value)} (${figure(low)}–${figure(high)})`;

// As an image, so that nothing in it runs.
function Flame({ problem }: { problem: string }) {
  const [asked, setAsked] = useState(false);
  const [answer, setAnswer] = useState<{ url: string } | { why: string } | null>(null);
  useEffect(() => { setAsked(false); setAnswer(null); }, [problem]);
  // An expression has no escapes in quotes.
  if (problem.includes("'")) return null;
  const url = address("flame", { where: `problem='${problem}'`, diff_where: `not problem='${problem}'`, since: SINCE_S });
  const ask = async () => {
    setAsked(true);
    try {
      const got = await fetch(url, { credentials: "same-origin" });
      if (got.ok && (got.headers.get("content-type") ?? "").startsWith("image/svg")) { setAnswer({ url }); return; }
      const said = got.ok ? null : await got.json().catch(() => null);
      setAnswer({ why: got.status === 404 ? "this collector has no stacks of these nodes" : said?.error ?? `status ${got.status}` });
    } catch { setAnswer({ why: "the collector does not respond" }); }
  };
  return (
    <div class="flame-part">
      {!asked && <button onClick={ask}>Flame graph: sick against healthy nodes</button>}
      {asked && !answer && <Waiting what="Merging stacks" />}
      {answer && "why" in answer && <p class="muted">No flame graph: {plain(answer.why)}.</p>}
      {answer && "url" in answer && <figure><figcaption><b>Where sick nodes spend their time, against healthy ones</b> <a href={answer.url} target="_blank" rel="noopener">open</a></figcaption><img src={answer.url} alt="Flame graph of sick nodes, coloured by the difference to healthy ones" /></figure>}
    </div>
  );
}
