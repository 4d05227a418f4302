import assert from "node:assert/strict";
import { test } from "node:test";
import { colouring, scaleOf, SEVERITIES } from "../src/fleet/colours.ts";
import { counts, groupsOf, matching, MOST_GROUPS, quoted, termsOf, UNKNOWN } from "../src/fleet/groups.ts";
import { cellAt, hit, LABEL, layOut, moved } from "../src/fleet/layout.ts";
import { median, nearest, shownPoints } from "../src/fleet/points.ts";
import { read, START, write, type State } from "../src/fleet/state.ts";
import type { FleetMap, Points } from "../src/fleet/types.ts";
import { ago, clockOf, plain, told } from "../src/fleet/words.ts";
import { contrast, luminance, paletteOf } from "../src/paint/colour.ts";

const full: State = { view: "incidents", at: 1_790_000_000, by: "label:pool #1", colour: "zombies", find: 'zone="us east" n=&#', worst: true, problem: "unit-crashloop:a&b=c#d%", node: "<img src=x>", span: "week" };

test("an address restores what was written into it, and an invalid one shows the start page", () => {
  assert.deepEqual(read(write(full)), full);
  assert.equal(write(START), "#v=map");
  for (const hash of ["", "#", "#%", "#v=evil", "#at=-1", "#at=99999999999", "#at=x&span=eon", "#by=" + "x".repeat(2000), "#colour=constructor", "#colour=__proto__"]) assert.deepEqual(read(hash), START, hash);
});

const zones = ["a", "b", "c"];
const fleet = (count: number): FleetMap => ({
  at: "", at_s: 1_790_000_000, live: true, numbers_of: "minute", from_s: 0, minutes_from_s: 0, nodes: Array.from({ length: count }, (_, at) => `node-${at}`),
  severity: Array.from({ length: count }, (_, at) => at % 10 === 0 ? 3 : at === 1 ? null : 0), up_s: Array.from({ length: count }, (_, at) => at * 60), silent: [2],
  problems: [{ key: "zombie-memcgs", code: "zombie-memcgs", severity: "critical", title: "t", nodes: 1, silent: 0, since_s: 0, last_onset_s: 0, is_new: true }],
  has: Array.from({ length: count }, (_, at) => at % 10 === 0 ? [0] : []),
  attributes: [{ name: "zone", values: zones, of: Array.from({ length: count }, (_, at) => at % 4 - (at % 4 === 3 ? 4 : 0)) }, { name: "label:pool", values: ["gpu x"], of: Array.from({ length: count }, () => 0) }],
  attributes_left_out: 0, numbers: { zombies: Array.from({ length: count }, (_, at) => at === 0 ? null : at * 10) },
});

test("every node has a cell of its own, and a place tells its node", () => {
  for (const [sizes, width, room] of [[[10_000], 1200, 700], [[2500, 2500, 2500, 2500], 900, 600], [[1, 1, 300, 7], 360, 500], [Array.from({ length: 60 }, (_, at) => at + 1), 390, 400], [[], 800, 300]] as [number[], number, number][]) {
    const layout = layOut(sizes, width, room), seen = new Set<string>();
    sizes.forEach((size, group) => {
      for (let member = 0; member < size; member++) {
        const { x, y } = cellAt(layout, group, member);
        assert.ok(x >= 0 && x + layout.cell <= width && y + layout.cell <= layout.height, `${x},${y} of ${width}×${layout.height}`);
        seen.add(`${x},${y}`);
        for (const inside of [0, layout.cell - 0.5]) assert.deepEqual(hit(layout, sizes, x + inside, y + inside), { group, member });
      }
      const block = layout.blocks[group]!;
      assert.deepEqual(hit(layout, sizes, block.x + 1, block.y + LABEL / 2), { group, member: null });
    });
    assert.equal(seen.size, sizes.reduce((sum, size) => sum + size, 0));
    assert.equal(hit(layout, sizes, width + 1, layout.height + 1), null);
  }
  assert.ok(layOut([10_000], 1200, 700).height <= 700);
  assert.ok(layOut([10], 1200, 700).cell > layOut([10_000], 1200, 700).cell);
});

test("arrow keys reach every node", () => {
  const sizes = [5, 1, 30], layout = layOut(sizes, 400, 300);
  let at = { group: 0, member: 0 }, steps = 1;
  for (; ;) {
    const next = moved(layout, sizes, at, "ArrowRight");
    if (next.group === at.group && next.member === at.member) break;
    at = next;
    steps++;
  }
  assert.equal(steps, 36);
  for (let turn = 0; turn < 40; turn++) at = moved(layout, sizes, at, "ArrowLeft");
  assert.deepEqual(at, { group: 0, member: 0 });
  const column = layout.blocks[2]!.columns;
  assert.deepEqual(moved(layout, sizes, { group: 2, member: 0 }, "ArrowDown"), column < 30 ? { group: 2, member: column } : { group: 2, member: 0 });
});

