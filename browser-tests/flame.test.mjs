// What a user does with the SVG, in a real browser.
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { flame, launch, open, recording } from "./browser.mjs";

const dir = mkdtempSync(join(tmpdir(), "coroner-flame-"));
const svg = join(dir, "f.svg");
let browser;

before(async () => {
  flame(recording, svg);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  rmSync(dir, { recursive: true, force: true });
});

// Opens a graph; at the end there must be no complaint and no page left open.
async function look(file, hash, use) {
  const { page, complaints } = await open(browser.context, file, hash);
  try {
    await use(page);
    assert.deepEqual(complaints, []);
  } finally {
    await page.close();
  }
}

// All drawn boxes: name, position and appearance.
const boxes = page => page.$$eval(".frames > g", all => all.map(g => {
  const rect = g.querySelector("rect"), text = g.querySelector("text");
  return {
    name: g.querySelector("title").textContent.split("  ")[0], classes: [...g.classList],
    x: +rect.getAttribute("x"), y: +rect.getAttribute("y"), width: +rect.getAttribute("width"),
    text: text?.textContent ?? "", textWidth: text?.getComputedTextLength() ?? 0,
  };
}));
const click = (page, name) => page.evaluate(name => {
  const all = [...document.querySelectorAll(".frames > g")];
  const g = all.find(g => g.querySelector("title").textContent.startsWith(name + "  "));
  g.dispatchEvent(new MouseEvent("click", { bubbles: true }));
}, name);
const status = page => page.locator(".status").textContent();
const matched = page => page.locator(".matched").textContent();
const search = page => page.getByRole("searchbox");

const lines = readFileSync(recording, "utf8").trim().split("\n").map(line => {
  const at = line.lastIndexOf(" ");
  return { frames: line.slice(0, at).split(";").map(label => label.replace(/_\[[kij]\]$/, "")), weight: +line.slice(at + 1) };
});
const total = lines.reduce((sum, line) => sum + line.weight, 0);
// The share of stacks with a frame that matches: each stack counts once, however many of its frames match.
const share = pattern => lines.filter(line => line.frames.some(name => pattern.test(name)))
  .reduce((sum, line) => sum + line.weight, 0) / total;
const percent = share => share === 0 ? "0 %" : (share * 100).toFixed(share < 0.001 ? 3 : 2) + " %";

test("opens without errors, as wide as the window, every name inside its box", () => look(svg, "", async page => {
  for (const width of [1280, 2560, 640]) {
    await page.setViewportSize({ width, height: 900 });
    await page.waitForFunction(width => {
      const root = document.querySelector(".frames > g:last-of-type") && document.querySelector(".frames > g rect");
      return Math.abs(root.getAttribute("width") - width * 0.98) < 20;
    }, width);
    const all = await boxes(page);
    assert.ok(all.length > 200, `${all.length} boxes`);
    assert.ok(all.some(box => box.text.endsWith("…")) && all.some(box => box.text === box.name));
    for (const box of all) assert.ok(box.textWidth <= box.width, JSON.stringify(box));
    const scroll = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(scroll <= width, `${scroll} pixels wide`);
  }
  assert.equal(await page.title(), await page.locator(".bar b").textContent());
}));

test("zoom makes a frame as wide as the page, shows frames that were too narrow, and can be undone", () => look(svg, "", async page => {
  const first = await boxes(page);
  const whole = first[0].width;
  const wide = first.find(box => box.name === "stress-ng-vm");
  assert.ok(wide.width < whole / 2);
  await click(page, "stress-ng-vm");
  const zoomed = await boxes(page);
  const at = name => zoomed.find(box => box.name === name);
  assert.equal(at("stress-ng-vm").width, whole);
  assert.deepEqual([at("all").width, at("all").classes.includes("below")], [whole, true]);
  assert.equal(at("python3"), undefined);
  const drawn = (all, level) => all.filter(box => box.y === level).length;
  const above = wide.y - 18 * 4;
  const inside = first.filter(box => box.y === above && box.x >= wide.x && box.x < wide.x + wide.width).length;
  assert.ok(drawn(zoomed, above) > inside, `${drawn(zoomed, above)} boxes where ${inside} were seen`);
  assert.match(await status(page), /^stress-ng-vm {2}\d+\.\d\d %, .*command$/);
  // An ancestor can be clicked too.
  await click(page, "all");
  assert.deepEqual(await boxes(page), first);
  await click(page, "stress-ng-vm");
  await page.getByRole("button", { name: "Reset zoom" }).click();
  assert.deepEqual(await boxes(page), first);
  assert.ok(await page.locator("button", { hasText: "Reset zoom" }).isHidden());
}));

