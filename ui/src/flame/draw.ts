// Draws the visible part of a flame graph. Work follows the pixels, not the frames: frames narrower than a pixel are skipped.
import { changeFill, css, frameFill, inkOn, mix, ownerColour, ownerKey, placeFill, type Palette, type Rgb, type Theme } from "../paint/colour.ts";
import { MONO } from "../paint/canvas.ts";
import { firstBeyond, type Matches, type Tree } from "./tree.ts";

export const ROW = 19;
const SMALLEST = 2.5, NAMED = 26;

export interface Sight { from: number; to: number; scroll: number }

// Commands have the same colour as in the cores view.
export const commandFill = (name: string, theme: Theme): Rgb => ownerColour(ownerKey(name), theme);

// Fill and text colours by name and place, cached per graph.
export class Paints {
  private readonly made = new Map<number, { fill: string; ink: string; dim: string; dimInk: string }>();
  constructor(private readonly tree: Tree, private readonly by: "place" | "language", private readonly theme: Theme, private readonly palette: Palette) {}

  of(frame: number): { fill: string; ink: string; dim: string; dimInk: string } {
    const { tree } = this;
    const key = tree.now ? -1 - frame : tree.name[frame]! * 4 + tree.place[frame]!;
    let paint = this.made.get(key);
    if (!paint) {
      const colour = this.colour(frame), dim = mix(colour, this.palette.panel, 0.62);
      paint = { fill: css(colour), ink: css(inkOn(colour)), dim: css(dim), dimInk: css(this.palette.muted) };
      this.made.set(key, paint);
    }
    return paint;
  }

  // Frames too narrow for a box differ only by place, so that neighbours can be drawn together.
  crowd(frame: number, matches: Matches | null, hit: string): string {
    if (matches?.hit[frame]) return hit;
    if (this.tree.now) return this.of(frame).dim;
    const key = this.tree.place[frame]! + (matches ? 4 : 0);
    return this.crowds[key] ??= css(mix(placeFill(this.tree.place[frame]!, this.theme), this.palette.panel, matches ? 0.62 : 0.4));
  }
  private readonly crowds: string[] = [];

  private colour(frame: number): Rgb {
    const { tree, theme } = this, name = tree.names[tree.name[frame]!] ?? "?";
    if (tree.now) return changeFill(tree.now[frame]!, tree.baseline![frame]!, theme);
    if (tree.place[frame] === 0 && frame !== 0) return commandFill(name, theme);
    return frameFill(name, tree.place[frame]!, this.by, theme);
  }
}

let glyph = 0;
export const forgetFont = (): void => { glyph = 0; };

export function drawFlame(context: CanvasRenderingContext2D, width: number, height: number, tree: Tree, sight: Sight, paints: Paints, palette: Palette, matches: Matches | null, marked: number, zoom: number): void {
  context.fillStyle = css(palette.panel);
  context.fillRect(0, 0, width, height);
  context.font = `11.5px ${MONO}`;
  context.textBaseline = "middle";
  glyph ||= context.measureText("mmmmmmmmmm").width / 10;
  const scale = width / (sight.to - sight.from);
  const first = Math.max(0, Math.floor(sight.scroll / ROW)), last = Math.min(tree.levels.length, Math.ceil((sight.scroll + height) / ROW));
  const zoomDepth = tree.depth[zoom] ?? 0;
  const hit = css(palette.hit), hitInk = css(inkOn(palette.hit));
  for (let depth = first; depth < last; depth++) {
    const level = tree.levels[depth]!, y = depth * ROW - sight.scroll;
    let at = firstBeyond(tree, level, sight.from);
    while (at < level.length) {
      const frame = level[at]!, left = tree.left[frame]!;
      if (left >= sight.to) break;
      const x = (left - sight.from) * scale, wide = tree.total[frame]! * scale;
      if (wide < SMALLEST) {
        // Narrow frames: one bar for adjacent ones that look alike.
        const begin = Math.floor(x);
        const crowd = paints.crowd(frame, matches, hit), first = at;
        let end = begin;
        while (at < level.length) {
          const each = level[at]!, pixel = Math.floor((tree.left[each]! - sight.from) * scale);
          if (pixel > end || pixel >= width || tree.total[each]! * scale >= SMALLEST || paints.crowd(each, matches, hit) !== crowd) break;
          end = Math.max(pixel + 1, Math.floor((tree.left[each]! + tree.total[each]! - sight.from) * scale));
          const next = firstBeyond(tree, level, sight.from + end / scale);
          at = next > at ? next : at + 1;
        }
        // Rounding may put the last one a pixel too far.
        if (at === first) at++;
        context.fillStyle = crowd;
        context.fillRect(begin, y, Math.max(1, end - begin), ROW - 1);
        continue;
      }
      const a = Math.max(0, x), b = Math.min(width, x + wide);
      const paint = paints.of(frame), found = matches !== null && matches.hit[frame] === 1;
      const dimmed = (matches !== null && !found) || depth < zoomDepth;
      context.fillStyle = found ? hit : dimmed ? paint.dim : paint.fill;
      context.fillRect(a, y, Math.max(0.5, b - a - (wide > 3 ? 1 : 0.2)), ROW - 1);
      if (b - a > NAMED) {
        const name = tree.names[tree.name[frame]!] ?? "?", room = Math.floor((b - a - 8) / glyph);
        if (room > 1) {
          context.fillStyle = found ? hitInk : dimmed ? paint.dimInk : paint.ink;
          context.fillText(name.length <= room ? name : name.slice(0, room - 1) + "…", a + 4, y + ROW / 2);
        }
      }
      if (frame === marked) {
        context.strokeStyle = css(palette.text);
        context.lineWidth = 2;
        context.strokeRect(a + 1, y + 1, Math.max(1, b - a - 3), ROW - 3);
        context.lineWidth = 1;
      }
      at++;
    }
  }
}
