// The frame around the views: the node, the tabs, the selection.
import { useEffect, useMemo, useState } from "preact/hooks";
import { address, forget, get, useApi } from "../api/fetch.ts";
import type { CoreGrid, Incident, Source } from "../api/types.ts";
import { CoresView } from "../cores/view.tsx";
import { IncidentsView } from "../node/incidents.tsx";
import { UnitsView } from "../node/units.tsx";
import { ZombiesView } from "../node/zombies.tsx";
import { GLANCE, Overview } from "../overview/view.tsx";
import { turn, useTheme } from "../paint/theme.ts";
import { ProfileView } from "../scope/page.tsx";
import { update, useStateOfPage, VIEWS, type Range, type View } from "../state.ts";
import { duration, within } from "../time/axis.ts";
import { WaitsView } from "../waits/view.tsx";
import { Help } from "./help.tsx";
import { KEYS, useKeys } from "./keys.tsx";
import { Navigator } from "./navigator.tsx";
import { Nothing } from "./nothing.tsx";
import { basename, bytes, Failure, Waiting } from "./parts.tsx";
import { SelectionBar } from "./selection.tsx";
import { Tip, tip } from "./tip.tsx";

const TITLES: Record<View, string> = { overview: "Overview", cores: "Cores", waits: "Waits", profile: "Profile", zombies: "Zombies", units: "Units", incidents: "Incidents" };
const POLL_MS = 10_000;
const NOTHING: Range = { from: 0, to: 1 };

