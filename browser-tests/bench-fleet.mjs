// How long the fleet's page takes: node bench-fleet.mjs URL USER_TOKEN_FILE, against a collector that has a simulated fleet
// (docs/benchmarks.md).
import { readFileSync } from "node:fs";
import { launch } from "./browser.mjs";
import { settled } from "./view.mjs";

const [url, file] = process.argv.slice(2);
if (!url || !file) throw new Error("usage: node bench-fleet.mjs URL USER_TOKEN_FILE");
const token = readFileSync(file, "utf8").trim(), now = Math.floor(Date.now() / 1000), day = 86_400;
const middle = values => values.sort((a, b) => a - b)[values.length >> 1];
const told = (what, values, unit = "ms") => console.log(`${what}: ${Math.round(middle(values))} ${unit} (${Math.round(values[0])} to ${Math.round(values[values.length - 1])})`);

for (const path of ["map?numbers=", "map?numbers=zombies", "map", `map?numbers=&at=${now - 3 * day}`, `history?from=${now - 7 * day}`, "problem?code=zombie-memcgs", "nodes/sim-00042/minutes"]) {
  const times = [];
  let bytes = 0;
  for (let turn = 0; turn < 9; turn++) {
    const begun = performance.now();
    const answer = await fetch(`${url}/api/v1/${path}`, { headers: { authorization: `Bearer ${token}` } });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    bytes = (await answer.arrayBuffer()).byteLength;
    times.push(performance.now() - begun);
  }
  told(`${path.replace(/=\d{10}/, "=…")}, ${Math.round(bytes / 1024)} KiB`, times);
}

const { context, close } = await launch({ viewport: { width: 1440, height: 900 } });
try {
  const first = await context.newPage();
  await first.goto(`${url}/?token=${token}`);
  await settled(first);
  await first.close();
  const paints = [], changes = [], moves = [];
  for (let turn = 0; turn < 7; turn++) {
    const page = await context.newPage();
    await page.addInitScript(() => {
      const look = () => {
        const canvas = document.querySelector(".map canvas");
        if (canvas && Number(canvas.dataset.nodes) > 0 && canvas.width > 300) requestAnimationFrame(() => { window.painted = performance.now(); }); else requestAnimationFrame(look);
      };
      requestAnimationFrame(look);
    });
    await page.goto(`${url}/#by=image_id`);
    await settled(page);
    paints.push(await page.evaluate(() => window.painted));
    // Another grouping, until it is drawn.
    changes.push(await page.evaluate(() => new Promise(done => {
      const begun = performance.now();
      location.hash = "#by=zone";
      const look = () => document.querySelector(".map canvas").getAttribute("aria-label").includes("zone") ? requestAnimationFrame(() => done(performance.now() - begun)) : requestAnimationFrame(look);
      requestAnimationFrame(look);
    })));
    // The pointer over the cells: time between two frames.
    moves.push(await page.evaluate(() => new Promise(done => {
      const canvas = document.querySelector(".map canvas"), box = canvas.getBoundingClientRect(), times = [];
      let before = null, at = 0;
      const step = time => {
        if (before !== null) times.push(time - before);
        before = time;
        if (++at > 60) { times.sort((a, b) => a - b); done(times[Math.floor(times.length * 0.95)]); return; }
        canvas.dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: box.x + 10 + at * 9, clientY: box.y + 40 + at * 4 }));
        requestAnimationFrame(step);
      };
      requestAnimationFrame(step);
    })));
    await page.close();
  }
  told("first paint of the map, from the start of the navigation", paints);
  told("grouped by another attribute", changes);
  told("a frame while the pointer moves, 95th percentile", moves);
} finally {
  await close();
}
