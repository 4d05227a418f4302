// The map: a cell for each node. Cells are painted once per change into a picture of their own; the pointer only outlines.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { fitted, FONT, useCanvas } from "../paint/canvas.ts";
import { css, paletteOf } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { tip } from "../shell/tip.tsx";
import { colouring, numbersOf } from "./colours.ts";
import { counts, groupsOf, misread, quoted, UNKNOWN } from "./groups.ts";
import { cellAt, hit, LABEL, layOut, moved, type Hit } from "./layout.ts";
import { now, update, type State } from "./state.ts";
import type { FleetMap } from "./types.ts";
import { ago, attributeTitle, many, NUMBERS, plain, titleOf, told } from "./words.ts";

export function MapView({ map, state, problem, stale }: { map: FleetMap; state: State; problem: number; stale: boolean }) {
  const theme = useTheme(), palette = paletteOf(theme);
  const [width, setWidth] = useState(0);
  const [focused, setFocused] = useState<{ group: number; member: number } | null>(null);
  const pointed = useRef<Hit | null>(null);
  const colours = useMemo(() => colouring(map, state.colour, problem, theme), [map, state.colour, problem, theme]);
  const values = useMemo(() => numbersOf(map, state.colour), [map, state.colour]);
  const groups = useMemo(() => {
    const weight = (node: number) => (problem >= 0 && map.has[node]!.includes(problem) ? 1e15 : 0) + (state.colour === "problem" ? map.severity[node] ?? -1 : values[node] ?? -1);
    return groupsOf(map, state.by, state.find, state.worst, weight);
  }, [map, state.by, state.find, state.worst, state.colour, problem]);
  const sums = useMemo(() => counts(map, groups, problem), [map, groups, problem]);
  const sizes = useMemo(() => groups.map(group => group.members.length), [groups]);
  const silent = useMemo(() => new Set(map.silent), [map]);
  // As large as fits on the screen below what is above it.
  // With a problem open there is something below it.
  const room = Math.max(240, state.problem ? innerHeight * 0.36 : innerHeight - (innerWidth < 800 ? 420 : 330));
  const layout = useMemo(() => layOut(sizes, Math.max(40, width), room), [sizes, width, room]);
  const picture = useRef<{ key: unknown[]; canvas: HTMLCanvasElement } | null>(null);

  const paint = (context: CanvasRenderingContext2D) => {
    const { cell } = layout, gap = cell >= 12 ? 2 : cell >= 5 ? 1 : 0;
    // By colour: a change of the fill costs more than a rectangle.
    const byFill: number[][] = colours.fills.map(() => []);
    groups.forEach((group, at) => group.members.forEach((node, member) => {
      const { x, y } = cellAt(layout, at, member);
      const inset = silent.has(node) && cell >= 4 ? Math.max(1, Math.floor(cell / 4)) : 0;
      byFill[colours.of(node)]!.push(x + inset, y + inset, cell - gap - 2 * inset);
    }));
    byFill.forEach((rectangles, fill) => {
      context.fillStyle = css(colours.fills[fill]!);
      for (let at = 0; at < rectangles.length; at += 3) context.fillRect(rectangles[at]!, rectangles[at + 1]!, Math.max(1, rectangles[at + 2]!), Math.max(1, rectangles[at + 2]!));
    });
    context.textBaseline = "middle";
    layout.blocks.forEach(block => {
      const sum = sums[block.group]!;
      const some = problem >= 0 ? sum.having : sum.sick, nodes = sum.nodes.toLocaleString("en");
      const share = problem >= 0 ? `${some.toLocaleString("en")} of ${nodes}` : some ? `${some.toLocaleString("en")} sick of ${nodes}` : nodes;
      context.font = `12px ${FONT}`;
      const least = context.measureText(some.toLocaleString("en")).width + 10;
      context.font = `600 12px ${FONT}`;
      context.fillStyle = css(palette.text);
      const label = fitted(context, sum.label, Math.max(block.width / 2, block.width - least));
      context.fillText(label, block.x, block.y + LABEL / 2 - 1);
      const used = context.measureText(label).width + 8;
      context.font = `12px ${FONT}`;
      context.fillStyle = css(palette.muted);
      // As much of it as there is room for; the tip tells the rest.
      const room = block.width - used, texts = [share, `${some.toLocaleString("en")} / ${nodes}`, some.toLocaleString("en")];
      context.fillText(texts.find(text => context.measureText(text).width <= room) ?? "", block.x + used, block.y + LABEL / 2 - 1);
    });
  };

  const { ref, redraw } = useCanvas((context, wide, high) => {
    // The layout is for another width: it is drawn again at once.
    if (wide !== width) { setWidth(wide); return; }
    const key = [layout, groups, colours, silent, sums, palette, wide, high, context.getTransform().a];
    if (!picture.current || picture.current.key.some((part, at) => part !== key[at])) {
      const canvas = document.createElement("canvas");
      canvas.width = context.canvas.width;
      canvas.height = context.canvas.height;
      const own = canvas.getContext("2d", { alpha: false })!;
      own.setTransform(context.getTransform());
      own.fillStyle = css(palette.panel);
      own.fillRect(0, 0, wide, high);
      paint(own);
      picture.current = { key, canvas };
    }
    context.drawImage(picture.current.canvas, 0, 0, wide, high);
    const outline = (group: number, member: number, colour: string, wider: number) => {
      const { x, y } = cellAt(layout, group, member), size = Math.max(layout.cell - (layout.cell >= 5 ? 1 : 0), 3);
      context.strokeStyle = colour;
      context.lineWidth = 2;
      context.strokeRect(x - wider, y - wider, size + 2 * wider, size + 2 * wider);
    };
    const opened = state.node ? map.nodes.indexOf(state.node) : -1;
    if (opened >= 0) groups.forEach((group, at) => { const member = group.members.indexOf(opened); if (member >= 0) outline(at, member, css(palette.accent), 2); });
    if (focused && document.activeElement === ref.current && focused.member < (sizes[focused.group] ?? 0)) outline(focused.group, focused.member, css(palette.text), 2);
    const at = pointed.current;
    if (at?.member != null && at.member < (sizes[at.group] ?? 0)) outline(at.group, at.member, css(palette.text), 1);
  });

  useEffect(() => { pointed.current = null; tip.set(null); setFocused(null); }, [groups]);
  const nodeAt = (at: { group: number; member: number }) => groups[at.group]?.members[at.member];
  const tell = (at: Hit | null, x: number, y: number) => {
    if (!at) { tip.set(null); return; }
    if (at.member === null) { tip.set({ x, y, lines: groupLines(at.group) }); return; }
    const node = nodeAt(at as { group: number; member: number });
    if (node === undefined) { tip.set(null); return; }
    const worst = map.has[node]!.slice(0, 3).map(number => map.problems[number]!);
    tip.set({ x, y, lines: [
      plain(map.nodes[node]!) + (silent.has(node) ? " (silent)" : ""),
      ...(worst.length ? worst.map(one => `${one.severity}: ${plain(one.key)}`) : [map.severity[node] == null ? "not diagnosed" : "nothing wrong"]),
      ...(state.colour !== "problem" ? [`${titleOf(state.colour)}: ${told(state.colour, values[node])}`] : []),
      ...(state.colour !== "up" && map.up_s[node] != null ? [`up ${ago(map.up_s[node]!)}`] : []),
    ] });
  };
  const groupLines = (group: number) => {
    const sum = sums[group]!;
    return [sum.label, `${many(sum.nodes, "node")}: ${sum.sick.toLocaleString("en")} sick, ${sum.silent.toLocaleString("en")} silent`, ...(state.by ? ["click: only these"] : [])];
  };
  const open = (at: Hit | null) => {
    if (!at) return;
    if (at.member !== null) { const node = nodeAt(at as { group: number; member: number }); if (node !== undefined) update({ node: map.nodes[node]! }); return; }
    only(groups[at.group]!.label);
  };
  const only = (label: string) => { if (state.by && (label === UNKNOWN || map.attributes.find(one => one.name === state.by)?.values.includes(label))) update({ find: [now().find, quoted(state.by, label)].filter(Boolean).join(" "), by: "" }); };
  const place = (event: MouseEvent) => { const box = ref.current!.getBoundingClientRect(); return hit(layout, sizes, event.clientX - box.left, event.clientY - box.top); };
  const shown = sizes.reduce((sum, size) => sum + size, 0), sick = sums.reduce((sum, one) => sum + one.sick, 0);
  const label = `${many(shown, "node")}${state.by ? ` in ${many(groups.length, "group")} by ${attributeTitle(state.by)}` : ""}, ${sick} sick. ${sums.slice(0, 12).map(one => `${one.label}: ${problem >= 0 ? one.having : one.sick} of ${one.nodes}`).join("; ")}.`;
  return (
    <section class={`panel map ${stale ? "stale" : ""}`} aria-label="Nodes">
      <Tools map={map} state={state} />
      <div class="bar"><span class="legend">{colours.legend.map(({ text, fill }) => <span key={text}><Swatch fill={css(fill)} />{text}</span>)}{map.silent.length > 0 && <span>small: silent</span>}</span>
        {shown < map.nodes.length && <span class="about">{many(shown, "node")} of {map.nodes.length.toLocaleString("en")}</span>}</div>
      {shown === 0 && <p class="muted">{map.nodes.length ? misread(map, state.find) || "No node matches." : map.live ? "No node has reported yet." : "No node was known then."}</p>}
      <canvas ref={ref} tabIndex={0} role="img" aria-label={label} aria-describedby="keys-map" style={{ height: Math.max(40, Math.ceil(layout.height)) }} data-cell={layout.cell} data-nodes={shown}
        onPointerMove={event => { const at = place(event); pointed.current = at; ref.current!.style.cursor = at ? "pointer" : ""; tell(at, event.clientX, event.clientY); redraw(); }}
        onPointerLeave={() => { pointed.current = null; tip.set(null); redraw(); }}
        onClick={event => open(place(event))}
        onFocus={redraw} onBlur={() => { tip.set(null); redraw(); }}
        onKeyDown={event => {
          if (event.ctrlKey || event.metaKey || event.altKey) return;
          if (event.key === "Enter" && focused) open({ ...focused });
          else if (/^Arrow/.test(event.key) && shown) {
            const next = focused ? moved(layout, sizes, focused, event.key) : { group: 0, member: 0 };
            setFocused(next);
            const box = ref.current!.getBoundingClientRect(), { x, y } = cellAt(layout, next.group, next.member);
            tell(next, box.left + x, box.top + y);
          } else return;
          event.preventDefault();
          event.stopPropagation();
        }} />
      <details class="fold"><summary>Groups as a table</summary><div class="wide"><table>
        <thead><tr><th scope="col">{state.by ? attributeTitle(state.by) : "nodes"}</th><th scope="col" class="number">nodes</th><th scope="col" class="number">sick</th><th scope="col" class="number">silent</th>{problem >= 0 && <th scope="col" class="number">with this problem</th>}</tr></thead>
        <tbody>{sums.map((sum, at) => <tr key={at}><td><button class="link" onClick={() => only(groups[at]!.label)}>{sum.label}</button></td><td class="number">{sum.nodes.toLocaleString("en")}</td><td class="number">{sum.sick.toLocaleString("en")}</td><td class="number">{sum.silent.toLocaleString("en")}</td>{problem >= 0 && <td class="number">{sum.having.toLocaleString("en")}</td>}</tr>)}</tbody></table></div></details>
    </section>
  );
}

