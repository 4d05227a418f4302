import assert from "node:assert/strict";
import { test } from "node:test";
import { change, read, START, write, type State } from "../src/state.ts";

const full: State = {
  view: "profile", range: { from: 1_000_000_000, to: 14_300_000_001 }, selection: { from: 2_500_000_000, to: 2_850_000_000 }, band: { from: 300_000_000, to: 400_000_000 },
  base: { from: 0, to: 2_000_000_000 }, filters: { core: "1,3-5", comm: "stress & ng=1#", cgroup: "/kubepods/a b", symbol: "über::<T>" }, search: "^shrink_(node|lruvec)$", inverted: true,
  coresBy: "owner", flameBy: "language", waitsBy: "unit", zoom: 1234, shown: "1:f|core-saturated|core|1", incident: 7, all: true,
};

test("an address restores what was written into it, to the nanosecond", () => {
  assert.deepEqual(read(write(full)), full);
  assert.deepEqual(read(write({ ...full, base: "rest", incident: null })), { ...full, base: "rest", incident: null });
  assert.deepEqual(read(write(START)), START);
  assert.equal(write(START), "#v=overview");
});

test("an invalid address shows the start page instead of breaking", () => {
  for (const hash of ["", "#", "#%", "#v=evil", "#t=5..1&sel=a..b", "#sel=1..", "#t=1e99..2", "#z=-4&n=x", "#sel=1..1", "#t=" + "9".repeat(400) + "..1"]) assert.deepEqual(read(hash), START, hash);
  assert.equal(read("#comm=" + "x".repeat(500)).filters.comm, undefined);
});

test("a new selection is a new flame graph: the zoom is reset", () => {
  assert.equal(change(full, { selection: { from: 0, to: 5 } }).zoom, 0);
  assert.equal(change(full, { inverted: false }).zoom, 0);
  assert.equal(change(full, { selection: { ...full.selection! } }).zoom, full.zoom);
  assert.equal(change(full, { search: "x" }).zoom, full.zoom);
});