test("search shows the share of matching stacks, each counted once", () => look(svg, "", async page => {
  for (const pattern of ["^_Py", "vfs_(read|write)$", "syscall", "SYSCALL", "python3|_Py", "stress", "nothing like this"]) {
    await search(page).fill(pattern);
    // Lower case matches both cases.
    const regex = new RegExp(pattern, pattern === pattern.toLowerCase() ? "i" : "");
    const want = percent(share(regex));
    assert.ok((await matched(page)).startsWith(`Matched ${want} in `), `${pattern}: ${await matched(page)}, not ${want}`);
    const hits = (await boxes(page)).filter(box => box.classes.includes("hit"));
    assert.ok(hits.every(box => regex.test(box.name)));
    assert.equal(hits.length > 0, pattern !== "nothing like this");
  }
  // An invalid expression is searched for literally, and marked.
  await search(page).fill("[unk");
  assert.ok((await matched(page)).startsWith(`Matched ${percent(share(/\[unk/))} in `), await matched(page));
  assert.ok(await search(page).evaluate(input => input.classList.contains("bad")));
  await page.getByRole("button", { name: "Clear", exact: true }).click();
  assert.equal(await matched(page), "");
  // While zoomed, also the share of what is visible.
  await click(page, "stress-ng-vm");
  await search(page).fill("stress-ng-vm");
  assert.match(await matched(page), /, 100\.00 % of this view$/);
}));

test("everything works by keyboard", () => look(svg, "", async page => {
  const focused = () => page.evaluate(() => document.activeElement.querySelector?.("title")?.textContent.split("  ")[0]);
  await page.keyboard.press("Control+f");
  assert.ok(await search(page).evaluate(input => input === document.activeElement));
  await page.keyboard.type("vfs");
  assert.match(await matched(page), /^Matched/);
  await page.keyboard.press("Escape");
  assert.equal(await matched(page), "");
  await page.locator(".frames > g[tabindex='0']").focus();
  assert.equal(await focused(), "all");
  await page.keyboard.press("ArrowUp");
  const command = await focused();
  assert.ok(lines.some(line => line.frames[0] === command), command);
  assert.ok((await status(page)).startsWith(command + "  "));
  await page.keyboard.press("Enter");
  const whole = (await boxes(page)).find(box => box.name === "all").width;
  assert.equal((await boxes(page)).find(box => box.name === command).width, whole);
  assert.equal(await focused(), command);
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "all");
  await page.keyboard.press("Escape");
  assert.ok((await boxes(page)).find(box => box.name === command).width < whole);
  await page.keyboard.press("ArrowUp");
  const before = await focused();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await focused(), before);
  await page.keyboard.press("/");
  assert.ok(await search(page).evaluate(input => input === document.activeElement));
}));

