// The real `coroner view`, and its page in Chromium.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { request } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { repository } from "./browser.mjs";

const here = dirname(fileURLToPath(import.meta.url));
export const coroner = process.env.CORONER ?? join(repository, "target", "release", "coroner");
export const golden = name => join(repository, "golden", `${name}.coroner`);
// A thread walks dead cgroups and takes a core, as recorded by the flight recorder, with stacks (testdata/make).
export const recorded = join(here, "testdata", "zombie-reclaim.coroner");

// Starts a server on its own port. `address` is what it printed; close() stops it.
export async function serve(file, ...options) {
  const listen = options.includes("--listen") ? [] : ["--listen", "127.0.0.1:0"];
  const child = spawn(coroner, ["view", file, "--no-open", ...listen, ...options], { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  const address = await new Promise((resolve, reject) => {
    const hear = data => {
      said += data;
      const found = /^(http:\/\/\S+)/m.exec(said);
      if (found) resolve(found[1]);
    };
    child.stdout.on("data", hear);
    child.stderr.on("data", hear);
    child.on("exit", code => reject(new Error(`coroner view ended with ${code}: ${said}`)));
    child.on("error", reject);
  });
  const port = Number(new URL(address).port);
  const close = () => new Promise(resolve => { child.removeAllListeners("exit"); child.on("exit", resolve); child.kill("SIGTERM"); });
  return { address, port, url: `http://127.0.0.1:${port}/`, close };
}

// One raw request, with any Host header.
export const ask = (port, path, headers = {}) => new Promise((resolve, reject) => {
  request({ host: "127.0.0.1", port, path, headers }, answer => {
    let body = "";
    answer.setEncoding("utf8");
    answer.on("data", data => { body += data; });
    answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, body }));
  }).on("error", reject).end();
});

// Opens the page. `complaints` collects console messages, errors, refused requests and requests to other hosts.
export async function look(context, url, hash = "") {
  const page = await context.newPage();
  const complaints = [];
  page.on("console", message => { if (!/status of 404/.test(message.text())) complaints.push(`${message.type()}: ${message.text()}`); });
  page.on("pageerror", error => complaints.push(`error: ${error.message}`));
  page.on("dialog", dialog => { complaints.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", request => { if (!request.url().startsWith(url) && !request.url().startsWith("data:")) complaints.push(`request: ${request.url()}`); });
  await page.goto(url + hash);
  await page.locator("#main").waitFor();
  return { page, complaints };
}

// Polls. Playwright's own waitForFunction evaluates text, which the page's Content-Security-Policy forbids.
export async function until(page, condition, argument, wait = 120_000) {
  for (const end = Date.now() + wait; ;) {
    if (await page.evaluate(condition, argument)) return;
    if (Date.now() > end) throw new Error(`waited ${wait} ms for ${condition}`);
    await new Promise(done => setTimeout(done, 30));
  }
}

// No request is pending, and all answers are drawn.
export async function settled(page) {
  await page.waitForLoadState("networkidle");
  await until(page, () => !document.querySelector('[aria-busy="true"], .waiting, .stale'));
  await page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));
}

// Opens the page for `use`; at the end there must be no complaint: no error, no console message, nothing refused by the policy, no request
// to another host.
export async function visit(context, url, hash, use) {
  const { page, complaints } = await look(context, url, hash);
  try {
    await settled(page);
    await use(page);
    assert.deepEqual(complaints, []);
  } finally {
    await page.close();
  }
}