// The policy forbids style attributes in markup, not those that scripts set.
export const Swatch = ({ fill }: { fill: string }) => <i aria-hidden="true" style={{ background: fill }} />;

function Tools({ map, state }: { map: FleetMap; state: State }) {
  const groupable = map.attributes.filter(attribute => attribute.values.length > 1 || attribute.name === state.by);
  return (
    <div class="tools">
      <label>Group by <select id="by" value={state.by} onChange={event => update({ by: event.currentTarget.value })}>
        <option value="">nothing</option>{groupable.map(({ name, values }) => <option key={name} value={name}>{attributeTitle(name)} ({values.length})</option>)}
        {state.by && !groupable.some(one => one.name === state.by) && <option value={state.by}>{attributeTitle(state.by)} (unknown)</option>}</select></label>
      <label>Colour by <select id="colour" value={state.colour} onChange={event => update({ colour: event.currentTarget.value })}>
        <option value="problem">worst problem</option><option value="up">uptime</option>{Object.entries(NUMBERS).map(([name, { title }]) => <option key={name} value={name}>{title}</option>)}</select></label>
      <span class="choice" role="radiogroup" aria-label="Order within a group (s)"><button role="radio" aria-checked={!state.worst} onClick={() => update({ worst: false }, true)}>By name</button><button role="radio" aria-checked={state.worst} onClick={() => update({ worst: true }, true)}>Worst first</button></span>
      <span class="search"><input id="find" type="search" value={state.find} placeholder="name, zone=a, problem=…" aria-label="Only nodes that match: a part of the name, attribute=value, or problem=code" onInput={event => update({ find: event.currentTarget.value }, true)}
        onKeyDown={event => { if (event.key === "Escape") { update({ find: "" }, true); event.currentTarget.blur(); event.stopPropagation(); } }} /></span>
      {map.numbers_of === "hour" && state.colour !== "problem" && state.colour !== "up" && <span class="about">minutes are no longer kept: numbers of that hour</span>}
    </div>
  );
}
