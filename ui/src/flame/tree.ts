// A flame graph as columns of numbers, with the position of each frame. Pure; 100,000 frames are laid out in milliseconds.
import type { DifferenceColumns, FlameColumns } from "../api/types.ts";

export interface Tree {
  names: string[];
  count: number;
  name: Int32Array; parent: Int32Array; place: Uint8Array;
  total: Float64Array; own: Float64Array;             // shown as widths
  now: Float64Array | null; baseline: Float64Array | null;   // only for a difference: shares of each side
  left: Float64Array;                                 // left edge, in the unit of `total`
  depth: Int32Array;
  levels: Int32Array[];                               // frames of each depth, from left to right
}

interface Columns { names: string[]; name: ArrayLike<number>; parent: ArrayLike<number>; place: ArrayLike<number>; total: ArrayLike<number>; own: ArrayLike<number>; now?: ArrayLike<number>; baseline?: ArrayLike<number> }

const PLACES: Record<string, number> = { u: 1, k: 2, j: 3 };
const codes = (letters: string[]): number[] => letters.map(letter => PLACES[letter] ?? 0);
// Removes the place marks of folded stacks: the colour shows the place.
const plain = (names: string[]): string[] => names.map(name => name.replace(/_\[[kij]\]$/, ""));

export const treeOf = ({ names, nodes }: FlameColumns): Tree => layOut({ names: plain(names), ...nodes, place: codes(nodes.place) });
// Widths of the selection or of the baseline, which shows what is gone.
export const differenceTree = ({ names, nodes }: DifferenceColumns, widths: "now" | "baseline"): Tree => layOut({
  names: plain(names), name: nodes.name, parent: nodes.parent, place: codes(nodes.place), total: nodes[widths], own: widths === "now" ? nodes.own_now : nodes.own_baseline, now: nodes.now, baseline: nodes.baseline,
});

export function layOut(columns: Columns): Tree {
  const count = columns.name.length;
  const parent = Int32Array.from(columns.parent), total = Float64Array.from(columns.total);
  const depth = new Int32Array(count), left = new Float64Array(count);
  // Groups children by parent with a counting sort.
  const first = new Int32Array(count + 1);
  for (let at = 1; at < count; at++) first[parent[at]! + 1]!++;
  for (let at = 0; at < count; at++) first[at + 1]! += first[at]!;
  const next = first.slice(0, count), children = new Int32Array(Math.max(0, count - 1));
  for (let at = 1; at < count; at++) children[next[parent[at]!]!++] = at;
  const levels: Int32Array[] = [];
  let level = count ? Int32Array.of(0) : new Int32Array(0);
  while (level.length) {
    levels.push(level);
    const below: number[] = [];
    for (const frame of level) {
      const own = children.subarray(first[frame]!, first[frame + 1]!);
      // Widest first, so that what matters is on the left.
      if (own.length > 1) own.sort((a, b) => total[b]! - total[a]! || a - b);
      let x = left[frame]!;
      for (const child of own) {
        if (total[child]! <= 0) continue;
        left[child] = x;
        depth[child] = depth[frame]! + 1;
        x += total[child]!;
        below.push(child);
      }
    }
    level = Int32Array.from(below);
  }
  return {
    names: columns.names, count, name: Int32Array.from(columns.name), parent, place: Uint8Array.from(columns.place), total, own: Float64Array.from(columns.own),
    now: columns.now ? Float64Array.from(columns.now) : null, baseline: columns.baseline ? Float64Array.from(columns.baseline) : null, left, depth, levels,
  };
}

export const nameOf = (tree: Tree, frame: number): string => tree.names[tree.name[frame]!] ?? "?";

// The first frame of a level that extends beyond x.
export function firstBeyond(tree: Tree, level: Int32Array, x: number): number {
  let [low, high] = [0, level.length];
  while (low < high) {
    const middle = (low + high) >> 1, frame = level[middle]!;
    if (tree.left[frame]! + tree.total[frame]! > x) high = middle; else low = middle + 1;
  }
  return low;
}

