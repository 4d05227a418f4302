// Which cores are shown and how their cells are coloured. Pure: no canvas, no page.
import type { CoreGrid, CoreRow } from "../api/types.ts";
import type { Range } from "../state.ts";
import { mix, ownerColour, ownerKey, type Palette, type Rgb, type Theme } from "../paint/colour.ts";

// A quiet core is never full and mostly idle. A few cores are never folded: folding two of four helps nobody.
const NEVER_FULL = 60, MOSTLY_IDLE = 25, ALWAYS_SHOWN = 8;

export function mean(values: (number | null)[]): number | null {
  let [sum, seen] = [0, 0];
  for (const value of values) if (value !== null) { sum += value; seen++; }
  return seen ? sum / seen : null;
}
export function highest(values: (number | null)[]): number | null {
  let most: number | null = null;
  for (const value of values) if (value !== null && (most === null || value > most)) most = value;
  return most;
}

export function isQuiet(row: CoreRow): boolean {
  return (highest(row.busy) ?? 0) < NEVER_FULL && (mean(row.busy) ?? 0) < MOSTLY_IDLE;
}

export interface Rows { shown: CoreRow[]; folded: CoreRow[] }

// Worst first, as sent by the server; filtered cores stay even if they are quiet.
export function rowsOf(grid: CoreGrid, all: boolean, asked: Set<number>, most = Infinity): Rows {
  if (all) return { shown: grid.cores, folded: [] };
  const few = grid.cores.length <= ALWAYS_SHOWN;
  const shown = grid.cores.filter((row, at) => (few || at === 0 || asked.has(row.core) || !isQuiet(row))).slice(0, most);
  const kept = new Set(shown);
  return { shown, folded: grid.cores.filter(row => !kept.has(row)) };
}

// Parses the filter "0-3,7"; invalid parts are ignored.
export function coresIn(filter: string | undefined): Set<number> {
  const out = new Set<number>();
  for (const part of (filter ?? "").split(",")) {
    const found = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(part.trim());
    if (!found) continue;
    const [low, high] = [Number(found[1]), Number(found[2] ?? found[1])];
    for (let core = low; core <= Math.min(high, low + 9999); core++) out.add(core);
  }
  return out;
}

export function coreList(cores: Iterable<number>): string {
  const sorted = [...new Set(cores)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let at = 0; at < sorted.length;) {
    let end = at;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end]! + 1) end++;
    parts.push(end > at ? `${sorted[at]}-${sorted[end]}` : `${sorted[at]}`);
    at = end + 1;
  }
  return parts.join(",");
}

export type Kind = "user" | "system" | "irq" | "steal";
export const KINDS: Kind[] = ["user", "system", "irq", "steal"];

// The largest kind of time in a cell.
export function kindOf(row: CoreRow, column: number): Kind {
  let best: Kind = "user", most = -1;
  for (const kind of KINDS) {
    const value = row[kind][column] ?? 0;
    if (value > most) { most = value; best = kind; }
  }
  return best;
}

