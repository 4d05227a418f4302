// What is wrong now (or was then): one row for each problem, the worst first.
import { Badge, Words } from "../shell/parts.tsx";
import { update, type State } from "./state.ts";
import type { FleetMap } from "./types.ts";
import { ago, clockOf, many, plain } from "./words.ts";

export function Problems({ map, state }: { map: FleetMap; state: State }) {
  const diagnosed = map.severity.filter(severity => severity !== null).length;
  return (
    <section class="panel" aria-label="Problems"><header class="bar"><h2>Problems</h2><span class="about">{map.live ? "now" : "as of then"}, worst first</span></header>
      {map.problems.length === 0 ? <p class="muted">{!map.nodes.length ? "No node has reported yet. `coroner fleet serve` printed the line that makes one report." : diagnosed ? `Nothing is wrong on ${many(diagnosed, "diagnosed node")}.` : "No node has been diagnosed yet; that takes a few minutes."}</p>
        : <ul class="plain problems">{map.problems.map(problem => <li key={problem.key}><button class="row" aria-current={problem.key === state.problem} onClick={() => update({ problem: problem.key === state.problem ? "" : problem.key })}>
          <Badge severity={problem.severity} />
          <span class="text"><b class="code">{plain(problem.key)}</b><br />{problem.nodes > 1 && <span class="muted">for example: </span>}<Words text={plain(problem.title)} /><br />
            <span class="muted"><b>{many(problem.nodes, "node")}</b>{problem.silent ? ` (${problem.silent.toLocaleString("en")} of them silent)` : ""} · <span title={clockOf(problem.since_s)}>since {ago(map.at_s - problem.since_s)}</span>{problem.nodes > 1 ? `, last onset ${ago(map.at_s - problem.last_onset_s)} ago` : ""}{problem.is_new && <span class="new">new</span>}</span></span>
        </button></li>)}</ul>}
    </section>
  );
}