export function frameAt(tree: Tree, depth: number, x: number): number {
  const level = tree.levels[depth];
  if (!level) return -1;
  const at = firstBeyond(tree, level, x);
  return at < level.length && tree.left[level[at]!]! <= x ? level[at]! : -1;
}

export interface Search { expression: RegExp; plain: boolean }
// A regular expression; lower case matches both cases. Invalid expressions are searched for literally.
export function searchOf(text: string): Search | null {
  if (!text) return null;
  const flags = text === text.toLowerCase() ? "i" : "";
  try { return { expression: new RegExp(text, flags), plain: false }; } catch { return { expression: new RegExp(text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), flags), plain: true }; }
}

export interface Matches { hit: Uint8Array; frames: number; share: number; baseline: number | null; order: number[] }

// The share of stacks with a matching frame: each counts once, however many of its frames match.
export function matchesOf(tree: Tree, search: Search | null): Matches | null {
  if (!search) return null;
  const byName = new Uint8Array(tree.names.length);
  tree.names.forEach((name, at) => { byName[at] = search.expression.test(name) ? 1 : 0; });
  const hit = new Uint8Array(tree.count), below = new Uint8Array(tree.count);
  let frames = 0, weight = 0, baseline = 0;
  const order: number[] = [];
  for (const level of tree.levels) for (const frame of level) {
    if (frame === 0) continue;
    const parent = tree.parent[frame]!, inside = hit[parent]! || below[parent]!;
    if (inside) below[frame] = 1;
    if (!byName[tree.name[frame]!]) continue;
    hit[frame] = 1;
    frames++;
    if (!inside) { weight += tree.total[frame]!; baseline += tree.baseline?.[frame] ?? 0; order.push(frame); }
  }
  order.sort((a, b) => tree.total[b]! - tree.total[a]!);
  return { hit, frames, share: weight / (tree.total[0] || 1), baseline: tree.baseline ? baseline : null, order };
}

export interface Function { name: string; place: number; own: number; total: number; change: number | null }

// Functions by own time. For recursive functions the time with callees counts once.
export function functionsOf(tree: Tree, inside = 0): Function[] {
  const by = new Map<number, Function>();
  const open = new Int32Array(tree.names.length);
  const stack: number[] = [];
  const children: number[][] = [];
  for (let frame = 1; frame < tree.count; frame++) (children[tree.parent[frame]!] ??= []).push(frame);
  const all = tree.total[inside] || 1;
  const walk = [inside];
  while (walk.length) {
    const frame = walk.pop()!;
    if (frame < 0) { open[stack.pop()!]!--; continue; }
    const name = tree.name[frame]!;
    if (frame !== 0 && tree.place[frame] !== 0) {
      const known = by.get(name) ?? { name: tree.names[name]!, place: tree.place[frame]!, own: 0, total: 0, change: tree.now ? 0 : null };
      known.own += tree.own[frame]! / all;
      if (!open[name]) {
        known.total += tree.total[frame]! / all;
        if (tree.now) known.change! += tree.now[frame]! - tree.baseline![frame]!;
      }
      by.set(name, known);
    }
    open[name]!++;
    stack.push(name);
    walk.push(-1);
    for (const child of children[frame] ?? []) walk.push(child);
  }
  return [...by.values()].sort((a, b) => b.own - a.own);
}

export const percent = (share: number): string => share === 0 ? "0 %" : share >= 0.9995 ? "100 %" : share < 0.001 ? `${(share * 100).toFixed(3)} %` : share < 0.1 ? `${(share * 100).toFixed(2)} %` : `${(share * 100).toFixed(1)} %`;
export const points = (by: number): string => `${by >= 0 ? "+" : "−"}${(Math.abs(by) * 100).toFixed(Math.abs(by) < 0.001 ? 3 : 2)} points`;

// Names from the root to the frame.
export function pathOf(tree: Tree, frame: number): string[] {
  const path: string[] = [];
  for (let at = frame; at > 0; at = tree.parent[at]!) path.unshift(nameOf(tree, at));
  return path;
}
