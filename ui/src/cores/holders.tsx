// Who had the cores in the selection: the words to the picture.
import { useMemo } from "preact/hooks";
import type { CoreGrid } from "../api/types.ts";
import { css, ownerColour } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { now, update, type Range, type State } from "../state.ts";
import { coresIn, ownerName } from "./rows.ts";

export interface Holder { owner: number; cores: number; on: Map<number, number> }

// Core seconds by owner, over part of the grid.
export function holdersOf(grid: CoreGrid, range: Range | null, only: Set<number>): Holder[] {
  const each = (grid.to - grid.from) / grid.columns;
  const from = range ? Math.max(0, Math.floor((range.from - grid.from) / each)) : 0;
  const to = range ? Math.min(grid.columns, Math.max(from + 1, Math.ceil((range.to - grid.from) / each))) : grid.columns;
  const by = new Map<number, Holder>();
  for (const row of grid.cores) {
    if (only.size && !only.has(row.core)) continue;
    for (let column = from; column < to; column++) {
      const owner = row.owner[column] ?? -1;
      if (owner < 0) continue;
      const share = (row.busy[column] ?? 0) * (row.owner_share[column] ?? 0) / 1e4 / Math.max(1, to - from);
      const holder = by.get(owner) ?? { owner, cores: 0, on: new Map() };
      holder.cores += share;
      holder.on.set(row.core, (holder.on.get(row.core) ?? 0) + share);
      by.set(owner, holder);
    }
  }
  return [...by.values()].sort((a, b) => b.cores - a.cores);
}

export function Holders({ grid, state }: { grid: CoreGrid; state: State }) {
  const theme = useTheme();
  const all = useMemo(() => holdersOf(grid, state.selection, coresIn(state.filters.core)).filter(holder => holder.cores > 0.005).slice(0, 6), [grid, state.selection, state.filters.core]);
  if (!all.length) return null;
  return (
    <section class="panel small holders" aria-label="Who had the cores">
      <h2>Who had {state.filters.core ? `core ${state.filters.core}` : "the cores"}{state.selection ? " in the selection" : ""}</h2>
      <ul>{all.map(holder => {
        const owner = grid.owners[holder.owner]!, key = owner.key ?? owner.comm;
        const on = [...holder.on].filter(([, share]) => share > holder.cores * 0.1).sort((a, b) => b[1] - a[1]).map(([core]) => core);
        return <li key={holder.owner}><i style={{ background: css(ownerColour(key, theme)) }} /><button class="link mono" onClick={() => update({ filters: { ...now().filters, comm: owner.comm } })} title="Only this command in the flame graph">{ownerName(owner)}</button>
          <b>{holder.cores >= 0.1 ? `${Math.round(holder.cores * 100)} %` : `${(holder.cores * 100).toFixed(1)} %`}</b><span class="muted">of one core, {on.length > 4 ? `on ${on.length} cores` : `on core ${on.join(", ")}`}{owner.unit ? ` · ${owner.unit}` : ""}</span></li>;
      })}</ul>
    </section>
  );
}
