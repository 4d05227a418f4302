// The current selection as chips, with its actions.
import { useState } from "preact/hooks";
import type { Source } from "../api/types.ts";
import { bandText } from "../flame/query.ts";
import { FILTERS, now, update, type State } from "../state.ts";
import { clock, duration } from "../time/axis.ts";

const TITLES: Record<string, string> = { comm: "command", pid: "process", tid: "thread", symbol: "function" };

export function SelectionBar({ source, state }: { source: Source; state: State }) {
  const [copied, setCopied] = useState(false);
  const filters = FILTERS.filter(name => state.filters[name]);
  const any = state.selection || state.range || state.band || filters.length > 0 || state.base;
  if (!any) return <div class="selection empty"><span class="muted">Drag over any time axis to select · Ctrl + wheel zooms · <kbd>?</kbd> all keys</span></div>;
  const without = (name: typeof FILTERS[number]) => { const { [name]: _, ...others } = now().filters; return others; };
  return (
    <div class="selection" role="group" aria-label="Selection">
      {state.range && <Chip title="Visible range" onClose={() => update({ range: null })}>axis {clock(state.range.from, source.start_time, 1e6)} – {clock(state.range.to, source.start_time, 1e6)}</Chip>}
      {state.selection && <Chip strong title="The flame graph and lists show this selection" onClose={() => update({ selection: null, band: null })}>{clock(state.selection.from, source.start_time, 1e6)} – {clock(state.selection.to, source.start_time, 1e6)} · {duration(state.selection.to - state.selection.from)}</Chip>}
      {state.band && <Chip strong title="This part of each second" onClose={() => update({ band: null })}>{bandText(state.band)} of each second</Chip>}
      {filters.map(name => <Chip key={name} strong title="Only these samples" onClose={() => update({ filters: without(name) })}>{TITLES[name] ?? name} {state.filters[name]}</Chip>)}
      {state.base && <Chip title="Compared with" onClose={() => update({ base: null })}>against {state.base === "rest" ? "the rest" : `${clock(state.base.from, source.start_time, 1e6)} · ${duration(state.base.to - state.base.from)}`}</Chip>}
      <span class="grow" />
      {state.selection && <button onClick={() => update({ range: state.selection })} title="z">Zoom in</button>}
      {state.selection && state.view !== "overview" && source.has.diagnosis && <button onClick={() => update({ view: "overview" })} title="Diagnose only this range">Diagnose this</button>}
      <button onClick={() => navigator.clipboard?.writeText(location.href).then(() => { setCopied(true); setTimeout(() => setCopied(false), 1500); }, () => undefined)} title="The address contains the whole selection">{copied ? "Copied" : "Copy link"}</button>
      <button onClick={() => update({ selection: null, range: null, band: null, base: null, filters: {} })} title="Esc">Clear</button>
    </div>
  );
}

function Chip({ children, title, strong = false, onClose }: { children: preact.ComponentChildren; title: string; strong?: boolean; onClose: () => void }) {
  return <span class={`chip ${strong ? "strong" : ""}`} title={title}>{children}<button onClick={onClose} aria-label="Remove" title="Remove">✕</button></span>;
}
