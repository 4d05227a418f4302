// Writes screenshots of the flame graph into target/screenshots, for visual inspection.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { flame, launch, open, recording, repository } from "./browser.mjs";

const out = join(repository, "target", "screenshots");
mkdirSync(out, { recursive: true });
const path = name => join(out, name);
// A baseline for the difference: every other stack of the same recording.
const half = readFileSync(recording, "utf8").trim().split("\n").filter((_, at) => at % 2 === 0).join("\n");
writeFileSync(path("half.folded"), half + "\n");
flame(recording, path("flame.svg"));
flame(recording, path("inverted.svg"), "--invert");
flame(recording, path("difference.svg"), "--diff", path("half.folded"));

const { context, close } = await launch();
try {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [1280, 2560]) {
      for (const [name, hash, suffix] of [["flame", "", ""], ["flame", "#s=vfs", "-search"], ["inverted", "", ""],
        ["difference", "", ""], ["difference", "#b=1", "-baseline"]]) {
        const { page } = await open(context, path(`${name}.svg`), hash);
        await page.emulateMedia({ colorScheme });
        await page.setViewportSize({ width, height: 900 });
        await page.waitForTimeout(100);
        await page.screenshot({ path: path(`${name}${suffix}-${colorScheme}-${width}.png`) });
        await page.close();
      }
    }
  }
} finally {
  await close();
}
console.log(`pictures are in ${out}`);
