// The frame: the fleet in numbers, the time, the map, the problems, and what is open.
import { useEffect, useMemo, useState } from "preact/hooks";
import { address, ApiError, forget, useApi } from "../api/fetch.ts";
import { turn, useTheme } from "../paint/theme.ts";
import { Help } from "../shell/help.tsx";
import { Failure, Waiting } from "../shell/parts.tsx";
import { Tip, tip } from "../shell/tip.tsx";
import { Drawer } from "./drawer.tsx";
import { Incidents } from "./incidents.tsx";
import { KEYS, useKeys } from "./keys.ts";
import { Login } from "./login.tsx";
import { MapView } from "./mapview.tsx";
import { ProblemView } from "./problem.tsx";
import { Problems } from "./problems.tsx";
import { Slider, TimeBar, type Times } from "./slider.tsx";
import { update, useNow, VIEWS, type State, type View } from "./state.ts";
import type { FleetHistory, FleetIncidents, FleetMap } from "./types.ts";
import { many, NUMBERS } from "./words.ts";

const POLL_MS = 30_000;
const WEEK_S = 7 * 86_400;
const TITLES: Record<View, string> = { map: "Map", incidents: "Incidents" };

// With the number that colours it, if one does.
export const mapOf = ({ at, colour }: State): string => `/api/v1/map?numbers=${NUMBERS[colour] ? colour : ""}${at === null ? "" : `&at=${at}`}`;

export function Page() {
  const state = useNow(), theme = useTheme();
  const [generation, setGeneration] = useState(0);
  const [help, setHelp] = useState(false);
  // The newest answer about the present: when that is, and how far back one can go.
  const [live, setLive] = useState<Times | null>(null);
  // A drag over the time strip asks for where it rests.
  const answer = useApi<FleetMap>(mapOf(state), state.at === null ? 0 : 80, generation);
  const map = answer.data;
  useEffect(() => { if (map) setLive(last => map.live ? { from: map.from_s, until: map.at_s } : last ?? { from: map.from_s, until: Math.max(map.at_s, Math.floor(Date.now() / 1000)) }); }, [map]);
  const history = useApi<FleetHistory>(live ? address("history", { from: live.from }) : null, 0, generation);
  const incidents = useApi<FleetIncidents>(map ? address("incidents", { since: WEEK_S + (state.at !== null && live ? Math.max(0, Math.ceil((live.until - state.at) / 3600) * 3600) : 0) }) : null, 0, generation);
  useKeys(map, live, () => setHelp(true));

  // Follows the fleet while the page is visible and live.
  useEffect(() => {
    if (state.at !== null) return;
    const timer = setInterval(() => { if (!document.hidden) { forget(); setGeneration(value => value + 1); } }, POLL_MS);
    return () => clearInterval(timer);
  }, [state.at]);
  // Going back to live must not show what live was when it was left.
  useEffect(() => { if (state.at === null && map && !map.live) { forget(); setGeneration(value => value + 1); } }, [state.at]);
  useEffect(() => tip.set(null), [state.view, state.problem]);

  const problem = useMemo(() => map ? map.problems.findIndex(problem => problem.key === state.problem) : -1, [map, state.problem]);
  const code = map?.problems[problem]?.code ?? (state.problem ? state.problem.split(":")[0]! : null);
  const again = () => { forget(); setGeneration(value => value + 1); };
  const refused = [answer.error, history.error].some(error => error instanceof ApiError && error.status === 401);
  if (refused) return <Login onDone={again} />;
  if (!map) return <main><section class="panel">{answer.error ? <Failure error={answer.error}><button onClick={again}>Try again</button></Failure> : <Waiting what="Reading the fleet" tall />}</section></main>;
  const sick = map.severity.filter(severity => (severity ?? 0) >= 2).length;
  const undiagnosed = map.severity.filter(severity => severity === null).length;
  const count = incidents.data?.incidents.length ?? 0;
  return (
    <>
      <a class="skip" href="#main" onClick={event => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
      <header class="head">
        <div class="who"><span class="logo" aria-hidden="true"><i /><i /><i /></span><h1>Fleet</h1>
          <span class="sums"><b>{many(map.nodes.length, "node")}</b><span class={sick ? "bad" : ""}>{sick.toLocaleString("en")} sick</span><span>{map.silent.length.toLocaleString("en")} silent</span>{undiagnosed > 0 && <span>{undiagnosed.toLocaleString("en")} not diagnosed</span>}</span></div>
        <nav role="tablist" aria-label="Views">{VIEWS.map((view, at) => <button key={view} role="tab" id={`tab-${view}`} aria-selected={state.view === view} aria-controls="main" tabIndex={state.view === view ? 0 : -1} title={`${TITLES[view]} (${at + 1})`} onClick={() => update({ view })}
          onKeyDown={event => {
            if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
            const next = VIEWS[(at + 1) % VIEWS.length]!;
            update({ view: next });
            document.getElementById(`tab-${next}`)?.focus();
            event.stopPropagation();
          }}>{TITLES[view]}{view === "incidents" && count > 0 ? <span class="count">{count >= 1000 ? "1000+" : count}</span> : null}</button>)}</nav>
        <span class="grow" />
        <button class="plain" onClick={turn} title="Dark or light (t)" aria-label={`Switch to ${theme === "dark" ? "light" : "dark"}`}>{theme === "dark" ? "☀" : "☾"}</button>
        <button class="plain" onClick={() => setHelp(true)} title="Keys (?)" aria-label="Keys">?</button>
      </header>
      <div class="strip">
        {live && <Slider history={history.data} at={state.at} times={live} code={code} />}
        {live && <TimeBar at={state.at} times={live} />}
      </div>
      <main id="main" tabIndex={-1} role="tabpanel" aria-labelledby={`tab-${state.view}`} data-view={state.view}>
        {answer.error && <Failure error={answer.error}><button onClick={again}>Try again</button></Failure>}
        {state.view === "incidents" ? <Incidents data={incidents.data} error={incidents.error} at={state.at ?? map.at_s} most={1000} /> : (
          <div class="fleet">
            <div class="wide-part">
              <MapView map={map} state={state} problem={problem} stale={answer.loading && state.at !== (map.live ? null : map.at_s)} />
              {state.problem && <ProblemView key={state.problem} map={map} state={state} generation={generation} />}
            </div>
            <div class="side-part">
              <Problems map={map} state={state} />
              <Incidents data={incidents.data} error={incidents.error} at={state.at ?? map.at_s} most={12} />
            </div>
          </div>)}
      </main>
      {state.node && <Drawer state={state} generation={generation} until={live?.until ?? map.at_s} />}
      <p class="sr" id="keys-map">Keys: arrows move between nodes, Enter opens one, g groups, c colours, slash searches.</p>
      <Help open={help} keys={KEYS} note="The address bar contains everything that is shown: send it to a colleague who has the token. Nothing on this page changes a node." onClose={() => setHelp(false)} />
      <Tip />
    </>
  );
}