test("a reload, a link and the back button show the same", () => look(svg, "", async page => {
  const first = await boxes(page);
  await click(page, "python3");
  await search(page).fill("^_Py.*(Eval|Call)");
  const [shown, found, url] = [await boxes(page), await matched(page), page.url()];
  assert.match(url, /#z=\d+&s=/);
  await page.reload();
  assert.deepEqual(await boxes(page), shown);
  assert.equal(await matched(page), found);
  await look(svg, new URL(url).hash, async other => {
    assert.deepEqual(await boxes(other), shown);
    assert.equal(await search(other).evaluate(input => input.value), "^_Py.*(Eval|Call)");
  });
  await page.goBack();
  assert.deepEqual(await boxes(page), first);
  // An invalid address shows everything.
  for (const hash of ["#z=99999999", "#z=-1", "#z=x&s=%", "#s=(((", "#nonsense"]) {
    await look(svg, hash, async other => assert.equal((await boxes(other)).length, first.length));
  }
}));

test("text is readable on every colour in both themes", async () => {
  const [old, now, kinds, change] = ["c.old.folded", "c.now.folded", "c.svg", "c.diff.svg"].map(name => join(dir, name));
  // Every kind in every shade, every step of a difference.
  const stack = n => `cmd${n};f${n};k${n}_[k] 30\ncmd${n};j${n}_[j];i${n}_[i] 30\ncmd${n};[unknown] 10\n`;
  writeFileSync(now, Array.from({ length: 12 }, (_, n) => stack(n)).join(""));
  writeFileSync(old, Array.from({ length: 12 }, (_, n) => stack(n).replaceAll(" 30", ` ${30 + (n - 6) ** 3}`.replace("-", ""))).join(""));
  flame(now, kinds);
  flame(now, change, "--diff", old);
  for (const file of [svg, kinds, change]) await look(file, "", page => readable(page));
  await look(kinds, "", async page => {
    const seen = new Set((await boxes(page)).flatMap(box => box.classes));
    for (const name of ["u", "k", "j", "i", "c", "x", "s0", "s1", "s2", "s3", "s4"]) assert.ok(seen.has(name), name);
  });
});

async function readable(page) {
  const measure = () => page.evaluate(() => {
    const numbers = text => text.match(/[\d.]+/g).map(Number);
    const light = rgb => {
      const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
    const page = numbers(getComputedStyle(document.querySelector(".page")).fill);
    const worst = [...document.querySelectorAll(".frames > g")].filter(g => g.querySelector("text")).map(g => {
      const rect = getComputedStyle(g.querySelector("rect")), opacity = +rect.fillOpacity;
      const fill = numbers(rect.fill).map((v, at) => v * opacity + page[at] * (1 - opacity));
      return contrast(fill, numbers(getComputedStyle(g.querySelector("text")).fill));
    });
    const about = contrast(page, numbers(getComputedStyle(document.querySelector(".bar .about")).color));
    return { page: light(page), worst: Math.min(...worst, about) };
  });
  for (const [colorScheme, dark] of [["light", false], ["dark", true]]) {
    await page.emulateMedia({ colorScheme });
    for (const pattern of ["", "^[fkjs]"]) {
      await search(page).fill(pattern);
      const { page: background, worst } = await measure();
      assert.equal(background < 0.1, dark);
      assert.ok(worst >= 4.5, `contrast ${worst} in ${colorScheme} with "${pattern}"`);
    }
  }
}

test("names with markup, scripts or hidden characters are shown as text", async () => {
  const names = ["</title><script>window.hacked=1</script>", "]]></metadata><script>window.hacked=2</script>",
    "<img src=x onerror=window.hacked=3>", "\"onload=\"window.hacked=4", "'&amp&#60b", "a\u0001b\u007f",
    "gpj\u202eexe.txt", "${window.hacked=5}", "\\u003cscript\\u003e", "日本語の関数名前", "__proto__"];
  const file = join(dir, "hostile.folded"), out = join(dir, "hostile.svg");
  writeFileSync(file, names.map(name => `cmd;${name};${name} 10\n`).join(""));
  flame(file, out);
  await look(out, "", async page => {
    const shown = new Set((await boxes(page)).map(box => box.name));
    for (const name of names) {
      const visible = name.replace(/[\u0001\u007f\u202e]/g, c => `\\u{${c.codePointAt(0).toString(16)}}`);
      assert.ok(shown.has(visible), `${visible} is not among ${[...shown].join(", ")}`);
      await page.evaluate(() => document.querySelector(".frames > g").dispatchEvent(new MouseEvent("mouseover", { bubbles: true })));
      await click(page, visible);
      await search(page).fill("^" + visible.replace(/[.*+?^${}()|[\]\\\/]/g, "\\$&") + "$");
      assert.match(await matched(page), /^Matched 9\.09 % in 2 frames/);
      await page.keyboard.press("Escape");
      await page.getByRole("button", { name: "Reset zoom" }).click();
    }
    assert.equal(await page.evaluate(() => window.hacked), undefined);
    assert.equal(await page.locator("script").count(), 1);
    assert.equal(await page.locator("img").count(), 0);
  });
});

test("a difference shows both shares, and the baseline's widths show what disappeared", async () => {
  const [old, now, out] = ["old.folded", "now.folded", "d.svg"].map(name => join(dir, name));
  writeFileSync(old, "kubelet;sync 12\napp;work;gone 300\napp;work 688\n");
  writeFileSync(now, "kubelet;sync 65\napp;work 935\n");
  flame(now, out, "--diff", old);
  await look(out, "", async page => {
    assert.ok(!(await boxes(page)).some(box => box.name === "gone"));
    await page.evaluate(() => [...document.querySelectorAll(".frames > g")].find(g => /^sync/.test(g.textContent))
      .dispatchEvent(new MouseEvent("mouseover", { bubbles: true })));
    assert.match(await status(page), /^sync {2}1\.20 % → 6\.50 % \(\+5\.30 points\)/);
    assert.match(await page.locator(".foot").textContent(), /Only in the baseline: gone 30\.00 %/);
    await page.getByRole("button", { name: "Widths: now" }).click();
    const all = await boxes(page);
    const gone = all.find(box => box.name === "gone");
    assert.ok(Math.abs(gone.width / all[0].width - 0.3) < 0.01, `${gone.width}`);
    assert.ok(gone.classes.includes("m") && all.find(box => box.name === "sync").classes.includes("p"));
    await page.reload();
    assert.ok((await boxes(page)).some(box => box.name === "gone"));
    await page.keyboard.press("b");
    assert.ok(!(await boxes(page)).some(box => box.name === "gone"));
  });
});

test("the inverted graph hangs from its root", async () => {
  const out = join(dir, "i.svg");
  flame(recording, out, "--invert");
  await look(out, "", async page => {
    const all = await boxes(page);
    assert.deepEqual([all[0].name, all[0].y], ["all", 0]);
    assert.ok(all.slice(1).every(box => box.y > 0));
    await page.locator(".frames > g[tabindex='0']").focus();
    await page.keyboard.press("ArrowDown");
    assert.match(await page.evaluate(() => document.activeElement.textContent), /itself/);
  });
});

test("without scripts it is a static image", async () => {
  const plain = await launch({ javaScriptEnabled: false });
  try {
    const { page, complaints } = await open(plain.context, svg);
    const text = readFileSync(svg, "utf8");
    const shapes = text.slice(0, text.indexOf("<metadata")).match(/<g class="[a-z] s\d"><title>/g).length;
    assert.ok(shapes > 100, `${shapes} shapes`);
    const picture = await page.screenshot();
    assert.ok(picture.length > 20_000, "an empty image would be smaller");
    assert.deepEqual(complaints, []);
  } finally {
    await plain.close();
  }
});

test("embedded in another page it leaves that page's address and keys alone", async () => {
  const file = join(dir, "page.html");
  const picture = readFileSync(svg, "utf8").replace(/^<\?xml.*\n/, "").replace("<![CDATA[", "").replace("]]></script>", "</script>");
  writeFileSync(file, `<!doctype html><meta charset="utf-8"><h1>Report</h1>${picture}`);
  await look(file, "", async page => {
    await click(page, "python3");
    assert.equal((await boxes(page)).find(box => box.name === "python3").width, (await boxes(page))[0].width);
    assert.equal(new URL(page.url()).hash, "");
  });
});
