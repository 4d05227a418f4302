import assert from "node:assert/strict";
import { test } from "node:test";
import { clock, duration, elapsed, marks, midnight, moved, MS, onAxis, place, SECOND, SHORTEST, timeAt, within, zoomed } from "../src/time/axis.ts";

const axis = { from: 2 * SECOND, to: 12 * SECOND, left: 100, width: 1000 };
const whole = { from: 0, to: 100 * SECOND };

test("positions and times convert both ways", () => {
  assert.equal(place(axis, 7 * SECOND), 600);
  assert.equal(timeAt(axis, 600), 7 * SECOND);
});

test("ticks are at round wall-clock times", () => {
  const start = "2026-11-16T19:06:00.300Z", epoch = midnight(start)!.epoch;
  const at = marks(axis, epoch);
  assert.ok(at.length >= 4 && at.length <= 10, `${at.length}`);
  for (const mark of at) assert.match(clock(mark.at, start, mark.step), /^19:06:\d\d$/);
  assert.equal(clock(at[0]!.at, start, at[0]!.step), "19:06:04");
});

test("every range has a few ticks, never none", () => {
  for (const length of [20 * MS, 500 * MS, SECOND, 60 * SECOND, 3600 * SECOND, 86_400 * SECOND, 30 * 86_400 * SECOND]) {
    const at = marks({ ...axis, from: 0, to: length }, 12_345_678_901);
    assert.ok(at.length >= 1 && at.length <= 10, `${length}: ${at.length}`);
  }
});

test("times are shown in UTC across midnight, or relative to the start", () => {
  assert.equal(clock(2 * SECOND, "2026-11-16T23:59:59Z", SECOND), "00:00:01");
  assert.equal(clock(1_234_567, "2026-11-16T10:00:00Z", MS), "10:00:00.001");
  assert.equal(clock(59_999_999_999, "2026-11-16T10:00:00Z", SECOND), "10:01:00");
  assert.equal(clock(90 * SECOND, null, SECOND), "1:30");
  assert.equal(clock(1.5 * SECOND, null, 100 * MS), "1.5 s");
  assert.equal(elapsed(-500 * MS, 100 * MS), "−0.5 s");
  assert.equal(midnight("nonsense"), null);
});

test("durations are readable", () => {
  const told = [[1500, "2 µs"], [1.5 * MS, "1.5 ms"], [350 * MS, "350 ms"], [14.3 * SECOND, "14.3 s"], [100 * SECOND, "100 s"], [150 * SECOND, "2 min 30 s"], [3 * 3600 * SECOND, "3 h"], [86_400 * 3 * SECOND, "3 days"]] as const;
  for (const [ns, text] of told) assert.equal(duration(ns), text);
});

test("zoom keeps the time under the pointer and stays within the source", () => {
  const range = { from: 10 * SECOND, to: 20 * SECOND };
  const near = zoomed(range, whole, 12 * SECOND, 0.5);
  assert.deepEqual(near, { from: 11 * SECOND, to: 16 * SECOND });
  assert.deepEqual(zoomed(range, whole, 12 * SECOND, 1000), whole);
  assert.equal(zoomed(range, whole, 12 * SECOND, 1e-12).to - zoomed(range, whole, 12 * SECOND, 1e-12).from, SHORTEST);
  assert.deepEqual(moved(range, whole, -5), { from: 0, to: 10 * SECOND });
  assert.deepEqual(within({ from: -5, to: 2e12 }, whole), whole);
});

test("wall-clock times are placed on the axis", () => {
  assert.equal(onAxis("2026-11-16T10:00:01.500Z", "2026-11-16T10:00:00Z"), 1.5 * SECOND);
  assert.equal(onAxis("2026-11-16T10:00:01Z", null), null);
});
