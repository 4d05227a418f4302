// What a user does on the page at 3 am, with the real server and a real browser.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./browser.mjs";
import { ask, coroner, golden, recorded, serve, settled, until, visit as visitIn } from "./view.mjs";

const dir = mkdtempSync(join(tmpdir(), "coroner-page-"));
// Text as `perf script` writes it: two cores, 100 samples per second each; from second 4 to 5 one thread has core 1.
const perfText = join(dir, "perf.script.txt");
let browser, incident, stacks, profile;

before(async () => {
  const lines = [];
  for (let tick = 0; tick < 1000; tick++) for (const core of [0, 1]) {
    const taken = core === 1 && tick >= 400 && tick < 500, time = (1000 + tick / 100 + core / 1e5).toFixed(6);
    const [comm, pid, leaf] = taken ? ["hog", 77, "spin_in_kernel"] : ["web", 10 + core * 2 + tick % 2, tick % 2 ? "serve_request" : "parse_header"];
    lines.push(`${comm} ${pid} [00${core}] ${time}: 10000000 cpu-clock: \n\t    ffffffff81000010 ${leaf}+0x10 (${taken ? "[kernel.kallsyms]" : "/usr/bin/web"})\n\t            401000 main+0x20 (/usr/bin/${comm})\n`);
  }
  writeFileSync(perfText, lines.join("\n"));
  [browser, incident, stacks, profile] = await Promise.all([launch(), serve(golden("the-incident")), serve(recorded), serve(perfText)]);
});
after(async () => {
  await Promise.all([browser?.close(), incident?.close(), stacks?.close(), profile?.close()]);
  rmSync(dir, { recursive: true, force: true });
});

const visit = (server, hash, use) => visitIn(browser.context, server.url, hash, use);
const said = (...options) => {
  try { return JSON.parse(execFileSync(coroner, [...options, "--json"], { maxBuffer: 1 << 28 })); } catch (error) { return JSON.parse(error.stdout); }
};
const cores = page => page.locator(".cores canvas");
const flame = page => page.locator(".flame canvas");
const search = page => page.locator("#search");
// The middle of a core's row, and the positions of times on its axis.
const rows = page => cores(page).evaluate(canvas => ({ order: canvas.dataset.rows.split(",").map(Number), top: +canvas.dataset.rowTop, height: +canvas.dataset.rowHeight, width: canvas.clientWidth }));
const GUTTER = 176, RIGHT = 12;
async function brushCore(page, core, from, to) {
  const { order, top, height, width } = await rows(page), box = await cores(page).boundingBox();
  const y = box.y + top + order.indexOf(core) * height + height / 2, x = share => box.x + GUTTER + share * (width - GUTTER - RIGHT);
  await page.mouse.move(x(from), y);
  await page.mouse.down();
  await page.mouse.move(x((from + to) / 2), y, { steps: 3 });
  await page.mouse.move(x(to), y, { steps: 3 });
  await page.mouse.up();
  await settled(page);
}
const zoomedTo = (page, name) => until(page, name => document.querySelector(".flame canvas").dataset.zoom === name, name);
// The flame graph's text alternative.
const label = page => flame(page).getAttribute("aria-label");

test("the verdict comes first, worded as in the command, with its chain and the evidence of each link", () => visit(incident, "", async page => {
  const verdict = said("diagnose", "--from", golden("the-incident")).verdicts[0];
  const plain = text => text.replaceAll("`", "");
  assert.equal(await page.locator(".verdict h2").first().textContent(), plain(verdict.root_cause.title));
  assert.ok((await page.locator(".verdict .marks").first().textContent()).includes(verdict.certainty));
  const told = await page.locator(".chain .finding:not(.context) .text").allTextContents();
  assert.deepEqual(told, [verdict.root_cause, ...verdict.chain.map(link => link.to)].map(finding => plain(finding.title)));
  // A click on a link shows its three proofs.
  const link = verdict.chain[2];
  await page.locator(".because", { hasText: plain(link.because) }).click();
  const shown = await page.locator(".shown").textContent();
  for (const proof of Object.values(link.proofs)) assert.ok(shown.includes(plain(proof.shown ?? proof.not_seen)), `${proof.shown}`);
  for (const row of link.evidence) assert.ok(shown.includes(row.what), row.what);
  // Everything else is there too, and the address keeps what is open.
  await page.getByText("Ruled out").click();
  assert.ok((await page.locator(".overview").textContent()).includes("huge"));
  await page.reload();
  await settled(page);
  assert.equal(await page.locator(".shown").textContent(), shown);
}));

