// Builds the node's page into crates/web/assets and the fleet's into crates/fleet/assets. Both are committed, so that `cargo build` needs no
// Node.
//   node build.mjs           writes it
//   node build.mjs --check   builds in memory and compares with what is committed; also the size of the bundle
//   node build.mjs --test    runs the unit tests of test/
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const PAGES = [{ source: "src", crate: "web" }, { source: "src/fleet", crate: "fleet" }];
const outOf = page => process.env.CORONER_PAGE_OUT ? join(process.env.CORONER_PAGE_OUT, page.crate) : join(here, "..", "crates", page.crate, "assets");
const MOST_GZIPPED = 150 * 1024;
const NOTICE = "/* coroner: MIT OR Apache-2.0. Contains Preact (MIT, Copyright (c) 2015-present Jason Miller). */";

// File name → content, as it is served.
async function built({ source }) {
  const options = {
    bundle: true, minify: true, write: false, target: ["es2020"], charset: "utf8", absWorkingDir: here, legalComments: "none",
    jsx: "automatic", jsxImportSource: "preact", logLevel: "warning",
  };
  const [script, style] = (await Promise.all([
    build({ ...options, entryPoints: [`${source}/main.tsx`], format: "iife", banner: { js: NOTICE } }),
    build({ ...options, entryPoints: [`${source}/style.css`] }),
  ])).map(result => result.outputFiles[0].text);
  const named = (text, ext) => `assets/app.${createHash("sha256").update(text).digest("hex").slice(0, 12)}.${ext}`;
  const [js, css] = [named(script, "js"), named(style, "css")];
  const html = readFileSync(join(here, source, "index.html"), "utf8").replace("app.js", js).replace("app.css", css);
  return new Map([["index.html", html], [js, script], [css, style]]);
}

function size(page, files) {
  const bytes = [...files.values()].reduce((sum, text) => sum + gzipSync(text, { level: 9 }).length, 0);
  console.log(`   the page of crates/${page.crate}: ${(bytes / 1024).toFixed(1)} KiB gzipped`);
  if (bytes > MOST_GZIPPED) throw new Error(`the page is larger than ${MOST_GZIPPED / 1024} KiB gzipped`);
}

async function write() {
  for (const page of PAGES) {
    const files = await built(page), out = outOf(page);
    rmSync(join(out, "assets"), { recursive: true, force: true });
    mkdirSync(join(out, "assets"), { recursive: true });
    for (const [name, text] of files) writeFileSync(join(out, name), text);
    size(page, files);
  }
}

async function check() {
  for (const page of PAGES) {
    const files = await built(page), out = outOf(page);
    const committed = existsSync(join(out, "assets")) ? ["index.html", ...readdirSync(join(out, "assets")).map(name => `assets/${name}`)] : [];
    const wrong = [...new Set([...files.keys(), ...committed])]
      .filter(name => !committed.includes(name) || !files.has(name) || readFileSync(join(out, name), "utf8") !== files.get(name));
    if (wrong.length) throw new Error(`crates/${page.crate}/assets is not what ui/ gives (${wrong.join(", ")}); run: cd ui && npm ci && npm run build`);
    size(page, files);
  }
}

async function test() {
  const dir = mkdtempSync(join(tmpdir(), "coroner-page-"));
  try {
    const tests = readdirSync(join(here, "test")).filter(name => name.endsWith(".test.ts")).map(name => join(here, "test", name));
    await build({ entryPoints: tests, bundle: true, platform: "node", format: "esm", outdir: dir, outExtension: { ".js": ".mjs" },
      target: ["node18"], jsx: "automatic", jsxImportSource: "preact", logLevel: "warning" });
    const files = readdirSync(dir).map(name => join(dir, name));
    process.exitCode = spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

try {
  await ({ "--check": check, "--test": test }[process.argv[2]] ?? write)();
} catch (error) {
  console.error(`ui: ${error.message}`);
  process.exitCode = 1;
}
