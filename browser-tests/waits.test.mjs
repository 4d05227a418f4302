// The wait ledger on the page: two that want the same core, recorded into one file.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { launch } from "./browser.mjs";
import { ask, coroner, golden, serve, settled, visit as visitIn } from "./view.mjs";

// The ledger needs root.
const skip = process.getuid() === 0 ? false : "needs root";
const HOST_LOCK = "/tmp/coroner-host-tests.lock";
const dir = mkdtempSync(join(tmpdir(), "coroner-waits-")), file = join(dir, "node.coroner");
let browser, server, rivals = [];

// However the tests end, nothing goes on.
const end = () => { rivals.forEach(one => one.kill("SIGKILL")); rmSync(dir, { recursive: true, force: true }); };
process.on("exit", end);

before(async () => {
  if (skip) return;
  rivals = [1, 2].map(() => spawn("taskset", ["-c", "0", "sh", "-c", "while :; do :; done"], { stdio: "ignore" }));
  execFileSync("flock", ["--shared", HOST_LOCK, coroner, "record", "-o", file, "--for", "5s"], { stdio: ["ignore", "ignore", "inherit"] });
  rivals.forEach(one => one.kill("SIGKILL"));
  [browser, server] = await Promise.all([launch(), serve(file)]);
});
after(async () => { await Promise.allSettled([browser?.close(), server?.close()]); end(); });

const visit = (hash, use) => visitIn(browser.context, server.url, hash, use);
const name = one => `sh[${one.pid}]`;

test("the matrix says who waited and who had the core, a click shows the account", { skip }, () => visit("#v=waits&all=1", async page => {
  const told = JSON.parse((await ask(server.port, "/api/v1/waits")).body);
  const command = JSON.parse(execFileSync(coroner, ["waits", "--from", file, "--json"], { encoding: "utf8" }));
  const row = told.rows.find(row => row.who.pid === rivals[0].pid);
  assert.deepEqual(row, command.rows.find(row => row.who.pid === rivals[0].pid), "the page and the command tell the same");
  const taken = row.charged.filter(charge => charge.to.pid === rivals[1].pid).reduce((sum, charge) => sum + charge.ms, 0);
  assert.ok(taken > 100, `${taken} ms of ${row.waited_ms}`);
  // On a busy machine others may have waited and taken more than these two: then they are in the list only.
  const most = [...told.rows].sort((a, b) => b.waited_ms - a.waited_ms)[0];
  await page.locator(".matrix tbody tr").first().getByRole("button", { name: most.who.name }).waitFor();
  await page.locator(".losers").getByRole("button", { name: name(rivals[0]) }).click();
  const account = page.getByLabel(`The account of ${name(rivals[0])}`);
  const shown = await account.textContent();
  for (const text of [name(rivals[1]), "ordinary threads take turns", "It may run on core 0 only", "of the CPU time it asked for"]) assert.ok(shown.includes(text), `${text}: ${shown}`);
  // The address keeps it.
  await page.reload();
  await settled(page);
  assert.equal(await account.textContent(), shown);
}));

test("rows can be summed up otherwise and for another time", { skip }, () => visit("#v=waits&all=1", async page => {
  await page.getByRole("radio", { name: "thread" }).click();
  await settled(page);
  assert.match(new URL(page.url()).hash, /per=thread/);
  assert.ok((await page.locator(".losers").textContent()).includes(name(rivals[0])));
  await page.getByRole("radio", { name: "cgroup" }).click();
  await settled(page);
  assert.ok(!(await page.locator(".losers").textContent()).includes(name(rivals[0])));
  // A shorter time has less of it.
  const api = async path => JSON.parse((await ask(server.port, `/api/v1/${path}`)).body), source = await api("source"), whole = await api("waits");
  const from = (Date.parse(whole.window.from) - Number(BigInt(source.start_ns) / 1_000_000n)) * 1e6, waited = all => all.rows.find(row => row.who.pid === rivals[0].pid).waited_ms;
  assert.ok(waited(await api(`waits?from=${from + 1.1e9}&to=${from + 1.9e9}`)) < waited(whole));
  const odd = await ask(server.port, "/api/v1/waits?by=nothing");
  assert.equal(odd.status, 400);
}));

test("a recording without a ledger says so", { skip }, async () => {
  const bare = await serve(golden("idle"));
  try {
    await visitIn(browser.context, bare.url, "#v=waits", async page => assert.match(await page.locator(".failure").textContent(), /there is no wait ledger/));
  } finally {
    await bare.close();
  }
});
