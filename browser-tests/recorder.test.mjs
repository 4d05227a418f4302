// The page of a running flight recorder: the recording grows, an incident is frozen, and finally the recorder stops.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./browser.mjs";
import { ask, coroner, serve, settled, until, visit as visitIn } from "./view.mjs";

// Sampling all cores needs root.
const skip = process.getuid() === 0 ? false : "needs root";
const HOST_LOCK = "/tmp/coroner-host-tests.lock";
const dir = mkdtempSync(join(tmpdir(), "coroner-recorder-")), place = join(dir, "recorded"), text = 'deploy "7" begins <b>now</b>';
// The page polls every ten seconds.
const FOLLOWS = 180_000;
let browser, recorder, server, said = "";

// However the tests end, the recorder is stopped.
const end = () => { recorder?.kill("SIGKILL"); rmSync(dir, { recursive: true, force: true }); };
process.on("exit", end);

const sleep = ms => new Promise(done => setTimeout(done, ms));
async function wait(what, condition, ms = 180_000) {
  for (const last = Date.now() + ms; ;) {
    const found = await condition();
    if (found) return found;
    assert.equal(recorder.exitCode, null, `the recorder ended: ${said}`);
    assert.ok(Date.now() < last, `waited ${ms} ms until ${what}; the recorder said: ${said}`);
    await sleep(100);
  }
}
const run = (...options) => execFileSync(coroner, options, { encoding: "utf8" });
const incidents = () => JSON.parse(run("incidents", "--json", "--dir", place)).incidents;
const source = async () => JSON.parse((await ask(server.port, "/api/v1/source")).body);

before(async () => {
  if (skip) return;
  const settings = join(dir, "coroner.toml");
  writeFileSync(settings, '[incidents]\nbefore = "20s"\nafter = "2s"\n');
  // Only one recorder at a time, as in all host tests; it stops by itself if nothing stops it.
  recorder = spawn("flock", ["--no-fork", HOST_LOCK, coroner, "record", "--config", settings, "--dir", place, "--metrics", "off", "--max-size", "64MiB", "--for", "30m"],
    { stdio: ["ignore", "ignore", "pipe"], env: { ...process.env, CORONER_RUNNING: join(dir, "running") } });
  recorder.stderr.on("data", data => { said += data; });
  browser = await launch();
  await wait("it records", () => said.includes("recording into"), 300_000);
  await wait("something can be shown", async () => {
    try { server = await serve(place); } catch { return false; }
    if ((await source()).samples > 0) return true;
    await server.close();
    return false;
  });
  run("mark", text, "--dir", place);
  await wait("the incident is complete", () => incidents().find(one => one.code === "mark" && one.state === "complete"));
});
after(async () => {
  await Promise.allSettled([browser?.close(), server?.close()]);
  if (recorder?.exitCode === null) await new Promise(done => { recorder.on("exit", done); recorder.kill("SIGTERM"); setTimeout(() => recorder.kill("SIGKILL"), 10_000).unref(); });
  end();
});

const visit = (hash, use) => visitIn(browser.context, server.url, hash, use);
const tab = page => page.getByRole("tab", { name: /^Incidents/ });

test("an incident is listed and described, and links to its time", { skip }, () => visit("", async page => {
  const known = incidents().find(one => one.code === "mark");
  assert.match(await tab(page).textContent(), /Incidents[1-9]/);
  assert.equal(await page.locator(".live").textContent(), "live");
  // From the first page, through its text.
  await page.locator(".overview").getByRole("button", { name: text }).click();
  await page.locator('#main[data-view="incidents"]').waitFor();
  await settled(page);
  const row = page.locator('.incidents .row[aria-current="true"]');
  assert.ok((await row.textContent()).includes(text), await row.textContent());
  assert.ok((await row.textContent()).includes("complete"));
  const report = page.locator(".report");
  await report.getByRole("heading", { name: `Incident ${known.number}` }).waitFor();
  const told = JSON.parse(run("incidents", "show", String(known.number), "--json", "--dir", place));
  const shown = await report.textContent();
  for (const verdict of told.diagnosis.verdicts) assert.ok(shown.includes(verdict.root_cause.title.replaceAll("`", "")), verdict.root_cause.title);
  assert.match(shown, /rose/);
  // The mark on the axis: the axis shows the incident, the selection is the moment.
  await page.getByRole("button", { name: "Show on the time axis" }).click();
  await settled(page);
  assert.match(new URL(page.url()).hash, /v=cores&t=[\d.]+\.\.[\d.]+&sel=[\d.]+\.\.[\d.]+/);
  assert.match(await page.locator(".timeline canvas").getAttribute("aria-label"), /[1-9] marks/);
  assert.match(await page.locator(".flame canvas").getAttribute("aria-label"), /Widest: \S/);
  // A link to it shows it again.
  await page.goto(`${server.url}#v=incidents&n=${known.number}`);
  await settled(page);
  assert.ok((await page.locator(".report").textContent()).includes(text));
}));

test("the page follows a running recorder, and says when it has stopped", { skip }, () => visit("#v=cores", async page => {
  const length = () => page.locator(".who .muted").textContent(), marks = () => page.locator(".timeline canvas").getAttribute("aria-label");
  const before = await length(), [, some] = /(\d+) marks/.exec(await marks()), address = page.url();
  run("mark", "the second one", "--dir", place);
  await wait("the page shows more time", async () => await length() !== before, FOLLOWS);
  await wait("the page shows the new mark", async () => Number(/(\d+) marks/.exec(await marks())?.[1]) > Number(some), FOLLOWS);
  await wait("the tab counts it", async () => Number(/\d+/.exec(await tab(page).textContent())) > Number(some), FOLLOWS);
  assert.equal(page.url(), address, "the address does not change");
  // The selection keeps its time while the recording grows.
  await page.goto(`${server.url}#v=cores&sel=1..3`);
  await settled(page);
  const chosen = await page.locator(".selection").textContent(), grown = await length();
  await wait("the page shows still more time", async () => await length() !== grown, FOLLOWS);
  assert.equal(await page.locator(".selection").textContent(), chosen);
  await settled(page);
  const ended = new Promise(done => recorder.on("exit", done));
  recorder.kill("SIGTERM");
  assert.equal(await ended, 0, said);
  await until(page, () => !document.querySelector(".live"), undefined, FOLLOWS);
}));
