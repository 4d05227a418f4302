// The interactive flame graph: zoom, pan, hover, search; also by keyboard.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { useCanvas } from "../paint/canvas.ts";
import { paletteOf } from "../paint/colour.ts";
import { calm, useTheme } from "../paint/theme.ts";
import { tip } from "../shell/tip.tsx";
import { update, type State } from "../state.ts";
import { told } from "../timeline/lanes.ts";
import { drawFlame, Paints, ROW, type Sight } from "./draw.ts";
import { frameAt, nameOf, pathOf, percent, points, type Matches, type Tree } from "./tree.ts";

const PLACES = ["command", "user", "kernel", "generated code"];
const GLIDE_MS = 140;

interface Props { tree: Tree; unit: string; matches: Matches | null; state: State; label: string }

export function FlameGraph({ tree, unit, matches, state, label }: Props) {
  const theme = useTheme(), palette = paletteOf(theme);
  const paints = useMemo(() => new Paints(tree, state.flameBy, theme, palette), [tree, state.flameBy, theme]);
  const whole = tree.total[0] || 1;
  const zoom = state.zoom < tree.count && tree.total[state.zoom]! > 0 ? state.zoom : 0;
  const sight = useRef<Sight>({ from: 0, to: whole, scroll: 0 });
  const glide = useRef(0);
  const [marked, setMarked] = useState(-1);
  const height = Math.min(Math.max(tree.levels.length * ROW + 6, 200), Math.max(320, Math.round(innerHeight * 0.62)));

  const { ref, redraw } = useCanvas((context, width, h) => drawFlame(context, width, h, tree, sight.current, paints, palette, matches, marked, zoom));
  const deepest = () => Math.max(0, tree.levels.length * ROW + 6 - (ref.current?.clientHeight ?? height));
  const look = (to: Sight) => {
    const length = Math.min(Math.max(to.to - to.from, whole * 1e-7), whole), from = Math.min(Math.max(to.from, 0), whole - length);
    sight.current = { from, to: from + length, scroll: Math.min(Math.max(to.scroll, 0), deepest()) };
    redraw();
  };
  const glideTo = (target: Sight) => {
    cancelAnimationFrame(glide.current);
    const begin = { ...sight.current }, began = performance.now();
    if (calm()) { look(target); return; }
    const step = (time: number) => {
      const part = Math.min(1, Math.max(0, (time - began) / GLIDE_MS)), ease = 1 - (1 - part) ** 3;
      const between = (a: number, b: number) => a + (b - a) * ease;
      look({ from: between(begin.from, target.from), to: between(begin.to, target.to), scroll: between(begin.scroll, target.scroll) });
      if (part < 1) glide.current = requestAnimationFrame(step);
    };
    glide.current = requestAnimationFrame(step);
  };
  const sightOf = (frame: number): Sight => {
    const depth = tree.depth[frame]!, above = Math.max(0, depth - 3) * ROW;
    const now = sight.current.scroll, seen = depth * ROW >= now && (depth + 2) * ROW <= now + (ref.current?.clientHeight ?? height);
    return { from: tree.left[frame]!, to: tree.left[frame]! + tree.total[frame]!, scroll: seen ? now : above };
  };

  // Jump to a new graph; glide within the same graph, so that the eye can follow.
  const known = useRef<Tree | null>(null);
  useEffect(() => {
    if (known.current === tree) glideTo(sightOf(zoom));
    else { known.current = tree; setMarked(-1); look(sightOf(zoom)); }
  }, [tree, zoom]);
  useEffect(() => () => cancelAnimationFrame(glide.current), []);

  const told = (frame: number): string[] => describe(tree, frame, unit, whole);
  const drag = useRef<{ x: number; y: number; sight: Sight; moved: boolean } | null>(null);
  const frameOf = (event: { clientX: number; clientY: number }): number => {
    const box = ref.current!.getBoundingClientRect(), { from, to, scroll } = sight.current;
    return frameAt(tree, Math.floor((event.clientY - box.top + scroll) / ROW), from + (event.clientX - box.left) / box.width * (to - from));
  };
  useEffect(() => {
    const canvas = ref.current!;
    const wheel = (event: WheelEvent) => {
      const box = canvas.getBoundingClientRect(), { from, to, scroll } = sight.current, length = to - from;
      if (event.ctrlKey || event.metaKey || event.altKey) {
        event.preventDefault();
        cancelAnimationFrame(glide.current);
        const at = from + (event.clientX - box.left) / box.width * length, factor = Math.exp(Math.max(-120, Math.min(120, event.deltaY)) / 220);
        look({ from: at - (at - from) * factor, to: at + (to - at) * factor, scroll });
      } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        const by = (event.shiftKey && !event.deltaX ? event.deltaY : event.deltaX) / box.width * length;
        look({ from: from + by, to: to + by, scroll });
      } else if (deepest() > 0) {
        const before = sight.current.scroll;
        look({ from, to, scroll: scroll + event.deltaY });
        // At the end of the graph the page scrolls.
        if (sight.current.scroll !== before) event.preventDefault();
      }
    };
    canvas.addEventListener("wheel", wheel, { passive: false });
    return () => canvas.removeEventListener("wheel", wheel);
  }, [tree]);

  function key(event: KeyboardEvent) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const frame = marked >= 0 ? marked : zoom, level = tree.levels[tree.depth[frame]!]!, at = level.indexOf(frame);
    const children = (tree.levels[tree.depth[frame]! + 1] ?? new Int32Array(0)).filter(child => tree.parent[child] === frame);
    const { from, to, scroll } = sight.current, length = to - from;
    let next = -1;
    switch (event.key) {
      case "ArrowDown": next = marked < 0 ? zoom : children[0] ?? -1; break;
      case "ArrowUp": next = frame > 0 ? tree.parent[frame]! : -1; break;
      case "ArrowRight": next = level[at + 1] ?? -1; break;
      case "ArrowLeft": next = at > 0 ? level[at - 1]! : -1; break;
      case "Enter": update({ zoom: frame }); break;
      case "Backspace": update({ zoom: Math.max(0, tree.parent[zoom]!) }); break;
      case "w": look({ from: from + length * 0.1, to: to - length * 0.1, scroll }); break;
      case "s": look({ from: from - length * 0.125, to: to + length * 0.125, scroll }); break;
      case "a": look({ from: from - length * 0.15, to: to - length * 0.15, scroll }); break;
      case "d": look({ from: from + length * 0.15, to: to + length * 0.15, scroll }); break;
      default: return;
    }
    event.preventDefault();
    event.stopPropagation();
    if (next < 0) return;
    setMarked(next);
    const y = tree.depth[next]! * ROW;
    const h = ref.current!.clientHeight;
    if (y < scroll || y + ROW > scroll + h) look({ from, to, scroll: y - h / 2 });
    const [a, b] = [tree.left[next]!, tree.left[next]! + tree.total[next]!];
    if (b < sight.current.from || a > sight.current.to) look({ from: a - length / 2, to: a + length / 2, scroll: sight.current.scroll });
  }

  return (
    <div class="flame">
      <canvas ref={ref} tabIndex={0} role="img" aria-label={label} aria-describedby="keys-flame" style={{ height }} data-frames={tree.count} data-zoom={nameOf(tree, zoom)}
        onPointerDown={event => { if (event.button === 0) { drag.current = { x: event.clientX, y: event.clientY, sight: { ...sight.current }, moved: false }; event.currentTarget.setPointerCapture(event.pointerId); } }}
        onPointerMove={event => {
          const hold = drag.current;
          if (hold) {
            const [x, y] = [event.clientX - hold.x, event.clientY - hold.y];
            if (!hold.moved && Math.hypot(x, y) < 4) return;
            hold.moved = true;
            tip.set(null);
            const by = x / ref.current!.clientWidth * (hold.sight.to - hold.sight.from);
            look({ from: hold.sight.from - by, to: hold.sight.to - by, scroll: hold.sight.scroll - y });
            return;
          }
          const frame = frameOf(event);
          if (frame !== marked) setMarked(frame);
          tip.set(frame < 0 ? null : { x: event.clientX, y: event.clientY, lines: told(frame) });
        }}
        onPointerUp={event => {
          const hold = drag.current;
          drag.current = null;
          if (!hold || hold.moved) return;
          const frame = frameOf(event);
          if (frame >= 0) { if (frame === zoom) glideTo(sightOf(zoom)); update({ zoom: frame }); }
        }}
        onPointerLeave={() => { tip.set(null); setMarked(-1); }}
        onKeyDown={key} />
      <p class="said" aria-live="polite">{marked >= 0 ? [...told(marked)].join(" · ") : zoom > 0 ? <>Zoomed into <b>{nameOf(tree, zoom)}</b>, {percent(tree.total[zoom]! / whole)} of all · <button class="link" onClick={() => update({ zoom: 0 })}>show all</button></> : " "}</p>
    </div>
  );
}

function describe(tree: Tree, frame: number, unit: string, whole: number): string[] {
  const share = tree.total[frame]! / whole, own = tree.own[frame]! / whole;
  const lines = [nameOf(tree, frame)];
  if (tree.now) lines.push(`${percent(tree.baseline![frame]!)} → ${percent(tree.now[frame]!)} (${points(tree.now[frame]! - tree.baseline![frame]!)})`);
  else lines.push(`${percent(share)} of this selection${unit === "ns" ? `, ${told(tree.total[frame]!, "ns")}` : `, ${told(tree.total[frame]!, "")} samples`}`);
  if (frame > 0) lines.push(`${percent(own)} own · ${PLACES[tree.place[frame]!] ?? "?"}${tree.depth[frame]! > 1 ? ` · ${pathOf(tree, frame)[0]}` : ""}`);
  return lines;
}
