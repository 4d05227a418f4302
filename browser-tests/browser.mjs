// Opens Chromium for tests and screenshots, with files that `coroner flame` wrote.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const here = dirname(fileURLToPath(import.meta.url));
export const repository = dirname(here);
// 12 s of perf record under a load in which one thread takes a core for 350 ms every 5 s.
export const recording = join(here, "testdata", "starved-core.folded");

const coroner = process.env.CORONER ?? join(repository, "target", "release", "coroner");
export function flame(from, to, ...options) {
  execFileSync(coroner, ["flame", from, "-o", to, ...options], { stdio: ["ignore", "ignore", "inherit"] });
}

// As root in most containers there is no sandbox. Nothing here needs a network.
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

function executable() {
  if (process.env.CHROMIUM) return process.env.CHROMIUM;
  for (const name of ["chromium", "chromium-browser", "google-chrome"]) {
    try {
      return execFileSync("sh", ["-c", 'command -v "$0"', name], { encoding: "utf8" }).trim();
    } catch { /* try the next one */ }
  }
  throw new Error("no Chromium found; name one in $CHROMIUM");
}

// On a loaded machine anything may take long.
const PATIENCE = 120_000;

// A browser with its own empty profile, which close() removes.
export async function launch(options = {}) {
  const profile = mkdtempSync(join(tmpdir(), "coroner-browser-"));
  const context = await chromium.launchPersistentContext(profile, {
    headless: true, executablePath: executable(), args: FLAGS, viewport: { width: 1280, height: 900 }, timeout: PATIENCE, ...options });
  context.setDefaultTimeout(PATIENCE);
  const close = async () => {
    await context.close();
    rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
  };
  return { context, close };
}

// Opens a file. `complaints` collects console messages, errors, dialogs and requests to other hosts.
export async function open(context, file, hash = "") {
  const page = await context.newPage();
  const complaints = [];
  page.on("console", message => complaints.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", error => complaints.push(`error: ${error.message}`));
  page.on("dialog", dialog => { complaints.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", request => { if (!request.url().startsWith("file:")) complaints.push(`request: ${request.url()}`); });
  await page.goto(pathToFileURL(file) + hash);
  return { page, complaints };
}
