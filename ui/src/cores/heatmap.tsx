// Time × core. The data is drawn once into an image of all cells; scrolling, zooming and pointing only reposition it.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { CoreGrid, CoreRow, Source } from "../api/types.ts";
import { FONT, fitted, useCanvas } from "../paint/canvas.ts";
import { css, inkOn, mix, paletteOf } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { now, update, type Range, type State } from "../state.ts";
import { clock, place, timeAt, type Axis } from "../time/axis.ts";
import { axisOf, brushing, useTimeGestures } from "../time/gestures.ts";
import { AXIS_HEIGHT, drawAxis, drawPointer, drawSelection } from "../time/paint.ts";
import { tip } from "../shell/tip.tsx";
import { coreList, coresIn, highest, mean, ownerColours, ownerName, ownerOver, paintRow, rowsOf, runs, summary } from "./rows.ts";

const AVERAGE_HEIGHT = 20, FOLDED_HEIGHT = 22, GAP = 1;

const rowHeight = (count: number, compact: boolean): number => compact ? 22 : count <= 4 ? 46 : count <= 10 ? 30 : count <= 40 ? 20 : 14;

interface Props { grid: CoreGrid; source: Source; state: State; range: Range; whole: Range; compact?: boolean; most?: number }

export function CoresHeatmap({ grid, source, state, range, whole, compact = false, most }: Props) {
  const theme = useTheme(), palette = paletteOf(theme);
  const asked = useMemo(() => coresIn(state.filters.core), [state.filters.core]);
  const rows = useMemo(() => rowsOf(grid, state.all && !compact, asked, most), [grid, state.all, asked, most, compact]);
  const height = rowHeight(rows.shown.length, compact), bars = height >= 20 ? Math.min(height - GAP, 40) : 1;
  const owners = useMemo(() => ownerColours(grid, theme), [grid, theme]);
  const image = useMemo(() => {
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, grid.columns);
    canvas.height = Math.max(1, rows.shown.length * bars);
    const context = canvas.getContext("2d")!;
    const cells = context.createImageData(canvas.width, canvas.height);
    const colours = new Map();
    rows.shown.forEach((row, at) => paintRow(cells.data, canvas.width, at * bars, bars, row, grid, state.coresBy, palette, owners, colours));
    context.putImageData(cells, 0, 0);
    return canvas;
  }, [grid, rows, bars, state.coresBy, theme]);
  const quiet = useMemo(() => rows.folded.length ? Array.from({ length: grid.columns }, (_, column) => highest(rows.folded.map(row => row.busy[column] ?? null))) : [], [grid, rows]);

  const top = AXIS_HEIGHT + AVERAGE_HEIGHT + 4;
  const inside = rows.shown.length * height + (rows.folded.length ? FOLDED_HEIGHT : 0);
  const outer = useRef<HTMLDivElement>(null);
  const [scroll, setScroll] = useState(0);
  const room = Math.min(inside, compact ? 2000 : 460);
  const visible = top + room;

  const rowAt = (y: number): CoreRow | "folded" | null => {
    if (y < top) return null;
    const at = Math.floor((y - top + scroll) / height);
    return at < rows.shown.length ? rows.shown[at]! : rows.folded.length && y - top + scroll < inside ? "folded" : null;
  };

  const { ref, redraw } = useCanvas((context, width, canvasHeight) => {
    const axis = axisOf(width, range);
    context.fillStyle = css(palette.panel);
    context.fillRect(0, 0, width, canvasHeight);
    context.imageSmoothingEnabled = false;
    const right = axis.left + axis.width;
    context.save();
    context.beginPath();
    context.rect(0, top, width, room);
    context.clip();
    const [x0, x1] = [place(axis, grid.from), place(axis, grid.to)];
    const first = Math.max(0, Math.floor(scroll / height)), last = Math.min(rows.shown.length, Math.ceil((scroll + room) / height));
    context.save();
    context.beginPath();
    context.rect(axis.left, top, axis.width, room);
    context.clip();
    for (let at = first; at < last; at++) {
      const y = top + at * height - scroll;
      context.drawImage(image, 0, at * bars, image.width, bars, x0, y, x1 - x0, height - GAP);
      if (state.coresBy === "owner" && height >= 14) nameRuns(context, rows.shown[at]!, axis, y);
    }
    if (rows.folded.length) {
      const y = top + rows.shown.length * height - scroll + 4;
      quiet.forEach((busy, column) => {
        context.fillStyle = css(busy === null ? palette.unseen : mix(palette.empty, palette.user, (busy / 100) ** 1.4));
        const [a, b] = [x0 + column / grid.columns * (x1 - x0), x0 + (column + 1) / grid.columns * (x1 - x0)];
        if (b >= axis.left && a <= right) context.fillRect(Math.floor(a), y, Math.ceil(b) - Math.floor(a), FOLDED_HEIGHT - 8);
      });
    }
    context.restore();
    for (let at = first; at < last; at++) label(context, rows.shown[at]!, top + at * height - scroll, axis.left);
    if (rows.folded.length) {
      context.font = `11px ${FONT}`;
      context.textBaseline = "middle";
      context.fillStyle = css(palette.accent);
      context.fillText(fitted(context, `▸ ${rows.folded.length} quiet cores, at most ${Math.round(highest(quiet) ?? 0)} %`, axis.left - 16), 8, top + rows.shown.length * height - scroll + FOLDED_HEIGHT / 2);
    }
    context.restore();
    average(context, axis, x0, x1);
    drawAxis(context, axis, source.start_time, palette);
    drawSelection(context, axis, state.selection, palette, AXIS_HEIGHT, canvasHeight, state.base === "rest" ? null : state.base);
    boxes(context, axis);
    drawPointer(context, axis, palette, AXIS_HEIGHT, canvasHeight);
    if (inside > room) {
      context.fillStyle = css(palette.empty);
      context.fillRect(right + 4, top, 6, room);
      context.fillStyle = css(palette.other);
      context.fillRect(right + 4, top + scroll / inside * room, 6, room / inside * room);
    }
  });

  function label(context: CanvasRenderingContext2D, row: CoreRow, y: number, left: number) {
    const middle = y + (height - GAP) / 2, tall = height >= 30 && row.serves.length > 0;
    const busy = mean(row.busy), full = (busy ?? 0) >= 90;
    context.textBaseline = "middle";
    context.font = `${full ? 600 : 400} ${height >= 18 ? 12.5 : 10.5}px ${FONT}`;
    context.fillStyle = css(asked.has(row.core) ? palette.accent : palette.text);
    const name = `core ${row.core}`;
    const line = tall ? middle - 7 : middle;
    context.fillText(name, 8, line);
    if (row.serves.length && !tall) {
      context.fillStyle = css(palette.irq);
      context.fillText("⇄", 12 + context.measureText(name).width, line);
    }
    context.textAlign = "right";
    context.fillStyle = css(full ? palette.system : palette.muted);
    context.fillText(busy === null ? "not seen" : `${Math.round(busy)} %`, left - 10, line);
    context.textAlign = "left";
    if (tall) {
      context.font = `11px ${FONT}`;
      context.fillStyle = css(palette.irq);
      context.fillText("⇄", 8, middle + 8);
      context.fillStyle = css(palette.muted);
      context.fillText(fitted(context, row.serves.join(", "), left - 34), 22, middle + 8);
    }
  }

  // The average, for contrast: it is what other tools show.
  function average(context: CanvasRenderingContext2D, axis: Axis, x0: number, x1: number) {
    const y = AXIS_HEIGHT + 2, h = AVERAGE_HEIGHT - 2;
    context.font = `11px ${FONT}`;
    context.textBaseline = "middle";
    context.fillStyle = css(palette.muted);
    context.fillText("average", 8, y + h / 2);
    context.textAlign = "right";
    const all = mean(grid.average);
    context.fillText(all === null ? "not seen" : `${Math.round(all)} %`, axis.left - 10, y + h / 2);
    context.textAlign = "left";
    context.fillStyle = css(palette.empty);
    context.fillRect(axis.left, y, axis.width, h);
    context.fillStyle = css(palette.other);
    const each = (x1 - x0) / Math.max(1, grid.average.length);
    context.save();
    context.beginPath();
    context.rect(axis.left, y, axis.width, h);
    context.clip();
    grid.average.forEach((busy, column) => {
      if (busy === null) return;
      const a = Math.floor(x0 + column * each);
      context.fillRect(a, y + h - busy / 100 * h, Math.ceil(x0 + (column + 1) * each) - a, busy / 100 * h);
    });
    context.restore();
  }

  function nameRuns(context: CanvasRenderingContext2D, row: CoreRow, axis: Axis, y: number) {
    context.font = `${height >= 20 ? 11 : 9.5}px ${FONT}`;
    context.textBaseline = "middle";
    const each = (grid.to - grid.from) / grid.columns;
    for (const run of runs(row)) {
      const a = Math.max(axis.left, place(axis, grid.from + run.from * each)), b = Math.min(axis.left + axis.width, place(axis, grid.from + run.to * each));
      if (b - a < 48) continue;
      const text = fitted(context, grid.owners[run.owner]!.comm, b - a - 10);
      if (!text) continue;
      context.fillStyle = css(inkOn(owners[run.owner]!));
      context.fillText(text, a + 5, bars > 1 ? y + height - 10 : y + height / 2);
    }
  }

  // Outlines the cores being brushed.
  function boxes(context: CanvasRenderingContext2D, axis: Axis) {
    const live = brushing.get();
    const cores = live ? live.cores ? coresIn(live.cores) : null : state.selection && asked.size ? asked : null;
    const span = live?.range ?? state.selection;
    if (!cores || !span) return;
    context.strokeStyle = css(palette.accent);
    context.lineWidth = 2;
    rows.shown.forEach((row, at) => {
      const y = top + at * height - scroll;
      if (!cores.has(row.core) || y + height < top || y > top + room) return;
      const [a, b] = [Math.max(axis.left, place(axis, span.from)), Math.min(axis.left + axis.width, place(axis, span.to))];
      if (b > a) context.strokeRect(a, y, b - a, height - GAP);
    });
    context.lineWidth = 1;
  }

  useTimeGestures(ref, {
    whole, range,
    coresBetween(a, b) {
      if (b < top) return null;
      const [from, to] = [Math.floor((Math.max(a, top) - top + scroll) / height), Math.floor((b - top + scroll) / height)];
      const hit = rows.shown.slice(from, to + 1);
      return hit.length && hit.length < grid.cores.length ? coreList(hit.map(row => row.core)) : null;
    },
    onPoint(x, y, event) {
      const axis = axisOf(ref.current!.clientWidth, range);
      const row = rowAt(y);
      if (!row) { tip.set(null); return; }
      if (row === "folded") { tip.set({ x: event.clientX, y: event.clientY, lines: [`${rows.folded.length} quiet cores`, "never 60 % busy, below 25 % on average", "click to show them"] }); return; }
      if (x < axis.left) {
        const held = ownerOver(row);
        tip.set({ x: event.clientX, y: event.clientY, lines: [`core ${row.core}: ${told(mean(row.busy))} busy on average, ${told(highest(row.busy))} at most`,
          ...(held ? [`${Math.round(held.share * 100)} % of that by ${ownerName(grid.owners[held.owner])}`] : []), ...row.serves.map(name => `serves ${name}`), "click to filter by this core"] });
        return;
      }
      const at = timeAt(axis, x), column = Math.floor((at - grid.from) / (grid.to - grid.from) * grid.columns);
      if (column < 0 || column >= grid.columns) { tip.set(null); return; }
      const busy = row.busy[column] ?? null, owner = row.owner[column] ?? -1;
      tip.set({ x: event.clientX, y: event.clientY, lines: [
        `core ${row.core} · ${clock(at, source.start_time, grid.step_ns)}`,
        busy === null ? "not seen" : `${told(busy)} busy: user ${told(row.user[column])}, kernel ${told(row.system[column])}, interrupts ${told(row.irq[column])}, steal ${told(row.steal[column])}`,
        ...(owner >= 0 && busy ? [`${ownerName(grid.owners[owner])} had ${told(row.owner_share[column])} of that${grid.owners[owner]!.unit ? ` · ${grid.owners[owner]!.unit}` : ""}`] : []),
        ...row.serves.map(name => `serves ${name}`)] });
    },
    onLeave: () => tip.set(null),
    onClick(x, y) {
      const row = rowAt(y);
      if (row === "folded") update({ all: true });
      else if (row && x < axisOf(ref.current!.clientWidth, range).left) {
        const { core, ...others } = now().filters;
        update({ filters: core === String(row.core) ? others : { ...others, core: String(row.core) } });
      } else if (now().selection) update({ selection: null, band: null });
    },
  }, redraw);

  useEffect(() => { const box = outer.current; if (box && box.scrollTop > inside) box.scrollTop = 0; }, [inside]);
  const canScroll = inside > room;
  return (
    <div class="cores" ref={outer} style={{ height: visible, overflowY: canScroll ? "auto" : "hidden" }} onScroll={event => setScroll(event.currentTarget.scrollTop)}>
      <div style={{ height: top + inside }}>
        <canvas ref={ref} class="pinned" tabIndex={0} role="img" aria-label={summary(grid, rows)} aria-describedby="keys-time" data-rows={rows.shown.map(row => row.core).join(",")}
          data-row-top={top} data-row-height={height} style={{ height: visible }} />
      </div>
    </div>
  );
}

const told = (value: number | null | undefined): string => value === null || value === undefined ? "?" : `${Math.round(value)} %`;
