// What the colours of the cores mean, and the switch between kind and owner.
import { useMemo } from "preact/hooks";
import type { CoreGrid } from "../api/types.ts";
import { css, ownerColour, paletteOf } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { update, type State } from "../state.ts";

const KINDS = [["user", "user"], ["system", "kernel"], ["irq", "interrupts"], ["steal", "steal"]] as const;

export function CoresLegend({ grid, state }: { grid: CoreGrid | null; state: State }) {
  const theme = useTheme(), palette = paletteOf(theme);
  const owners = useMemo(() => grid ? topOwners(grid, 5) : [], [grid]);
  return (
    <>
      <span class="legend">{state.coresBy === "kind" ? <>{KINDS.map(([kind, name]) => <span key={kind}><i style={{ background: css(palette[kind]) }} />{name}</span>)}</>
        : <>{owners.map(name => <span key={name}><i style={{ background: css(ownerColour(name, theme)) }} />{name}</span>)}<span><i style={{ background: css(palette.other) }} />others</span></>}
        <span><i style={{ background: css(palette.unseen) }} />not seen</span></span>
      <span class="choice" role="radiogroup" aria-label="Colours of the cores (o)">
        <button role="radio" aria-checked={state.coresBy === "kind"} onClick={() => update({ coresBy: "kind" }, true)}>Kind</button>
        <button role="radio" aria-checked={state.coresBy === "owner"} onClick={() => update({ coresBy: "owner" }, true)}>Owner</button>
      </span>
    </>
  );
}

function topOwners(grid: CoreGrid, most: number): string[] {
  const used = new Map<string, number>();
  for (const row of grid.cores) row.owner.forEach((owner, column) => {
    if (owner < 0) return;
    const key = grid.owners[owner]?.key ?? "?";
    used.set(key, (used.get(key) ?? 0) + (row.busy[column] ?? 0) * (row.owner_share[column] ?? 0));
  });
  return [...used].sort((a, b) => b[1] - a[1]).slice(0, most).map(([name]) => name);
}