test("the starved core is obvious: it is first and drawn full, the other is not", () => visit(incident, "", async page => {
  const { order, top, height } = await rows(page);
  assert.equal(order[0], 1);
  assert.match(await cores(page).getAttribute("aria-label"), /core 1 100 % busy, mostly memwatch-26c7.*serves r85f8/);
  const filled = await cores(page).evaluate((canvas, [top, height]) => {
    const ratio = canvas.width / canvas.clientWidth, { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const share = row => {
      const y = Math.round((top + row * height + height / 4) * ratio), [from, to] = [Math.round(200 * ratio), Math.round(1100 * ratio)];
      let strong = 0;
      for (let x = from; x < to; x++) {
        const [r, g, b] = data.subarray((y * width + x) * 4);
        if (Math.max(r, g, b) - Math.min(r, g, b) > 90) strong++;
      }
      return strong / (to - from);
    };
    return [share(0), share(1)];
  }, [top, height]);
  assert.ok(filled[0] > 0.95 && filled[1] < 0.5, `${filled}`);
}));

test("brushing the burst on the occupied core shows the culprit's function; the link shows the same", () => visit(stacks, "#v=cores", async page => {
  const before = await label(page);
  // Where the core is full, according to the server.
  const grid = JSON.parse((await ask(stacks.port, "/api/v1/cores?columns=100")).body), worst = grid.cores[0];
  const full = worst.system.map((value, at) => (value ?? 0) > 80 ? at : -1).filter(at => at >= 0);
  assert.ok(full.length > 5, `core ${worst.core} is full in ${full.length} of ${grid.columns} columns`);
  const length = JSON.parse((await ask(stacks.port, "/api/v1/source")).body).length_ns;
  const middle = (full[Math.floor(full.length / 2)] + 0.5) * grid.step_ns / length;
  await brushCore(page, worst.core, middle - 0.04, middle + 0.04);
  const hash = new URL(page.url()).hash;
  assert.match(hash, new RegExp(`sel=[\\d.]+&core=${worst.core}$`));
  const after = await label(page);
  assert.notEqual(after, before);
  assert.match(after, /Widest: poolkeeper-\w+ 9\d|Widest: poolkeeper-\w+ 100 %/);
  assert.match(after, /mem_cgroup_iter|shrink_/);
  assert.match(await page.locator(".holders").textContent(), /poolkeeper-\w+\[\d+\] ?(8|9|10)\d/);

  await search(page).fill("mem_cgroup_iter|shrink_node");
  const matched = await page.locator(".matched").textContent();
  assert.ok(parseFloat(matched) > 80, matched);

  // Compared with the rest of the time, the culprit is what rose.
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Compare with the rest" }).click();
  await settled(page);
  assert.match(await page.locator(".risers tbody tr").first().textContent(), /poolkeeper|mem_cgroup_iter|shrink|reclaim/);
  assert.match(await label(page), /of a difference/);
  const risers = await page.locator(".risers").textContent();

  const link = page.url();
  await visit({ url: link.slice(0, link.indexOf("#")) }, new URL(link).hash, async other => {
    assert.equal(await other.locator(".risers").textContent(), risers);
    assert.equal(await label(other), await label(page));
    assert.equal(await other.locator(".selection").textContent(), await page.locator(".selection").textContent());
  });
  // The back button.
  await page.goBack();
  await settled(page);
  assert.equal(await label(page), after);
}));

test("the flame graph: zoom by click and keyboard, search, inverted, functions, exports of exactly this selection", () => visit(profile, "#v=profile", async page => {
  assert.match(await label(page), /Widest: web 95\.0 %/);
  const box = await flame(page).boundingBox();
  await page.mouse.click(box.x + 40, box.y + 19 * 1.5);
  await zoomedTo(page, "web");
  await page.reload();
  await settled(page);
  assert.equal(await flame(page).getAttribute("data-zoom"), "web");
  await flame(page).focus();
  await page.keyboard.press("Backspace");
  await zoomedTo(page, "all");
  await page.keyboard.press("/");
  await page.keyboard.type("spin_in");
  assert.match(await page.locator(".matched").textContent(), /^5\.00 % in 1 frame$/);
  await page.keyboard.press("Enter");
  await zoomedTo(page, "spin_in_kernel");
  await page.keyboard.press("Escape");
  assert.equal(await search(page).inputValue(), "");
  await page.getByRole("button", { name: "Inverted" }).click();
  await settled(page);
  assert.match(await label(page), /Widest: (serve_request|parse_header) 4\d/);
  await page.getByRole("button", { name: "Functions" }).click();
  assert.match(await page.locator(".functions tbody").textContent(), /spin_in_kernel/);
  // The export contains only core 1 between the fourth and the fifth second.
  await page.goto(`${profile.url}#v=profile&sel=4..5&core=1`);
  await settled(page);
  await page.locator(".menu summary").click();
  // Links are relative: the page may stand below another's path.
  const leadsTo = name => page.getByRole("link", { name, exact: true }).evaluate(link => { const { pathname, search } = new URL(link.href); return pathname + search; });
  const folded = (await ask(profile.port, await leadsTo("folded stacks"))).body.trim().split("\n");
  assert.ok(folded.length === 1 && /hog;main;spin_in_kernel/.test(folded[0]), folded.join("\n"));
  for (const name of ["SVG", "pprof", "speedscope", "recording"]) {
    const answer = await ask(profile.port, await leadsTo(name));
    assert.equal(answer.status, 200, name);
    assert.match(answer.headers["content-disposition"], /attachment/);
  }
}));

test("FlameScope's view selects a range and a band, and filters work", () => visit(profile, "#v=profile", async page => {
  const scope = page.locator(".scope canvas"), box = await scope.boundingBox();
  const { columns, scopeRows } = await scope.evaluate(canvas => ({ columns: +canvas.dataset.columns, scopeRows: +canvas.dataset.scopeRows }));
  const each = Math.min(96, (box.width - GUTTER - RIGHT) / columns), height = box.height - 20;
  const spot = (column, row) => [box.x + GUTTER + (column + 0.5) * each, box.y + height - (row + 0.5) / scopeRows * height];
  const drag = async (a, b) => { await page.mouse.move(...a); await page.mouse.down(); await page.mouse.move(...b, { steps: 4 }); await page.mouse.up(); await settled(page); };
  await drag(spot(4, 5), spot(4, 40));
  assert.match(new URL(page.url()).hash, /sel=4\.1\.\.4\.82/);
  assert.match(await label(page), /hog 50\.0 %/);
  await page.getByRole("radio", { name: "Band" }).click();
  await drag(spot(2, 10), spot(6, 19));
  assert.match(new URL(page.url()).hash, /sel=2\.\.7&band=0\.2\.\.0\.4/);
  assert.match(await label(page), /hog 10\.0 %/);
  await page.getByLabel("command").fill("hog");
  await page.keyboard.press("Enter");
  await settled(page);
  assert.match(await label(page), /Widest: hog 100 %/);
  // An empty selection is explained in words, never drawn as an empty graph.
  await page.getByLabel("command").fill("nobody");
  await page.keyboard.press("Enter");
  await page.locator(".failure").first().waitFor();
  await page.getByRole("button", { name: "Show all samples" }).click();
  await settled(page);
  assert.match(await label(page), /Widest: web 95\.0 %/);
}));

test("a profile's overview lists threads that had a core to themselves; a click goes there", () => visit(profile, "", async page => {
  const row = page.locator(".monopolies .row").first();
  assert.match(await row.textContent(), /core 1hog/);
  await row.click();
  await settled(page);
  assert.match(await label(page), /Widest: hog 100 %/);
}));

test("baseline and selection: A against B", () => visit(profile, "#v=profile&sel=0..2", async page => {
  await page.getByRole("button", { name: "Set as baseline" }).click();
  await page.goto(page.url() + "&sel=4..5");
  await settled(page);
  assert.match(await page.locator(".risers").textContent(), /hog/);
}));

test("the time axis: wheel and keys zoom, everything follows, the address keeps it", () => visit(incident, "#v=cores", async page => {
  const box = await cores(page).boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 60);
  await page.keyboard.down("Control");
  for (let turn = 0; turn < 4; turn++) await page.mouse.wheel(0, -240);
  await page.keyboard.up("Control");
  await settled(page);
  const zoomed = /t=([\d.]+)\.\.([\d.]+)/.exec(new URL(page.url()).hash);
  assert.ok(zoomed && zoomed[2] - zoomed[1] < 8, page.url());
  await page.keyboard.press("ArrowRight");
  await settled(page);
  const moved = /t=([\d.]+)\.\.([\d.]+)/.exec(new URL(page.url()).hash);
  assert.ok(+moved[1] > +zoomed[1] && Math.abs(moved[2] - moved[1] - (zoomed[2] - zoomed[1])) < 1e-6);
  await brushCore(page, 1, 0.2, 0.4);
  await page.keyboard.press("z");
  await settled(page);
  const [, from, to] = /t=([\d.]+)\.\.([\d.]+)/.exec(new URL(page.url()).hash);
  const [, a, b] = /sel=([\d.]+)\.\.([\d.]+)/.exec(new URL(page.url()).hash);
  assert.deepEqual([from, to], [a, b]);
  await page.keyboard.press("Escape");
  await page.keyboard.press("0");
  await settled(page);
  assert.equal(new URL(page.url()).hash, "#v=cores&core=1");
  assert.match(await page.locator(".timeline canvas").getAttribute("aria-label"), /unit restarts/);
}));

