// The FlameScope view with two ways to select: a time range, or the same part of each second.
import { useMemo, useRef, useState } from "preact/hooks";
import type { OffsetHeatmap, Source } from "../api/types.ts";
import { FONT, useCanvas } from "../paint/canvas.ts";
import { css, paletteOf, ramp } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { tip } from "../shell/tip.tsx";
import { now, update, type Range, type State } from "../state.ts";
import { clock, duration, MS, SECOND } from "../time/axis.ts";
import { gutter } from "../time/gestures.ts";
import { bandOf, busiest, isSelected, rangeOf, timeOf, type Spot } from "./cells.ts";

const AXIS = 20, HEIGHT = 200, WIDEST = 96;

interface Props { map: OffsetHeatmap; source: Source; state: State; whole: Range }

export function ScopeView({ map, source, state, whole }: Props) {
  const theme = useTheme(), palette = paletteOf(theme);
  const [bands, setBands] = useState(state.band !== null);
  const [drag, setDrag] = useState<{ from: Spot; to: Spot } | null>(null);
  const began = useRef<Spot | null>(null);
  const columns = map.columns.length;
  const picked = useMemo(() => drag ? (bands ? bandOf(map, drag.from, drag.to, whole) : { range: rangeOf(map, drag.from, drag.to, whole), band: null }) : null, [drag, bands, map]);
  const selection = picked ? picked.range : state.selection, band = picked ? picked.band : state.band;
  const image = useMemo(() => {
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, columns);
    canvas.height = map.rows;
    const context = canvas.getContext("2d")!, cells = context.createImageData(canvas.width, canvas.height);
    map.columns.forEach((rows, column) => rows.forEach((samples, row) => {
      const inside = (!selection && !band) || isSelected(map, { column, row }, selection, band);
      let colour = ramp(palette.ramp, samples === 0 ? 0 : 0.08 + 0.92 * samples / Math.max(1, map.largest));
      if (!inside) { const grey = colour.reduce((sum, value) => sum + value, 0) / 3; colour = colour.map((value, at) => value * 0.12 + grey * 0.18 + palette.empty[at]! * 0.7) as unknown as typeof colour; }
      const at = ((map.rows - 1 - row) * canvas.width + column) * 4;
      cells.data.set([colour[0], colour[1], colour[2], 255], at);
    }));
    context.putImageData(cells, 0, 0);
    return canvas;
  }, [map, theme, selection?.from, selection?.to, band?.from, band?.to]);

  const layout = (width: number) => ({ left: gutter(width), each: Math.min(WIDEST, (width - gutter(width) - 12) / Math.max(1, columns)) });
  const { ref } = useCanvas((context, width, height) => {
    const { left, each } = layout(width), h = height - AXIS;
    context.fillStyle = css(palette.panel);
    context.fillRect(0, 0, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(image, left, 0, each * columns, h);
    context.font = `11px ${FONT}`;
    context.fillStyle = css(palette.muted);
    context.textAlign = "right";
    for (const [share, text] of [[0, "0 ms"], [0.25, "250"], [0.5, "500"], [0.75, "750"], [1, "1 s"]] as const) {
      context.textBaseline = share === 1 ? "top" : share === 0 ? "bottom" : "middle";
      context.fillText(text, left - 10, h - share * h);
    }
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillText("within its second", 8, h / 2 - 22);
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900].find(step => step * each >= 80) ?? 1800;
    for (let column = 0; column < columns; column += step) {
      context.fillStyle = css(palette.line);
      context.fillRect(left + column * each, h, 1, 5);
      context.fillStyle = css(palette.muted);
      context.fillText(clock(map.axis_ns + column * SECOND, source.start_time, SECOND), left + column * each + 3, h + AXIS / 2 + 2);
    }
  });
  const spotOf = (event: PointerEvent): Spot => {
    const box = ref.current!.getBoundingClientRect(), { left, each } = layout(box.width), h = box.height - AXIS;
    const clamp = (value: number, most: number) => Math.min(Math.max(Math.floor(value), 0), most - 1);
    return { column: clamp((event.clientX - box.left - left) / each, columns), row: clamp((1 - (event.clientY - box.top) / h) * map.rows, map.rows) };
  };
  const most = busiest(map);
  return (
    <div class="scope">
      <div class="tools">
        <span class="choice" role="radiogroup" aria-label="Drag to select">
          <button role="radio" aria-checked={!bands} onClick={() => setBands(false)} title="A time range">Range</button>
          <button role="radio" aria-checked={bands} onClick={() => setBands(true)} title="The same part of each second (or hold Alt)">Band</button>
        </span>
        <span class="note">{bands ? "Drag to select the same part of several seconds." : "Drag to select a time range; time runs up and to the right."} Each cell is {duration(SECOND / map.rows)}.</span>
        <span class="legend">fewer samples {[0, 0.2, 0.4, 0.6, 0.8, 1].map(share => <i key={share} style={{ background: css(ramp(palette.ramp, share)) }} />)} more (at most {map.largest})</span>
      </div>
      <canvas ref={ref} tabIndex={0} role="img" style={{ height: HEIGHT + AXIS }} aria-describedby="keys-time" data-columns={columns} data-scope-rows={map.rows}
        aria-label={`Samples by second and part of the second, ${columns} seconds.${most ? ` Most, ${most.samples}, at ${clock(timeOf(map, most.spot), source.start_time, MS)}.` : ""}`}
        onPointerDown={event => { if (event.button !== 0) return; event.currentTarget.setPointerCapture(event.pointerId); if (event.altKey) setBands(true); began.current = spotOf(event); }}
        onPointerMove={event => {
          const spot = spotOf(event), samples = map.columns[spot.column]?.[spot.row] ?? 0;
          tip.set({ x: event.clientX, y: event.clientY, lines: [clock(timeOf(map, spot), source.start_time, SECOND / map.rows), `${samples} samples within ${duration(SECOND / map.rows)}`] });
          if (began.current) setDrag({ from: began.current, to: spot });
        }}
        onPointerLeave={() => tip.set(null)}
        onPointerUp={event => {
          if (!began.current) return;
          const moved = drag !== null, spot = spotOf(event), from = began.current;
          began.current = null;
          setDrag(null);
          if (!moved && (now().selection || now().band)) { update({ selection: null, band: null }); return; }
          const result = bands ? bandOf(map, from, spot, whole) : { range: rangeOf(map, from, spot, whole), band: null };
          update({ selection: result.range, band: result.band });
        }} />
    </div>
  );
}
