import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { commandFill } from "../src/flame/draw.ts";
import { changeFill, contrast, frameFill, inkOn, languageOf, LANGUAGES, ownerColour, ownerKey, PALETTES, rgb, type Rgb, type Theme } from "../src/paint/colour.ts";

const themes: Theme[] = ["light", "dark"];
const names = Array.from({ length: 60 }, (_, at) => `function_${at}`);

test("text on a frame is readable: contrast of at least 4.5 (WCAG AA)", () => {
  for (const theme of themes) {
    const fills: Rgb[] = [];
    for (const place of [0, 1, 2, 3]) for (const by of ["place", "language"] as const) for (const name of names) fills.push(frameFill(name, place, by, theme));
    for (const name of ["core::fmt::Write", "runtime.mallocgc", "_PyEval_EvalFrameDefault", "java.lang.Thread.run", "LazyCompile:x", "std::foo<int>(a)"]) fills.push(frameFill(name, 1, "language", theme));
    for (let by = -10; by <= 10; by++) fills.push(changeFill(0.5 + by / 20, 0.5 - by / 20, theme));
    for (const name of names) fills.push(ownerColour(name, theme), commandFill(name, theme));
    fills.push(PALETTES[theme].hit);
    for (const fill of fills) assert.ok(contrast(fill, inkOn(fill)) >= 4.5, `${theme} ${fill} has ${contrast(fill, inkOn(fill))}`);
  }
});

test("text on the panel is readable", () => {
  for (const theme of themes) {
    const palette = PALETTES[theme];
    for (const name of ["text", "muted", "accent", "critical", "warning", "info"] as const) assert.ok(contrast(palette[name], palette.panel) >= 4.5, `${theme} ${name}`);
  }
});

test("the style sheet's colours are readable on their backgrounds", () => {
  const text = readFileSync("src/style.css", "utf8");
  for (const [block, theme] of [[text.slice(0, text.indexOf("[data-theme")), "light"], [text.slice(text.indexOf("[data-theme")), "dark"]] as const) {
    const value = (name: string) => rgb(new RegExp(`--${name}: (#[0-9a-f]{6})`).exec(block)![1]!);
    for (const ink of ["text", "muted", "accent"]) for (const surface of ["panel", "raised", "bg"]) assert.ok(contrast(value(ink), value(surface)) >= 4.5, `${theme} ${ink} on ${surface}: ${contrast(value(ink), value(surface))}`);
    for (const kind of ["critical", "warning", "info", "good", "accent"]) assert.ok(contrast(value(kind), value(`${kind}-soft`)) >= 4.5, `${theme} ${kind}: ${contrast(value(kind), value(`${kind}-soft`))}`);
    assert.ok(contrast(value("critical"), value("panel")) >= 4.5);
  }
});

// As seen by people who lack red, green or blue cones (Viénot 1999, Brettel 1997, simplified to one matrix each).
const LACKS: Record<string, number[][]> = {
  protan: [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
  deutan: [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
  tritan: [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
};
test("kinds of time are distinct for colour-blind people", () => {
  for (const theme of themes) for (const [who, matrix] of Object.entries(LACKS)) {
    const seen = (["user", "system", "irq", "steal"] as const).map(kind => matrix.map(row => row.reduce((sum, share, at) => sum + share * PALETTES[theme][kind][at]!, 0)));
    for (let a = 0; a < seen.length; a++) for (let b = a + 1; b < seen.length; b++) {
      const apart = Math.hypot(...seen[a]!.map((value, at) => value - seen[b]![at]!));
      assert.ok(apart >= 40, `${theme} ${who}: kinds ${a} and ${b} are ${apart.toFixed(0)} apart`);
    }
  }
});

test("a name always has the same colour", () => {
  assert.deepEqual(["kworker/3:1", "memwatch-26c7", "stress-ng-cpu", "lto cgu.10", "ksoftirqd/1"].map(ownerKey), ["kworker", "memwatch-26c7", "stress-ng-cpu", "lto cgu.10", "ksoftirqd"]);
  assert.deepEqual(ownerColour("kubelet", "dark"), ownerColour("kubelet", "dark"));
  assert.ok(new Set(names.map(name => ownerColour(name, "dark").join())).size >= 9);
});

test("languages are recognised by the form of a name", () => {
  const told = { "shrink_node": ["kernel", 2], "_PyEval_EvalFrameDefault": ["python", 1], "core::ptr::drop_in_place<T>": ["rust", 1], "<alloc::vec::Vec<T> as Drop>::drop": ["rust", 1], "runtime.mallocgc": ["go", 1],
    "github.com/foo/bar.(*Baz).Do": ["go", 1], "std::vector<int>::push_back(int)": ["c++", 1], "__libc_start_main": ["c", 1], "[unknown]": ["unknown", 1], "LazyCompile:~foo index.js:3": ["javascript", 3], "Ljava/lang/Thread;::run": ["java", 3] } as const;
  for (const [name, [language, place]] of Object.entries(told)) assert.equal(languageOf(name, place), language, name);
  assert.ok(LANGUAGES.includes(languageOf("", 0)));
});