test("everything can be reached by keyboard, and ? lists the keys", () => visit(incident, "", async page => {
  await page.keyboard.press("?");
  const help = page.getByRole("dialog");
  await help.waitFor();
  assert.match(await help.textContent(), /search the flame graph/);
  await page.keyboard.press("Escape");
  await help.waitFor({ state: "hidden" });
  for (const [key, view] of [["2", "cores"], ["3", "waits"], ["5", "zombies"], ["6", "units"], ["1", "overview"]]) {
    await page.keyboard.press(key);
    await page.locator(`#main[data-view="${view}"]`).waitFor();
  }
  await settled(page);
  await page.getByRole("tab", { name: "Overview" }).focus();
  await page.keyboard.press("ArrowRight");
  await page.locator('#main[data-view="cores"]').waitFor();
  await page.keyboard.press("o");
  assert.match(page.url(), /by=owner/);
  const theme = () => page.evaluate(() => document.documentElement.dataset.theme);
  const was = await theme();
  await page.keyboard.press("t");
  assert.notEqual(await theme(), was);
  await page.reload();
  assert.notEqual(await theme(), was);
  await page.keyboard.press("t");
  await settled(page);
}));

test("zombies and units are shown as in the commands", () => visit(incident, "#v=zombies", async page => {
  const zombies = said("zombies", "--from", golden("the-incident")), number = value => value.toLocaleString("en");
  const shown = await page.locator("main").textContent();
  for (const text of [number(zombies.dead), number(zombies.live), zombies.groups[0].pattern, zombies.groups[0].pinned_by[0].name]) assert.ok(shown.includes(text), text);
  await page.keyboard.press("6");
  await settled(page);
  const units = await page.locator("main").textContent();
  assert.match(units, /ecs\.service/);
  assert.match(units, /systemctl disable --now ecs\.service/);
  await page.getByLabel("Find a unit").fill("journald");
  assert.deepEqual(await page.locator(".units tbody tr td:first-child b").allTextContents(), await page.locator(".units tbody tr td:first-child b").allTextContents().then(all => all.filter(name => name.includes("journald"))));
}));

