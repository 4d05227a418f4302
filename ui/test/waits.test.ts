import assert from "node:assert/strict";
import { test } from "node:test";
import type { WaitRow, Who } from "../src/api/types.ts";
import { matrixOf, nameOf, takers, time } from "../src/waits/matrix.ts";

const who = (name: string, pid: number | null = null, more: Partial<Who> = {}): Who => ({ kind: "process", name, pid, tid: null, parent_pid: null, cgroup: null, ...more });
const row = (name: string, pid: number, charged: [Who, number, number, string][]): WaitRow => ({
  who: who(name, pid), ran_ms: 100, waited_ms: charged.reduce((sum, [, , ms]) => sum + ms, 0), throttled_ms: 0, blocked_ms: 0, longest_wait_ms: 1,
  charged: charged.map(([to, core, ms, why]) => ({ to, core, ms, why })), blocked_on: [], kept_on_cores: null,
});
const hog = who("hog", 7), storm = who("short-lived sh of storm", null, { kind: "short-lived", parent_pid: 9 }), idle = who("idle core", null, { kind: "idle" });

test("what one took is summed over cores and reasons", () => {
  const [first, second] = takers(row("svc", 1, [[hog, 0, 10, "turns"], [storm, 1, 15, "turns"], [hog, 1, 20, "weights"]]).charged);
  assert.deepEqual([nameOf(first!.who), first!.ms, [...first!.cores], [...first!.why]], ["hog[7]", 30, [[0, 10], [1, 20]], [["turns", 10], ["weights", 20]]]);
  assert.equal(nameOf(second!.who), "short-lived sh of storm[9]");
});

test("the matrix has those who lost and took most, and everything else in the rest", () => {
  const rows = [row("a", 1, [[hog, 0, 5, "turns"], [storm, 0, 2, "turns"]]), row("b", 2, [[hog, 0, 50, "turns"], [idle, 0, 3, "wake-up"]]), row("c", 3, [])];
  const matrix = matrixOf(rows, 10, 1);
  assert.deepEqual(matrix.rows.map(({ row, cells, rest }) => [row.who.name, cells, rest]), [["b", [50], 3], ["a", [5], 2]]);
  assert.deepEqual([matrix.columns.length, matrix.largest, matrix.hasRest], [1, 50, true]);
  assert.equal(matrixOf(rows, 10, 9).hasRest, false);
  assert.deepEqual(matrixOf([], 10, 9).rows, []);
});

test("times are short", () => {
  assert.deepEqual([0, 0.4, 12.4, 999.9, 4321, 12_345, 123_456].map(time), ["0", "< 1 ms", "12 ms", "1.00 s", "4.32 s", "12.3 s", "123 s"]);
});
