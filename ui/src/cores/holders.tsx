// Who used the cores in the selection, as a list.
import { useMemo } from "preact/hooks";
import type { CoreGrid } from "../api/types.ts";
import { css, ownerColour, ownerKey } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { now, update, type State } from "../state.ts";
import { coresIn, holdersOf, ownerName } from "./rows.ts";

export function Holders({ grid, state }: { grid: CoreGrid; state: State }) {
  const theme = useTheme();
  const all = useMemo(() => holdersOf(grid, state.selection, coresIn(state.filters.core)).filter(holder => holder.cores > 0.005).slice(0, 6), [grid, state.selection, state.filters.core]);
  if (!all.length) return null;
  return (
    <section class="panel small holders" aria-label="Owners of the cores">
      <h2>Who used {state.filters.core ? `core ${state.filters.core}` : "the cores"}{state.selection ? " in the selection" : ""}</h2>
      <ul>{all.map(holder => {
        const owner = grid.owners[holder.owner]!, key = owner.key ?? ownerKey(owner.comm);
        const on = [...holder.on].filter(([, share]) => share > holder.cores * 0.1).sort((a, b) => b[1] - a[1]).map(([core]) => core);
        return <li key={holder.owner}><i style={{ background: css(ownerColour(key, theme)) }} /><button class="link mono" onClick={() => update({ filters: { ...now().filters, comm: owner.comm } })} title="Show only this command in the flame graph">{ownerName(owner)}</button>
          <b>{holder.cores >= 0.1 ? `${Math.round(holder.cores * 100)} %` : `${(holder.cores * 100).toFixed(1)} %`}</b><span class="muted">of one core, {on.length > 4 ? `on ${on.length} cores` : `on core ${on.join(", ")}`}{owner.unit ? ` · ${owner.unit}` : ""}</span></li>;
      })}</ul>
    </section>
  );
}