test("text is readable in both themes, and there is no motion for users who prefer reduced motion", () => visit(incident, "", async page => {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
    const worst = await page.evaluate(() => {
      const numbers = text => text.match(/[\d.]+/g).map(Number);
      const light = rgb => { const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
      const ground = element => { for (let at = element; at; at = at.parentElement) { const colour = numbers(getComputedStyle(at).backgroundColor); if (colour.length < 4 || colour[3] > 0.9) return colour.slice(0, 3); } return [255, 255, 255]; };
      return [...document.querySelectorAll("main *, header *")].filter(element => [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim()) && element.getClientRects().length && !element.disabled)
        .map(element => ({ contrast: contrast(numbers(getComputedStyle(element).color).slice(0, 3), ground(element)), text: element.textContent.slice(0, 40), class: element.className }))
        .sort((a, b) => a.contrast - b.contrast)[0];
    });
    assert.ok(worst.contrast >= 4.5, `${colorScheme}: ${JSON.stringify(worst)}`);
  }
}));

test("names with markup are shown as text", async () => {
  const file = join(dir, "hostile.folded");
  const names = ["<img src=x onerror=window.hacked=1>", "</script><script>window.hacked=2</script>", "__proto__", "constructor"];
  writeFileSync(file, names.map(name => `${name};${name} 10\n`).join(""));
  const server = await serve(file);
  try {
    await visit(server, "#v=profile&q=img", async page => {
      await page.getByRole("button", { name: "Functions" }).click();
      assert.ok((await page.locator(".functions").textContent()).includes(names[0]));
      assert.match(await page.locator(".matched").textContent(), /25\.0 %/);
      assert.equal(await page.evaluate(() => window.hacked), undefined);
    });
  } finally {
    await server.close();
  }
});

