// The flame graph of the selection with search, difference, risers, functions and export.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { address, useApi } from "../api/fetch.ts";
import type { DifferenceColumns, FlameColumns, Riser, Source } from "../api/types.ts";
import { css, languageFill, LANGUAGES, languageOf, placeFill, changeFill } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { Failure, Waiting } from "../shell/parts.tsx";
import { update, type State } from "../state.ts";
import { clock, duration } from "../time/axis.ts";
import { told } from "../timeline/lanes.ts";
import { FlameGraph } from "./graph.tsx";
import { compared, FORMATS, hasRest, selected } from "./query.ts";
import { differenceTree, functionsOf, matchesOf, nameOf, percent, points, searchOf, treeOf, type Tree } from "./tree.ts";

export function FlamePane({ source, state, generation }: { source: Source; state: State; generation: number }) {
  const difference = state.base !== null;
  const url = difference ? address("flame-difference", compared(state)) : address("flame", { ...selected(state), invert: state.inverted ? 1 : undefined });
  // Of very many samples only a part is read, unless the user asks for all of this selection.
  const [exact, setExact] = useState("");
  const answer = useApi<FlameColumns & DifferenceColumns>(exact === url ? `${url}${url.includes("?") ? "&" : "?"}exact=1` : url, 40, generation);
  const [widths, setWidths] = useState<"now" | "baseline">("now");
  // The columns tell the kind of answer: the previous one may still be shown.
  const tree = useMemo<Tree | null>(() => answer.data ? "baseline" in answer.data.nodes ? differenceTree(answer.data, widths) : treeOf(answer.data) : null, [answer.data, widths]);
  const search = useMemo(() => searchOf(state.search), [state.search]);
  const matches = useMemo(() => tree && matchesOf(tree, search), [tree, search]);
  const [list, setList] = useState(false);
  const box = useRef<HTMLInputElement>(null);
  const at = useRef(0);
  useEffect(() => { at.current = 0; }, [matches]);
  const unit = answer.data?.unit ?? "ns";
  const goOn = () => {
    if (!matches?.order.length || !tree) return;
    update({ zoom: matches.order[at.current++ % matches.order.length]! });
  };
  const empty = answer.error?.status === 404;
  return (
    <section class="panel" aria-label="Flame graph" id="flame" aria-busy={answer.loading}>
      <header class="bar">
        <h2>Flame graph</h2>
        <span class="about">{about(state, source, answer.data)}</span>
        <span class="grow" />
        <label class="search">
          <output class="matched" aria-live="polite">{matches ? matches.frames === 0 ? "no match" : <><b>{percent(matches.share)}</b>{matches.baseline !== null && ` (was ${percent(matches.baseline)})`} in {matches.frames} frame{matches.frames === 1 ? "" : "s"}</> : ""}</output>
          <input ref={box} id="search" type="search" placeholder="search functions (/)" aria-label="Search functions (regular expression)" value={state.search} class={search?.plain ? "bad" : ""} spellcheck={false}
            title={search?.plain ? "Not a regular expression: searching for it literally" : "Regular expression; lower case matches both cases. Enter: next match"}
            onInput={event => update({ search: event.currentTarget.value }, true)} onKeyDown={event => { if (event.key === "Enter") goOn(); if (event.key === "Escape") { event.stopPropagation(); update({ search: "" }); event.currentTarget.blur(); } }} />
        </label>
      </header>
      <div class="tools">
        <button aria-pressed={state.inverted} onClick={() => update({ inverted: !state.inverted })} title="Invert: from the most expensive functions down to their callers (i)">Inverted</button>
        <span class="choice" role="radiogroup" aria-label="Colours">
          <button role="radio" aria-checked={state.flameBy === "place"} disabled={difference} onClick={() => update({ flameBy: "place" }, true)}>Kernel / user</button>
          <button role="radio" aria-checked={state.flameBy === "language"} disabled={difference} onClick={() => update({ flameBy: "language" }, true)}>Language</button>
        </span>
        <Compare state={state} source={source} />
        {difference && <button aria-pressed={widths === "baseline"} onClick={() => setWidths(widths === "now" ? "baseline" : "now")} title="Switch sides, to see what is gone (b)">Widths: {widths === "now" ? "selection" : "baseline"}</button>}
        <button aria-pressed={list} onClick={() => setList(!list)} title="Table of functions by own time">Functions</button>
        <details class="menu" onFocusOut={event => { if (!event.currentTarget.contains(event.relatedTarget as Node | null)) event.currentTarget.open = false; }}>
          <summary>Export this selection</summary>
          <ul>{FORMATS.map(([format, title, what]) => <li key={format}><a href={address("export", { format, ...selected(state), invert: state.inverted && format === "svg" ? 1 : undefined })} download>{title}</a><span>{what}</span></li>)}</ul>
        </details>
        <span class="grow" />
        {tree && <Legend tree={tree} state={state} difference={difference} />}
      </div>
      {answer.error ? <Failure error={answer.error}>{empty && hasRest(state) && <button onClick={() => update({ selection: null, band: null, filters: {} })}>Show all samples</button>}</Failure>
        : tree ? <div class={`flames ${list ? "listed" : ""} ${answer.loading ? "stale" : ""}`}>
          <FlameGraph tree={tree} unit={unit} matches={matches} state={state} label={spoken(tree, difference)} />
          {list && <Functions tree={tree} inside={state.zoom < tree.count ? state.zoom : 0} />}
        </div>
        : <Waiting what="Reading samples" tall />}
      {difference && answer.data && "risers" in answer.data && <Risers risers={answer.data.risers} against={state.base === "rest" ? "the rest" : "the baseline"} />}
      {(answer.data?.pruned?.nodes ?? 0) > 0 && <p class="note">{answer.data!.pruned!.nodes.toLocaleString("en")} frames below {percent(answer.data!.pruned!.min_share)} are not drawn. Choose a shorter time or a filter to see them; exports include them.</p>}
      {(answer.data?.part ?? 1) < 1 && <p class="note part">{inPart(answer.data!.part!)} of {difference ? "the selection's" : "its"} samples {answer.data!.baseline_part !== undefined && answer.data!.baseline_part < 1 ? <>and {inPart(answer.data!.baseline_part)} of the baseline's were</> : "was"} read, in chunks spread evenly over the time: short events may be missing. <button class="link" onClick={() => setExact(url)}>Read all</button> (may take a while), or choose a shorter time.</p>}
    </section>
  );
}

const inPart = (part: number): string => part > 0.4 ? "Half" : part > 0.28 ? "A third" : `1/${Math.round(1 / part).toLocaleString("en")}`;

function about(state: State, source: Source, data: FlameColumns | null): string {
  const range = state.selection ?? state.range;
  const parts = [range ? `${duration(range.to - range.from)} from ${clock(range.from, source.start_time, 1e6)}` : "the whole recording"];
  if (data?.samples !== undefined && data.samples !== null) parts.push(`${data.samples.toLocaleString("en")} samples`);
  if (data?.total && data.unit === "ns" && !(data as unknown as DifferenceColumns).baseline_total) parts.push(`${told(data.total, "ns")} of CPU time`);
  if (data?.event) parts.push(data.event);
  return parts.join(" · ");
}

function Compare({ state, source }: { state: State; source: Source }) {
  const rest = hasRest(state);
  return (
    <span class="choice" role="group" aria-label="Difference">
      <button aria-pressed={state.base === "rest"} disabled={!rest} title={rest ? "Show what takes a larger share here than in the rest (d)" : "Select a range first to compare it with the rest"}
        onClick={() => update({ base: state.base === "rest" ? null : "rest" })}>Compare with the rest</button>
      {state.base !== null && state.base !== "rest"
        ? <button aria-pressed={true} onClick={() => update({ base: null })} title="Stop comparing">Against {clock(state.base.from, source.start_time, 1e8)}, {duration(state.base.to - state.base.from)} ✕</button>
        : <button disabled={!state.selection} title={state.selection ? "Use this selection as the baseline, then select what to compare" : "Select a range first"} onClick={() => update({ base: state.selection, selection: null })}>Set as baseline</button>}
    </span>
  );
}

function Legend({ tree, state, difference }: { tree: Tree; state: State; difference: boolean }) {
  const theme = useTheme();
  const languages = useMemo(() => {
    const seen = new Map<string, number>();
    for (let frame = 1; frame < tree.count; frame++) if (tree.place[frame]) {
      const language = languageOf(nameOf(tree, frame), tree.place[frame]!);
      seen.set(language, (seen.get(language) ?? 0) + tree.own[frame]!);
    }
    return LANGUAGES.filter(language => (seen.get(language) ?? 0) > 0);
  }, [tree]);
  if (difference) return <span class="legend"><i style={{ background: css(changeFill(0, 1, theme)) }} />less <i style={{ background: css(changeFill(0.5, 0.5, theme)) }} />same <i style={{ background: css(changeFill(1, 0, theme)) }} />more than in the baseline</span>;
  if (state.flameBy === "language") return <span class="legend">{languages.map(language => <span key={language}><i style={{ background: css(languageFill(language, theme)) }} />{language}</span>)}</span>;
  const seen = new Set(tree.place);
  return <span class="legend">{([["user", 1], ["kernel", 2], ["generated", 3]] as const).filter(([, place]) => seen.has(place)).map(([name, place]) => <span key={name}><i style={{ background: css(placeFill(place, theme)) }} />{name}</span>)}</span>;
}

function Functions({ tree, inside }: { tree: Tree; inside: number }) {
  const all = useMemo(() => functionsOf(tree, inside), [tree, inside]);
  return (
    <div class="functions">
      <table>
        <caption>{inside > 0 ? `Below ${nameOf(tree, inside)}` : "By own time"}</caption>
        <thead><tr><th scope="col">function</th><th scope="col" class="number">own</th><th scope="col" class="number">with callees</th></tr></thead>
        <tbody>{all.slice(0, 60).map(one => <tr key={one.name}>
          <td><button class="link mono" onClick={() => update({ search: `^${one.name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$` })} title={one.name}>{one.name}</button></td>
          <td class="number">{percent(one.own)}</td><td class="number">{percent(one.total)}</td></tr>)}</tbody>
      </table>
      {all.length > 60 && <p class="note">and {all.length - 60} more</p>}
    </div>
  );
}

export function Risers({ risers, against }: { risers: Riser[]; against: string }) {
  if (!risers.length) return <p class="note">Nothing rose compared with {against}, beyond chance.</p>;
  const most = Math.max(...risers.map(riser => Math.max(riser.now, riser.baseline)), 0.0001);
  return (
    <div class="risers">
      <h3>What rose compared with {against}</h3>
      <table>
        <thead><tr><th scope="col">what</th><th scope="col">share of the time: before → now</th><th scope="col" class="number">change</th><th scope="col">mostly in</th></tr></thead>
        <tbody>{risers.slice(0, 20).map(riser => <tr key={riser.what + riser.name}>
          <td><button class="link mono" onClick={() => update({ search: `^${riser.name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$` })}>{riser.name}</button> <small>{riser.what === "command" ? "command" : "kernel function"}</small></td>
          <td class="pair"><span class="was" style={{ width: `${riser.baseline / most * 100}%` }} /><span class="is" style={{ width: `${riser.now / most * 100}%` }} /><span class="numbers">{percent(riser.baseline)} → <b>{percent(riser.now)}</b></span></td>
          <td class="number">{points(riser.now - riser.baseline)}</td>
          <td>{riser.mostly_in ? `${riser.mostly_in.command} (${percent(riser.mostly_in.share)})` : ""}</td></tr>)}</tbody>
      </table>
    </div>
  );
}

function spoken(tree: Tree, difference: boolean): string {
  const top = functionsOf(tree).slice(0, 5);
  const widest = Array.from(tree.levels[1] ?? []).slice(0, 3).map(frame => `${nameOf(tree, frame)} ${percent(tree.total[frame]! / (tree.total[0] || 1))}`);
  return `Flame graph${difference ? " of a difference" : ""}, ${tree.count} frames. Widest: ${widest.join(", ") || "nothing"}. Most own time: ${top.map(one => `${one.name} ${percent(one.own)}`).join(", ") || "nothing"}.`;
}
