// Screenshots of the page.
//   node page-screenshots.mjs         those of the README, into docs/images
//   node page-screenshots.mjs --all   every view in both themes, 900, 1280 and 2560 wide, into target/screenshots, for visual inspection
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { launch, recording, repository } from "./browser.mjs";
import { golden, look, recorded, serve, settled } from "./view.mjs";

const all = process.argv.includes("--all");
const out = all ? join(repository, "target", "screenshots") : join(repository, "docs", "images");
mkdirSync(out, { recursive: true });
const servers = new Map();
const server = async file => { if (!servers.has(file)) servers.set(file, await serve(file)); return servers.get(file); };

// Where the core is full: what a user would select.
async function burst(file) {
  const { url } = await server(file);
  const [grid, source] = await Promise.all(["cores?columns=200", "source"].map(path => fetch(`${url}api/v1/${path}`).then(answer => answer.json())));
  const worst = grid.cores[0], full = worst.system.flatMap((value, at) => (value ?? 0) > 80 ? [at] : []);
  const [from, to] = full.length ? [full[Math.floor(full.length * 0.3)], full[Math.floor(full.length * 0.7)] + 1].map(at => at * grid.step_ns / 1e9) : [0, source.length_ns / 1e9];
  return `sel=${from.toFixed(2)}..${to.toFixed(2)}&core=${worst.core}`;
}

const { context, close } = await launch();
try {
  const brushed = await burst(recorded);
  const pictures = all ? [
    ["overview", golden("the-incident"), "#v=overview"], ["cores", golden("the-incident"), "#v=cores"], ["owners", recorded, "#v=cores&by=owner"],
    ["brushed", recorded, `#v=cores&${brushed}`], ["difference", recorded, `#v=profile&base=rest&${brushed}`], ["profile", recorded, "#v=profile"], ["search", recorded, `#v=profile&q=mem_cgroup&${brushed}`],
    ["zombies", golden("the-incident"), "#v=zombies"], ["units", golden("the-incident"), "#v=units"], ["healthy", golden("busy-healthy"), "#v=overview"], ["two", golden("two-problems"), "#v=overview"], ["folded", recording, "#v=profile&colour=language"],
  ] : [["view-overview", golden("the-incident"), "#v=overview"], ["view-cores", recorded, `#v=cores&by=owner&${brushed}`]];
  for (const [colorScheme, width] of all ? [["light", 1280], ["light", 2560], ["dark", 1280], ["dark", 2560], ["dark", 900]] : [["dark", 1280]]) {
    for (const [name, file, hash] of pictures) {
      const { page } = await look(context, (await server(file)).url, hash);
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.setViewportSize({ width, height: width > 2000 ? 1300 : 900 });
      await page.reload();
      await settled(page);
      await page.screenshot({ path: join(out, all ? `page-${name}-${colorScheme}-${width}.png` : `${name}.png`) });
      await page.close();
    }
  }
} finally {
  await close();
  for (const one of servers.values()) await one.close();
}
console.log(`pictures are in ${out}`);