test("beyond loopback nobody gets in without the token; a foreign Host header is refused everywhere", async () => {
  const open = await serve(golden("the-incident"), "--listen", "0.0.0.0:0");
  try {
    for (const path of ["/", "/api/v1/source", "/assets/app.js"]) assert.equal((await ask(open.port, path)).status, 401, path);
    assert.equal((await ask(open.port, "/api/v1/source", { authorization: "Bearer wrong" })).status, 401);
    const token = new URL(open.address).searchParams.get("token");
    assert.equal((await ask(open.port, "/api/v1/source", { authorization: `Bearer ${token}` })).status, 200);
    // The printed address opens the page, and the token does not stay in the address bar.
    const own = await launch();
    try {
      const page = await own.context.newPage();
      await page.goto(`http://127.0.0.1:${open.port}/?token=${token}`);
      await page.locator(".verdict h2").waitFor();
      assert.ok(!page.url().includes(token), page.url());
    } finally {
      await own.close();
    }
  } finally {
    await open.close();
  }
  for (const host of ["evil.example", `evil.example:${incident.port}`, "127.0.0.1.evil.example"]) {
    const answer = await ask(incident.port, "/api/v1/source", { host });
    assert.ok(answer.status >= 400 && answer.status < 500, `${host}: ${answer.status}`);
    assert.ok(!answer.body.includes("boot_id"));
  }
  const page = await ask(incident.port, "/");
  assert.match(page.headers["content-security-policy"], /default-src 'none'.*script-src 'self'/);
  assert.ok(!/<script(?![^>]*src=)|style=|onload=/.test(page.body), page.body);
  assert.equal((await ask(incident.port, "/assets/../../../../etc/passwd")).status, 404);
});

test("the lock file names no registry, and the page loads nothing from elsewhere", () => {
  for (const name of ["../ui/package-lock.json", "package-lock.json"]) assert.doesNotMatch(readFileSync(new URL(name, import.meta.url), "utf8"), /"resolved"|https?:\/\/(?!opencollective|github|www\.patreon|tidelift|feross|paypal)/);
});
