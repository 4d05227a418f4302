import assert from "node:assert/strict";
import { test } from "node:test";
import { differenceTree, frameAt, functionsOf, layOut, matchesOf, nameOf, pathOf, percent, searchOf } from "../src/flame/tree.ts";

//  all(100) ─ app(70) ─ read(40) ─ vfs_read(40)
//           │         └ work(25) ─ work(10)
//           └ idle(30)
const names = ["all", "app", "idle", "read", "work", "vfs_read"];
const tree = layOut({ names, name: [0, 2, 1, 4, 3, 5, 4], parent: [-1, 0, 0, 2, 2, 4, 3], place: [0, 0, 0, 1, 1, 2, 1], total: [100, 30, 70, 25, 40, 40, 10], own: [0, 30, 5, 15, 0, 40, 10] });

test("children are within their parent, widest first", () => {
  assert.deepEqual([...tree.levels.map(level => [...level].map(frame => nameOf(tree, frame)))], [["all"], ["app", "idle"], ["read", "work"], ["vfs_read", "work"]]);
  for (const level of tree.levels.slice(1)) for (const frame of level) {
    const parent = tree.parent[frame]!;
    assert.ok(tree.left[frame]! >= tree.left[parent]! && tree.left[frame]! + tree.total[frame]! <= tree.left[parent]! + tree.total[parent]! + 1e-9);
  }
  assert.deepEqual(pathOf(tree, 5), ["app", "read", "vfs_read"]);
});

test("the frame under the pointer", () => {
  assert.equal(nameOf(tree, frameAt(tree, 2, 39.9)), "read");
  assert.equal(nameOf(tree, frameAt(tree, 2, 40)), "work");
  assert.equal(frameAt(tree, 2, 66), -1);
  assert.equal(frameAt(tree, 9, 1), -1);
});

test("search counts each stack once, however many of its frames match", () => {
  const share = (text: string) => matchesOf(tree, searchOf(text))!;
  assert.equal(share("work").share, 0.25);
  assert.equal(share("work").frames, 2);
  assert.equal(share("read").share, 0.4);
  assert.equal(share("app|idle").share, 1);
  assert.equal(share("nothing").share, 0);
  assert.equal(share("READ").frames, 0);
  assert.equal(matchesOf(tree, searchOf("")), null);
  const plain = searchOf("[unk");
  assert.ok(plain!.plain && plain!.expression.test("x[unknown]"));
});

test("functions: own time adds up, recursion counts once with its callees", () => {
  const all = functionsOf(tree);
  const work = all.find(one => one.name === "work")!;
  assert.deepEqual([work.own, work.total], [0.25, 0.25]);
  assert.equal(all[0]!.name, "vfs_read");
  assert.ok(!all.some(one => one.name === "app"), "a command is not a function");
  assert.equal(functionsOf(tree, 4)[0]!.own, 1);
});

test("a difference can show the widths of either side", () => {
  const data = { total: 10, baseline_total: 10, unit: "ns", event: null, risers: [], names: ["all", "new", "gone_[k]"], nodes: { name: [0, 1, 2], parent: [-1, 0, 0], place: ["", "u", "k"], now: [1, 1, 0], baseline: [1, 0, 1], own_now: [0, 1, 0], own_baseline: [0, 0, 1] } };
  assert.deepEqual([...differenceTree(data, "now").levels[1]!], [1]);
  const was = differenceTree(data, "baseline");
  assert.deepEqual([...was.levels[1]!], [2]);
  assert.deepEqual([nameOf(was, 2), was.place[2]], ["gone", 2]);
});

test("a hundred thousand frames are laid out, each once", () => {
  const count = 100_000, parent = [-1], name = [0], total = [1e6];
  for (let at = 1; at < count; at++) { parent.push(Math.floor((at - 1) / 3)); name.push(at % 500); total.push(1e6 / 3 ** Math.floor(Math.log(2 * at + 1) / Math.log(3))); }
  const big = layOut({ names: Array.from({ length: 500 }, (_, at) => `f${at}`), name, parent, place: name.map(() => 1), total, own: name.map(() => 0) });
  assert.equal(big.levels.reduce((sum, level) => sum + level.length, 0), count);
  assert.equal(layOut({ names: [], name: [], parent: [], place: [], total: [], own: [] }).levels.length, 0);
});

test("shares are shown with as many digits as they need", () => {
  assert.deepEqual([0, 0.00012, 0.0123, 0.5, 1].map(percent), ["0 %", "0.012 %", "1.23 %", "50.0 %", "100 %"]);
});
