// Frame time while a flame graph of 100,000 frames is panned and zoomed, in headless Chromium.
//   node bench-flame.mjs          prints p50, p95 and the maximum; fails above 50 ms at p95
// Each wheel event causes one redraw; its time is from the event until the browser has presented the frame.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { launch } from "./browser.mjs";
import { look, serve, settled } from "./view.mjs";

const BAR_MS = 50, STACKS = 1990, DEPTH = 52;
const dir = mkdtempSync(join(tmpdir(), "coroner-bench-"));
const file = join(dir, "large.folded");
// As many stacks as can each have 0.05 % of the total, the smallest share that is drawn; names as long as real ones.
const stack = at => ["command", ...Array.from({ length: DEPTH }, (_, depth) => `namespace::module_${depth % 9}::function_${depth < 1 ? at % 40 : at}_${depth}${depth > 30 ? "_[k]" : ""}`)].join(";");
writeFileSync(file, Array.from({ length: STACKS }, (_, at) => `${stack(at)} 100\n`).join(""));

let server, browser;
try {
  server = await serve(file);
  browser = await launch({ viewport: { width: 1920, height: 1080 } });
  const { page } = await look(browser.context, server.url, "#v=profile");
  await settled(page);
  const canvas = page.locator(".flame canvas"), frames = Number(await canvas.getAttribute("data-frames"));
  await canvas.scrollIntoViewIfNeeded();
  const took = await canvas.evaluate(async canvas => {
    const box = canvas.getBoundingClientRect(), took = [];
    const turn = options => canvas.dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true, clientX: box.left + box.width * 0.37, clientY: box.top + 200, ...options }));
    const drawn = () => new Promise(done => requestAnimationFrame(() => { const channel = new MessageChannel(); channel.port1.onmessage = done; channel.port2.postMessage(0); }));
    const step = async options => {
      await drawn();
      const began = performance.now();
      turn(options);
      await drawn();
      // Reading pixels forces pending canvas drawing.
      canvas.getContext("2d").getImageData(0, 0, 1, 1);
      took.push(performance.now() - began);
    };
    for (let round = 0; round < 6; round++) {
      for (let at = 0; at < 25; at++) await step({ ctrlKey: true, deltaY: -60 });
      for (let at = 0; at < 30; at++) await step({ shiftKey: true, deltaY: at % 2 ? 160 : -90 });
      for (let at = 0; at < 10; at++) await step({ deltaY: at < 5 ? 90 : -90 });
      for (let at = 0; at < 25; at++) await step({ ctrlKey: true, deltaY: 60 });
    }
    return took;
  });
  took.sort((a, b) => a - b);
  const at = share => took[Math.floor(share * (took.length - 1))];
  console.log(`${frames.toLocaleString("en")} frames, 1920 × 1080, ${took.length} drawings: p50 ${at(0.5).toFixed(1)} ms, p95 ${at(0.95).toFixed(1)} ms, longest ${at(1).toFixed(1)} ms (bar: p95 ${BAR_MS} ms)`);
  if (frames < 100_000) { console.error(`only ${frames} frames were drawn`); process.exitCode = 1; }
  if (at(0.95) > BAR_MS) { console.error("slower than the bar"); process.exitCode = 1; }
} finally {
  await browser?.close();
  await server?.close();
  rmSync(dir, { recursive: true, force: true });
}