export function Page() {
  const state = useStateOfPage(), theme = useTheme();
  const [generation, setGeneration] = useState(0);
  const [grown, setGrown] = useState<Source | null>(null);
  const first = useApi<Source>(address("source"));
  const answered = grown ?? first.data;
  const loading = answered?.loading ?? null, source = loading ? null : answered;
  const [help, setHelp] = useState(false);
  const whole = useMemo<Range>(() => source ? { from: 0, to: Math.max(1, source.length_ns) } : NOTHING, [source?.length_ns]);
  const range = useMemo(() => state.range ? within(state.range, whole) : whole, [state.range?.from, state.range?.to, whole]);
  useKeys(source, range, whole, () => setHelp(true));
  useEffect(() => tip.set(null), [state.view]);
  useEffect(() => { document.title = source ? `${source.node?.host ?? basename(source.name)} · coroner` : "coroner"; }, [source?.name]);

  // Polls while another tool's profile is being read.
  useEffect(() => {
    if (!loading) return;
    const timer = setTimeout(() => { forget(); get<Source>(address("source")).then(setGrown, () => setGrown(last => last ? { ...last } : last)); }, 150);
    return () => clearTimeout(timer);
  }, [answered]);

  // Follows a running recorder while the page is visible.
  useEffect(() => {
    if (!source?.live) return;
    const timer = setInterval(async () => {
      if (document.hidden) return;
      forget();
      try {
        const next = await get<Source>(address("source"));
        // It may also have stopped, or frozen an incident, without growing.
        if (next.length_ns !== source.length_ns || next.live !== source.live || next.has.incidents !== source.has.incidents) { setGrown(next); setGeneration(value => value + 1); }
      } catch { /* retry next time; keep what is shown */ }
    }, POLL_MS);
    return () => clearInterval(timer);
  }, [source]);

  const overview = useApi<CoreGrid>(source ? address("cores", { from: whole.from, to: whole.to, columns: GLANCE }) : null, 0, generation);
  const incidents = useApi<{ incidents: Incident[] }>(source && source.has.incidents > 0 ? address("incidents") : null, 0, generation);
  const list = source && source.has.incidents > 0 ? incidents.data?.incidents ?? null : [];

  if (first.error && !source) return <main><section class="panel"><Failure error={first.error}><button onClick={() => location.reload()}>Try again</button></Failure></section></main>;
  if (loading) return <main><section class="panel loading"><h2>Reading {basename(answered!.name)}</h2><progress max={loading.total_bytes} value={loading.read_bytes} aria-label="Progress" /><p class="muted">{bytes(loading.read_bytes)} of {bytes(loading.total_bytes)}</p></section></main>;
  if (!source) return <main><section class="panel"><Waiting what="Opening" tall /></section></main>;
  const name = basename(source.name);
  const has: Record<View, boolean> = { overview: true, cores: true, waits: source.has.evidence, profile: source.has.samples, zombies: source.has.evidence, units: source.has.evidence, incidents: source.has.incidents > 0 };
  const props = { source, state, whole, range, generation };
  return (
    <>
      <a class="skip" href="#main" onClick={event => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to content</a>
      <header class="head">
        <div class="who"><span class="logo" aria-hidden="true"><i /><i /><i /></span><h1>{source.node?.host ?? name}</h1>
          <span class="muted">{[source.node?.host ? name : null, source.node?.kernel ? `Linux ${source.node.kernel}` : null, `${source.cores.length} cores`, duration(source.length_ns)].filter(Boolean).join(" · ")}</span>
          {source.live && <span class="live">live</span>}</div>
        <nav role="tablist" aria-label="Views">{VIEWS.map((view, at) => <button key={view} role="tab" id={`tab-${view}`} aria-selected={state.view === view} aria-controls="main" class={has[view] ? "" : "nothing"} tabIndex={state.view === view ? 0 : -1}
          title={has[view] ? `${TITLES[view]} (${at + 1})` : `No data; shows how to get it (${at + 1})`} onClick={() => update({ view })}
          onKeyDown={event => {
            if (event.key !== "ArrowRight" && event.key !== "ArrowLeft") return;
            const next = VIEWS[(at + (event.key === "ArrowRight" ? 1 : VIEWS.length - 1)) % VIEWS.length]!;
            update({ view: next });
            document.getElementById(`tab-${next}`)?.focus();
          }}>{TITLES[view]}{view === "incidents" && list && list.length > 0 ? <span class="count">{list.length}</span> : null}</button>)}</nav>
        <span class="grow" />
        <button class="plain" onClick={turn} title="Dark or light (t)" aria-label={`Switch to ${theme === "dark" ? "light" : "dark"}`}>{theme === "dark" ? "☀" : "☾"}</button>
        <button class="plain" onClick={() => setHelp(true)} title="Keys (?)" aria-label="Keys">?</button>
      </header>
      <div class="strip">
        <Navigator source={source} grid={overview.data} incidents={list} state={state} range={range} whole={whole} />
        <SelectionBar source={source} state={state} />
      </div>
      <main id="main" tabIndex={-1} role="tabpanel" aria-labelledby={`tab-${state.view}`} data-view={state.view}>
        {!has[state.view] ? <Nothing view={state.view} source={source} />
          : state.view === "overview" ? <Overview {...props} incidents={list} />
          : state.view === "cores" ? <CoresView {...props} />
          : state.view === "waits" ? <WaitsView state={state} range={range} generation={generation} />
          : state.view === "profile" ? <ProfileView {...props} />
          : state.view === "zombies" ? <ZombiesView source={source} whole={whole} generation={generation} />
          : state.view === "units" ? <UnitsView state={state} generation={generation} />
          : <IncidentsView incidents={list} source={source} state={state} generation={generation} />}
      </main>
      <p class="sr" id="keys-time">Keys: left and right move in time, plus and minus zoom, z zooms to the selection, Escape clears it.</p>
      <p class="sr" id="keys-flame">Keys: arrows move between frames, Enter zooms in, Backspace zooms out, slash searches. The Functions button shows a table.</p>
      <Help open={help} keys={KEYS} note="The address bar contains the whole selection: send it to a colleague who has the same file open. Nothing on this page changes the node." onClose={() => setHelp(false)} />
      <Tip />
    </>
  );
}