// Fills `height` rows of pixels per core: a single row shows busy as colour strength, more rows as the height of a bar.
export function paintRow(pixels: Uint8ClampedArray, width: number, top: number, height: number, row: CoreRow, grid: CoreGrid, by: "kind" | "owner", palette: Palette, owners: Rgb[], cells: Map<number, Rgb> = new Map()): void {
  for (let column = 0; column < grid.columns; column++) {
    const busy = row.busy[column] ?? null;
    if (busy === null) { fill(pixels, width, column, top, height, palette.unseen); continue; }
    const owner = row.owner[column] ?? -1, share = row.owner_share[column] ?? 0;
    if (height === 1) {
      const kind = by === "kind" ? kindOf(row, column) : null;
      const key = kind ? KINDS.indexOf(kind) * 101 + Math.round(busy) : ((owner + 1) * 101 + Math.round(share)) * 101 + Math.round(busy);
      let cell = cells.get(key);
      if (!cell) {
        const colour = kind ? palette[kind] : owner >= 0 ? mix(palette.other, owners[owner]!, Math.min(1, 0.25 + share / 100)) : palette.other;
        // Half-busy cells are much paler than full ones, so that full ones stand out.
        cell = mix(palette.empty, colour, (busy / 100) ** 1.4);
        cells.set(key, cell);
      }
      put(pixels, (top * width + column) * 4, cell);
      continue;
    }
    fill(pixels, width, column, top, height, palette.empty);
    let level = 0;
    const stack = (amount: number, colour: Rgb) => {
      const from = Math.round(level / 100 * height), to = Math.round(Math.min(100, level + amount) / 100 * height);
      for (let y = from; y < to; y++) put(pixels, ((top + height - 1 - y) * width + column) * 4, colour);
      level += amount;
    };
    if (by === "owner") {
      stack(busy * share / 100, owner >= 0 ? owners[owner]! : palette.other);
      stack(busy - level, palette.other);
    } else {
      for (const kind of ["system", "irq", "steal", "user"] as const) stack(row[kind][column] ?? 0, palette[kind]);
      if (level < busy) stack(busy - level, palette.other);
    }
  }
}

function put(pixels: Uint8ClampedArray, at: number, colour: Rgb): void {
  pixels[at] = colour[0]; pixels[at + 1] = colour[1]; pixels[at + 2] = colour[2]; pixels[at + 3] = 255;
}
function fill(pixels: Uint8ClampedArray, width: number, column: number, top: number, height: number, colour: Rgb): void {
  for (let y = top; y < top + height; y++) put(pixels, (y * width + column) * 4, colour);
}

export const ownerColours = (grid: CoreGrid, theme: Theme): Rgb[] => grid.owners.map(owner => ownerColour(owner.key ?? ownerKey(owner.comm), theme));

// Runs of columns with one owner, to label them.
export function runs(row: CoreRow): { owner: number; from: number; to: number }[] {
  const out: { owner: number; from: number; to: number }[] = [];
  for (let column = 0; column < row.owner.length; column++) {
    const owner = (row.busy[column] ?? 0) >= 30 && (row.owner_share[column] ?? 0) >= 40 ? row.owner[column]! : -1;
    const last = out[out.length - 1];
    if (last && last.owner === owner && last.to === column) last.to++;
    else if (owner >= 0) out.push({ owner, from: column, to: column + 1 });
  }
  return out;
}

export interface Held { owner: number; share: number }
// Who used most of a core's busy time, over columns a..b.
export function ownerOver(row: CoreRow, from = 0, to = row.owner.length): Held | null {
  const used = new Map<number, number>();
  let all = 0;
  for (let column = from; column < to; column++) {
    const busy = row.busy[column] ?? 0;
    all += busy;
    const owner = row.owner[column] ?? -1;
    if (owner >= 0) used.set(owner, (used.get(owner) ?? 0) + busy * (row.owner_share[column] ?? 0) / 100);
  }
  let best: Held | null = null;
  for (const [owner, time] of used) if (all > 0 && (!best || time / all > best.share)) best = { owner, share: time / all };
  return best;
}

export const ownerName = (owner: { comm: string; pid: number | null; tid: number | null } | undefined): string =>
  owner ? owner.pid === null ? owner.comm : owner.tid === owner.pid || !owner.tid ? `${owner.comm}[${owner.pid}]` : `${owner.comm}[${owner.pid}/${owner.tid}]` : "unknown owner";

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

// For screen readers.
export function summary(grid: CoreGrid, rows: Rows): string {
  const told = rows.shown.slice(0, 5).map(row => {
    const held = ownerOver(row);
    return `core ${row.core} ${Math.round(mean(row.busy) ?? 0)} % busy${held ? `, mostly ${ownerName(grid.owners[held.owner])}` : ""}${row.serves.length ? `, serves ${row.serves.join(", ")}` : ""}`;
  });
  return `Cores over time, worst first: ${told.join("; ")}${rows.folded.length ? `; ${rows.folded.length} quiet cores are folded` : ""}. On average ${Math.round(mean(grid.average) ?? 0)} % busy.`;
}
