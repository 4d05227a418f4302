import assert from "node:assert/strict";
import { test } from "node:test";
import { address } from "../src/api/fetch.ts";
import type { Link, Named, OffsetHeatmap, Verdict } from "../src/api/types.ts";
import { bandText, compared, hasRest, selected } from "../src/flame/query.ts";
import { coreOf, lessSure, stepsOf } from "../src/overview/chain.ts";
import { bandOf, busiest, isSelected, longestOf, rangeOf } from "../src/scope/cells.ts";
import { START } from "../src/state.ts";
import { grownBy } from "../src/node/growth.ts";
import type { Source } from "../src/api/types.ts";
import { eventLanes, isToldByEvents, near, seriesLanes, stretches, summary, told } from "../src/timeline/lanes.ts";

const named = (code: string, kind = "process", name = "x"): Named => ({ code, subject: { kind, name }, title: code });
const link = (from: Named, to: Named, certainty: Link["certainty"] = "proven"): Link => ({ from, to, because: "b", certainty, proofs: { identity: {}, order: {}, size: {} }, evidence: [] });
const verdict = (root: Named, chain: Link[]): Verdict => ({ root_cause: root, certainty: "proven", severity: "critical", story: "", because: "", proofs: { identity: {}, order: {}, size: {} }, chain, context: [], timeline: [], remedy: null, not_fixed: null, risk: null });

test("a chain is drawn from the cause down; side effects are indented next to the main line", () => {
  const [a, b, c, d, side] = [named("a"), named("b"), named("core-saturated", "core", "1"), named("d"), named("side")];
  const steps = stepsOf(verdict(a, [link(a, b), link(b, side), link(b, c), link(c, d, "possible")]));
  assert.deepEqual(steps.map(step => [step.finding.code, step.depth]), [["a", 0], ["b", 0], ["side", 1], ["core-saturated", 0], ["d", 0]]);
  const whole = verdict(a, [link(a, b), link(b, c), link(c, d, "possible")]);
  assert.equal(lessSure(whole), "2 of 3 links proven");
  assert.equal(coreOf(whole), 1);
});

test("a step that two paths lead to is drawn once, and cycles end", () => {
  const [a, b, c] = [named("a"), named("b"), named("c")];
  assert.deepEqual(stepsOf(verdict(a, [link(a, b), link(a, c), link(b, c)])).map(step => [step.finding.code, step.also.length]), [["a", 0], ["b", 0], ["c", 1]]);
  assert.equal(stepsOf(verdict(a, [link(a, b), link(b, a)])).length, 2);
  assert.equal(stepsOf(verdict(a, [])).length, 1);
});

const map: OffsetHeatmap = { axis_ns: -200_000_000, first_second: 10, rows: 50, largest: 9, idle: 0, left_out: 0, columns: [Array(50).fill(1), Array(50).fill(2).map((value, at) => at === 20 ? 9 : value), Array(50).fill(0)] };
const whole = { from: 0, to: 2_500_000_000 };

test("FlameScope: a range crosses second boundaries, a band takes the same part of each second", () => {
  assert.deepEqual(rangeOf(map, { column: 0, row: 45 }, { column: 1, row: 4 }, whole), { from: 700_000_000, to: 900_000_000 });
  assert.deepEqual(rangeOf(map, { column: 1, row: 4 }, { column: 0, row: 45 }, whole), { from: 700_000_000, to: 900_000_000 });
  const band = bandOf(map, { column: 0, row: 19 }, { column: 1, row: 15 }, whole);
  assert.deepEqual(band, { range: { from: 0, to: 1_800_000_000 }, band: { from: 300_000_000, to: 400_000_000 } });
  assert.ok(isSelected(map, { column: 1, row: 16 }, band.range, band.band) && !isSelected(map, { column: 1, row: 20 }, band.range, band.band) && !isSelected(map, { column: 2, row: 16 }, band.range, band.band));
  assert.deepEqual(busiest(map), { spot: { column: 1, row: 20 }, samples: 9 });
});

