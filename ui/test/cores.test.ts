import assert from "node:assert/strict";
import { test } from "node:test";
import type { CoreGrid, CoreRow } from "../src/api/types.ts";
import { coreList, coresIn, holdersOf, kindOf, ownerOver, paintRow, rowsOf, runs, summary } from "../src/cores/rows.ts";
import { PALETTES } from "../src/paint/colour.ts";

const row = (core: number, busy: (number | null)[], kind: "user" | "system" = "user", owner = 0): CoreRow => {
  const of = (wanted: string) => busy.map(value => value === null ? null : wanted === kind ? value : 0);
  return { core, serves: core === 7 ? ["eth0 rx-3"] : [], score: 0, busy, user: of("user"), system: of("system"), irq: of("irq"), steal: of("steal"), owner: busy.map(value => value ? owner : -1), owner_share: busy.map(value => value ? 90 : 0) };
};
const grid = (cores: CoreRow[]): CoreGrid => ({ from: 0, to: 4e9, step_ns: 1e9, columns: 4, source: "time", cores, owners: [{ comm: "spin", pid: 5, tid: 5, key: "spin" }, { comm: "other", pid: 6, tid: 8 }], average: [10, 10, 10, 10] });

test("one full core of 192 is visible; quiet cores are folded, selected ones stay", () => {
  const cores = [row(7, [100, 100, 100, 100], "system"), ...Array.from({ length: 191 }, (_, at) => row(at + 8, [3, 4, 2, 50]))];
  const rows = rowsOf(grid(cores), false, new Set());
  assert.deepEqual([rows.shown.map(one => one.core), rows.folded.length], [[7], 191]);
  assert.deepEqual(rowsOf(grid(cores), false, new Set([20])).shown.map(one => one.core), [7, 20]);
  assert.equal(rowsOf(grid(cores), true, new Set()).shown.length, 192);
  assert.match(summary(grid(cores), rows), /core 7 100 % busy, mostly spin\[5\], serves eth0 rx-3.*191 quiet cores are folded/);
});

test("a core with a short burst is not folded", () => {
  const cores = Array.from({ length: 20 }, (_, at) => row(at, at === 3 ? [2, 100, 2, 2] : [2, 2, 2, 2]));
  assert.ok(rowsOf(grid(cores), false, new Set()).shown.some(one => one.core === 3));
  assert.equal(rowsOf(grid(cores.slice(0, 4)), false, new Set()).folded.length, 0, "a few cores are all shown");
});

test("lists of cores are read and written", () => {
  assert.equal(coreList([5, 1, 2, 3, 9]), "1-3,5,9");
  assert.deepEqual([...coresIn("1-3,5,9")], [1, 2, 3, 5, 9]);
  assert.deepEqual([...coresIn("x,-,3-1,")], []);
});

test("not seen is neither idle nor busy", () => {
  const pixels = new Uint8ClampedArray(4 * 4), palette = PALETTES.dark, one = row(1, [null, 0, 100, 50], "system");
  paintRow(pixels, 4, 0, 1, one, grid([one]), "kind", palette, []);
  const at = (column: number) => [...pixels.slice(column * 4, column * 4 + 3)];
  assert.deepEqual(at(0), [...palette.unseen]);
  assert.deepEqual(at(1), [...palette.empty]);
  assert.deepEqual(at(2), [...palette.system]);
  assert.notDeepEqual(at(3), at(2));
  assert.equal(kindOf(one, 2), "system");
});

test("a day of 192 cores needs few colours: each is computed once", () => {
  const columns = 2400, busy = Array.from({ length: columns }, (_, at) => at % 101), cores = Array.from({ length: 192 }, (_, at) => row(at, busy, at % 2 ? "user" : "system", at % 2));
  const pixels = new Uint8ClampedArray(columns * 192 * 4), cells = new Map();
  cores.forEach((one, at) => paintRow(pixels, columns, at, 1, one, { ...grid(cores), columns }, "kind", PALETTES.dark, [], cells));
  assert.ok(cells.size <= 404);
});

test("a bar's height is the core's load", () => {
  const pixels = new Uint8ClampedArray(4 * 10 * 4), palette = PALETTES.light, one = row(1, [100, 50, 0, null], "user");
  paintRow(pixels, 4, 0, 10, one, grid([one]), "kind", palette, []);
  const filled = (column: number) => Array.from({ length: 10 }, (_, y) => [...pixels.slice((y * 4 + column) * 4, (y * 4 + column) * 4 + 3)].join()).filter(pixel => pixel === palette.user.join()).length;
  assert.deepEqual([0, 1, 2].map(filled), [10, 5, 0]);
});

test("the owner of a core, and its share", () => {
  const one = row(1, [100, 100, 50, 0]);
  assert.deepEqual(runs(one), [{ owner: 0, from: 0, to: 3 }]);
  assert.ok(Math.abs(ownerOver(one)!.share - 0.9) < 1e-9);
  assert.equal(ownerOver(row(1, [0, 0, null, 0])), null);
  const held = holdersOf(grid([one, row(2, [10, 10, 10, 10], "user", 1)]), { from: 0, to: 2e9 }, new Set());
  assert.deepEqual(held.map(holder => [holder.owner, Number(holder.cores.toFixed(3))]), [[0, 0.9], [1, 0.09]]);
  assert.equal(holdersOf(grid([one]), null, new Set([4])).length, 0);
});
