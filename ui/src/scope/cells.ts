// FlameScope's view: one column per second, one row per part of it. Converts cells to times and back. Pure.
import type { OffsetHeatmap, Source } from "../api/types.ts";
import type { Range } from "../state.ts";
import { SECOND } from "../time/axis.ts";

export interface Spot { column: number; row: number }

export const timeOf = (map: OffsetHeatmap, { column, row }: Spot): number => map.axis_ns + column * SECOND + row * (SECOND / map.rows);

// The time range from one cell to another, across the ends of seconds.
export function rangeOf(map: OffsetHeatmap, a: Spot, b: Spot, whole: Range): Range {
  const [x, y] = [timeOf(map, a), timeOf(map, b)];
  return { from: Math.max(whole.from, Math.round(Math.min(x, y))), to: Math.min(whole.to, Math.round(Math.max(x, y) + SECOND / map.rows)) };
}
// The same part of each of several seconds.
export function bandOf(map: OffsetHeatmap, a: Spot, b: Spot, whole: Range): { range: Range; band: Range } {
  const [first, last] = [Math.min(a.column, b.column), Math.max(a.column, b.column)];
  const [low, high] = [Math.min(a.row, b.row), Math.max(a.row, b.row) + 1];
  return {
    range: { from: Math.max(whole.from, map.axis_ns + first * SECOND), to: Math.min(whole.to, map.axis_ns + (last + 1) * SECOND) },
    band: { from: Math.round(low * SECOND / map.rows), to: Math.round(high * SECOND / map.rows) },
  };
}

// A cell is selected if its middle is.
export function isSelected(map: OffsetHeatmap, spot: Spot, selection: Range | null, band: Range | null): boolean {
  const at = timeOf(map, spot) + SECOND / map.rows / 2;
  if (selection && (at < selection.from || at >= selection.to)) return false;
  const offset = (spot.row + 0.5) * SECOND / map.rows;
  return !band || (offset >= band.from && offset < band.to);
}

export function busiest(map: OffsetHeatmap): { spot: Spot; samples: number } | null {
  let best: { spot: Spot; samples: number } | null = null;
  map.columns.forEach((cells, column) => cells.forEach((samples, row) => { if (!best || samples > best.samples) best = { spot: { column, row }, samples }; }));
  return best;
}

// Nobody can tell apart more than an hour of columns. Both views need every sample; a directory's are not in memory, so there the
// time is limited to a few million samples.
const LONGEST = 3600 * SECOND, MOST_SAMPLES = 2e6;
export function longestOf(source: Source): number {
  const inDirectory = source.kind === "recorder" || source.kind === "directory", rate = (source.rate_hz ?? 0) * source.cores.length;
  return inDirectory && rate > 0 ? Math.min(LONGEST, Math.max(60, Math.floor(MOST_SAMPLES / rate / 60) * 60) * SECOND) : LONGEST;
}