test("requests contain exactly the selection", () => {
  const state = { ...START, range: { from: 0, to: 9e9 }, selection: { from: 1e9, to: 2e9 }, band: { from: 3e8, to: 4e8 }, filters: { core: "1,2", comm: "a&b" } };
  assert.equal(address("flame", selected(state)), "api/v1/flame?from=1000000000&to=2000000000&band=300ms..400ms&core=1%2C2&comm=a%26b");
  assert.equal(address("flame", selected({ ...START, range: { from: 0, to: 9 } })), "api/v1/flame?from=0&to=9");
  assert.equal(address("flame", selected(START)), "api/v1/flame");
  assert.equal(compared({ ...state, base: "rest" }).base, "rest");
  assert.equal(compared({ ...state, base: { from: 5, to: 6 } }).base_to, 6);
  assert.ok(hasRest(state) && !hasRest(START));
  assert.equal(bandText({ from: 1_500_000, to: 20_000_000 }), "1.5ms..20ms");
});

test("points at one level are joined, a gap is not bridged", () => {
  assert.deepEqual(stretches([1, null, 2, null, 3, null, null, null, null, null, 9, null, 8]).map(run => run.map(([, value]) => value)), [[1, 2, 3], [9, 8]]);
  assert.deepEqual(stretches([null, null]), []);
});

test("timeline: lanes by kind, quiet counters folded, what was not seen is not zero", () => {
  const event = (at: number, kind: string, severity = "info") => ({ at, kind, severity, uncertainty_ns: 0, title: `${kind} ${at}`, subject: null });
  const lanes = eventLanes([event(9, "log"), event(5, "unit-restart", "warning"), event(1, "nic-reset", "critical"), event(2, "unit-restart")]);
  assert.deepEqual(lanes.map(lane => [lane.kind, lane.events.length, lane.worst]), [["nic-reset", 1, "critical"], ["unit-restart", 2, "warning"], ["log", 1, "info"]]);
  assert.deepEqual(near(lanes[1]!, 4, 2).map(one => one.at), [5, 2]);
  const series = (id: string, values: (number | null)[]) => ({ id, title: id, unit: "", worst: "max" as const, values });
  const timeline = { from: 0, to: 1, step_ns: 1, events: [], series: [series("a", [0, 3]), series("b", [0, 0, null]), series("c", [null, null])] };
  const split = seriesLanes(timeline, false);
  assert.deepEqual([split.shown, split.calm, split.unseen].map(list => list.map(one => one.id)), [["a"], ["b"], ["c"]]);
  assert.deepEqual(seriesLanes(timeline, true).shown.map(one => one.id), ["a", "b"]);
  assert.match(summary(lanes, split.shown), /1 NIC resets, 2 unit restarts.*a at most 3/);
  assert.deepEqual([told(14e9, "ns"), told(2048, "bytes"), told(null, "ns"), told(1234567, "")], ["14 s", "2 KiB", "not seen", "1,234,567"]);
});

test("what has both a counter and events has one lane, unless the counter shows more", () => {
  const restart = { at: 1, uncertainty_ns: 0, kind: "unit-restart", severity: "warning", title: "x", subject: null };
  const counted = (values: (number | null)[]) => ({ id: "unit-restarts", title: "unit restarts", unit: "restarts", worst: "sum" as const, values });
  assert.ok(isToldByEvents(counted([1, null, 1]), [restart, restart]));
  assert.ok(!isToldByEvents(counted([1, 2]), [restart, restart]));
  assert.ok(!isToldByEvents(counted([0, 0]), []));
  assert.ok(!isToldByEvents({ ...counted([1]), id: "zombies" }, [restart]));
});

test("growth of dead cgroups is the difference between the first and the last count", () => {
  assert.deepEqual(grownBy({ at: [0, 5e9, 14e9, 20e9], dead: [10, null, 66, null], tracked: [] }), { more: 56, ns: 14e9 });
  assert.equal(grownBy({ at: [0, 5e9], dead: [10, 10], tracked: [] }), null);
  assert.equal(grownBy({ at: [0], dead: [null], tracked: [] }), null);
});

test("a directory initially shows no more time than holds a few million samples", () => {
  const source = (kind: string, rate_hz: number, cores: number) => ({ kind, rate_hz, cores: Array(cores).fill(0) }) as unknown as Source;
  assert.equal(longestOf(source("recording", 49, 192)), 3600e9);
  assert.equal(longestOf(source("directory", 49, 2)), 3600e9);
  assert.equal(longestOf(source("recorder", 49, 192)), 180e9);
});