test("nodes are grouped by an attribute, in a natural order, what is not told last", () => {
  const map = fleet(100), groups = groupsOf(map, "zone", "", false, () => 0);
  assert.deepEqual(groups.map(group => [group.label, group.members.length]), [["a", 25], ["b", 25], ["c", 25], [UNKNOWN, 25]]);
  assert.deepEqual(groups[0]!.members.slice(0, 3), [0, 4, 8], "node-8 before node-12");
  assert.equal(groupsOf(map, "zone", "", true, node => node)[0]!.members[0], 96);
  assert.deepEqual(counts(map, groups, 0).map(sum => [sum.sick, sum.silent, sum.having]), [[5, 0, 5], [0, 0, 0], [5, 1, 5], [0, 0, 0]]);
  assert.equal(groupsOf(map, "", "", false, () => 0)[0]!.members.length, 100);
  const many = { ...map, attributes: [{ name: "rack", values: Array.from({ length: 100 }, (_, at) => `r${at}`), of: Array.from({ length: 100 }, (_, at) => at) }] };
  const few = groupsOf(many, "rack", "", false, () => 0);
  assert.equal(few.length, MOST_GROUPS);
  assert.equal(few.reduce((sum, group) => sum + group.members.length, 0), 100);
});

test("the search finds names and attribute values", () => {
  const map = fleet(40), found = (find: string) => map.nodes.filter((_, node) => matching(map, find)(node)).length;
  assert.equal(found(""), 40);
  assert.equal(found("node-3"), 11);
  assert.equal(found("NODE-39"), 1);
  assert.equal(found("zone=a"), 10);
  assert.equal(found("zone=a node-8"), 1);
  assert.equal(found(quoted("zone", UNKNOWN)), 10);
  assert.equal(found('pool="gpu x"'), 40);
  assert.equal(found("zone=nowhere"), 0);
  assert.equal(found("rack=1"), 0);
  assert.deepEqual(termsOf(quoted("label:my pool", "gpu x")), [{ name: "label:my pool", value: "gpu x" }]);
});

test("colours of severities can be told apart without seeing hues, and cells stand out from the panel", () => {
  for (const theme of ["light", "dark"] as const) {
    const [healthy, info, warning, critical] = SEVERITIES[theme].map(luminance) as [number, number, number, number];
    assert.ok(contrast(SEVERITIES[theme][3]!, SEVERITIES[theme][0]!) > 2.5, theme);
    assert.ok(contrast(SEVERITIES[theme][3]!, SEVERITIES[theme][2]!) > 1.4, theme);
    assert.ok(contrast(SEVERITIES[theme][0]!, paletteOf(theme).panel) > 1.3, theme);
    assert.equal(new Set([healthy, info, warning, critical]).size, 4);
  }
});

test("a number colours by steps; what was not seen is not zero; other nodes step back from an open problem", () => {
  const map = fleet(100), colours = colouring(map, "zombies", -1, "light");
  assert.equal(colours.of(0), colours.fills.length - 1);
  assert.equal(colours.of(99), 7);
  assert.ok(colours.of(1) < colours.of(50) && colours.of(50) <= colours.of(99));
  assert.ok(colours.legend.some(one => one.text === "not seen"));
  assert.deepEqual([0, 0.49, 0.5, 1].map(scaleOf("busy", [0.2]).step), [0, 3, 4, 7]);
  const open = colouring(map, "problem", 0, "light");
  assert.equal(open.of(0), 3);
  assert.equal(open.of(1), open.fills.length - 1);
  assert.equal(colouring(map, "problem", -1, "light").of(1), 4, "not diagnosed is not healthy");
});

test("texts from nodes cannot reorder or hide what is around them", () => {
  assert.equal(plain("a\u202eb\u200bc\u001b[2Jd\ufeff"), "a\ufffdb\ufffdc\ufffd[2Jd\ufffd");
  assert.equal(plain("<img src=x onerror=alert(1)>"), "<img src=x onerror=alert(1)>", "markup is text; Preact escapes it");
  assert.deepEqual([told("zombies", 12345), told("zombies", 12345, true), told("busy", 0.423), told("cpu_stall_ms", 1500), told("busy", null)], ["12,345", "12k", "42 %", "1.5 s", "not seen"]);
  assert.deepEqual([ago(59), ago(3700), ago(86_400), ago(7 * 86_400), ago(40 * 86_400)], ["59 s", "1 h 1 min", "1 day", "7 days", "40 days"]);
  assert.equal(clockOf(0), "1970-01-01 00:00 UTC");
});

test("points need uptime and number; growth is told for sick and others apart", () => {
  const points: Points = { code: "x", number: "zombies", nodes: ["a", "b", "c", "d"], sick: [true, true, false, false], up_hours: [10, 20, 30, null], value: [100, 400, 5, 7], per_hour: [10, 20, null, 1], slope_hours: 24 };
  const shown = shownPoints(points);
  assert.deepEqual([shown.points.length, shown.mostHours, shown.most, shown.sickGrowth, shown.otherGrowth], [3, 30, 400, 15, null]);
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(nearest(shown.points, point => [point.hours, point.value], 11, 101)?.node, "a");
  assert.equal(nearest(shown.points, point => [point.hours, point.value], 500, 500), null);
});
