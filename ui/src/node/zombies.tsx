// Dead memory cgroups: how many, how they grow, who created them, what keeps them.
import { useState } from "preact/hooks";
import { address, useApi } from "../api/fetch.ts";
import type { Source, ZombieGroup, Zombies } from "../api/types.ts";
import { FONT, useCanvas } from "../paint/canvas.ts";
import { css, mix, paletteOf } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { grownBy } from "./growth.ts";
import { bytes, count, Failure, NotSeen, rate, Waiting, when, Words } from "../shell/parts.tsx";
import type { Range } from "../state.ts";
import { duration, place } from "../time/axis.ts";
import { axisOf } from "../time/gestures.ts";
import { AXIS_HEIGHT, drawAxis } from "../time/paint.ts";

const FROM: Record<string, string> = { births: "created in the last hour", watched: "while watching", "since-boot": "on average since boot" };

export function ZombiesView({ source, whole, generation }: { source: Source; whole: Range; generation: number }) {
  const { data, error } = useApi<Zombies>(address("zombies"), 0, generation);
  if (error) return <section class="panel"><Failure error={error} /></section>;
  if (!data) return <section class="panel"><Waiting what="Reading dead cgroups" tall /></section>;
  const grown = data.growth ? grownBy(data.growth) : null;
  return (
    <>
      <section class="panel" aria-label="Dead memory cgroups">
        <header class="bar"><h2>Dead memory cgroups</h2><span class="about">method: {data.method} · {when(data.at)}</span></header>
        <ul class="numbers">
          <li><b>{count(data.dead)}</b><span>dead</span></li><li><b>{count(data.live)}</b><span>live</span></li><li><b>{data.bytes ? bytes(data.bytes.total) : "?"}</b><span>held by dead cgroups</span></li>
          {grown && <li><b>{count(grown.more)}</b><span>more after {duration(Math.round(grown.ns / 1e9) * 1e9)} of watching</span></li>}
          {data.per_hour_from === "births" ? <li><b>{count(data.per_hour)}</b><span>of them were created within the last hour</span></li>
            : !grown && <li><b>{rate(data.per_hour)}</b><span>more{data.per_hour_from ? `, ${FROM[data.per_hour_from] ?? data.per_hour_from}` : ""}</span></li>}
          {data.churn && <li><b>{count(data.churn.born)}</b><span>created while watching, {count(data.churn.removed)} removed, {count(data.churn.freed)} freed</span></li>}
        </ul>
        {data.growth && data.growth.at.length > 1 && <Growth growth={data.growth} source={source} whole={whole} />}
        {data.cost && data.cost.lines.length > 0 && <><h3>Their cost on this node</h3><ul class="plain">{data.cost.lines.map((line, at) => <li key={at}>{line.text}{!line.measured && <span class="muted"> (not measured{line.how_to_measure ? <>: <Words text={line.how_to_measure} /></> : ""})</span>}</li>)}</ul></>}
        <NotSeen of={data.unseen} />
      </section>
      <section class="panel" aria-label="Groups">
        <header class="bar"><h2>Groups</h2><span class="about">largest first</span></header>
        {data.groups.length === 0 ? <p class="muted">None.</p> : <ul class="plain groups">{data.groups.slice(0, 200).map((group, at) => <li key={at}><Group group={group} most={data.groups[0]?.dead ?? 1} first={at === 0} /></li>)}</ul>}
      </section>
      {data.makers.length > 0 && <section class="panel" aria-label="What creates and removes cgroups"><header class="bar"><h2>What creates and removes cgroups</h2></header>
        <table><thead><tr><th scope="col">process</th><th scope="col">via</th><th scope="col">parent, pattern</th><th scope="col" class="number">created</th><th scope="col" class="number">removed</th><th scope="col" class="number">per minute</th><th scope="col">unit</th></tr></thead>
          <tbody>{data.makers.slice(0, 30).map((maker, at) => <tr key={at}><td class="mono">{maker.comm}[{maker.pid}]{maker.parent_comm ? ` of ${maker.parent_comm}` : ""}</td><td class="mono">{maker.via ?? ""}{maker.processes > 1 ? ` (${count(maker.processes)} processes)` : ""}</td><td class="mono">{maker.parent} {maker.pattern}</td><td class="number">{count(maker.born)}</td><td class="number">{count(maker.removed)}</td><td class="number">{count(Math.round(maker.per_minute))}</td><td>{maker.made_unit ?? maker.unit ?? ""}</td></tr>)}</tbody></table>
      </section>}
    </>
  );
}

function Group({ group, most, first }: { group: ZombieGroup; most: number; first: boolean }) {
  const [open, setOpen] = useState(first);
  const kinds = Object.entries(group.bytes ?? {}).filter(([kind, value]) => !["total", "anon_or_shmem"].includes(kind) && (value ?? 0) > 0);
  return (
    <div>
      <button class="row" aria-expanded={open} onClick={() => setOpen(!open)}>
        <span class="meter" aria-hidden="true"><span style={{ width: `${Math.max(1, (group.dead ?? 0) / Math.max(1, most) * 100)}%` }} /></span>
        <b class="amount">{count(group.dead)}</b><span class="text mono">{group.parent} <b>{group.pattern}</b></span><span class="muted">{group.unit ?? (group.pod_uid ? `pod ${group.pod_uid}` : "")}</span><span class="amount">{group.bytes ? bytes(group.bytes.total) : "?"}</span>
      </button>
      {open && <div class="opened">
        <p>{group.oldest && <>Created {when(group.oldest)} … {when(group.newest)}. </>}{group.per_hour !== null && (group.per_hour_from === "births" ? <>{count(group.per_hour)} of them within the last hour. </> : <>{rate(group.per_hour)} more{group.per_hour_from ? ` (${FROM[group.per_hour_from] ?? group.per_hour_from})` : ""}. </>)}Example: <span class="mono">{group.example}</span>.</p>
        {kinds.length > 0 && <p>They hold {kinds.map(([kind, value]) => `${bytes(value)} ${KIND[kind] ?? kind}`).join(", ")}{group.bytes_are_partial ? " (unknown for some of them)" : ""}.</p>}
        {group.pinned_by.length > 0 && <><h4>Kept by</h4><table><thead><tr><th scope="col">file</th><th scope="col">on</th><th scope="col" class="number">holds</th><th scope="col" class="number">dead</th></tr></thead><tbody>{group.pinned_by.slice(0, 12).map((file, at) => <tr key={at}><td class="mono">{file.name}</td><td>{file.filesystem}</td><td class="number">{bytes(file.bytes)}</td><td class="number">{count(file.dead)}</td></tr>)}</tbody></table>{group.pinned_by.length > 12 && <p class="note">and {count(group.pinned_by.length - 12)} more files</p>}</>}
        {group.pinned_otherwise.length > 0 && <p>Also kept by: {group.pinned_otherwise.map(one => `${one.what} ${bytes(one.bytes)} (${count(one.dead)})`).join(", ")}.</p>}
        {group.makers.length > 0 && <p>Created by {group.makers.slice(0, 3).map(maker => `${maker.comm}[${maker.pid}]${maker.made_unit ? ` for ${maker.made_unit}` : ""} (${count(maker.born)})`).join(", ")}.</p>}
      </div>}
    </div>
  );
}
const KIND: Record<string, string> = { file: "page cache", anon: "anonymous memory", shmem: "shared memory and tmpfs", kernel: "kernel memory", swap: "swap", unevictable: "unevictable" };

function Growth({ growth, source, whole }: { growth: NonNullable<Zombies["growth"]>; source: Source; whole: Range }) {
  const palette = paletteOf(useTheme());
  const values = growth.dead.some(value => value !== null) ? growth.dead : growth.tracked;
  const seen = values.filter((value): value is number => value !== null);
  const [low, high] = [Math.min(...seen), Math.max(...seen)];
  const bottom = low > high * 0.8 ? low - (high - low || 1) * 0.15 : 0;
  const { ref } = useCanvas((context, width, height) => {
    const axis = axisOf(width, whole), h = height - AXIS_HEIGHT - 6;
    context.fillStyle = css(palette.panel);
    context.fillRect(0, 0, width, height);
    drawAxis(context, axis, source.start_time, palette);
    context.font = `11px ${FONT}`;
    context.fillStyle = css(palette.muted);
    context.textBaseline = "middle";
    context.textAlign = "right";
    const y = (value: number) => height - 4 - (value - bottom) / Math.max(1e-9, high - bottom) * h;
    for (const value of new Set([bottom > 0 ? Math.round(low) : 0, high])) context.fillText(count(value), axis.left - 10, Math.min(height - 6, y(value) + 4));
    context.textAlign = "left";
    context.fillText(values === growth.dead ? "dead" : "tracked by the kernel", 8, height / 2 + 8);
    const path = new Path2D();
    let first = -1, last = 0;
    growth.at.forEach((at, index) => {
      const value = values[index] ?? null;
      if (value === null) return;
      const x = place(axis, at);
      if (first < 0) { first = x; path.moveTo(x, y(value)); } else path.lineTo(x, y(value));
      last = x;
    });
    context.strokeStyle = css(palette.irq);
    context.lineWidth = 2;
    context.stroke(path);
    context.lineWidth = 1;
    path.lineTo(last, height - 4);
    path.lineTo(first, height - 4);
    context.fillStyle = css(mix(palette.panel, palette.irq, 0.25));
    context.globalAlpha = 0.6;
    context.fill(path);
    context.globalAlpha = 1;
  });
  return <canvas ref={ref} role="img" aria-label={`Dead cgroups over time: from ${count(seen[0])} to ${count(seen[seen.length - 1])}, at most ${count(high)}.`} style={{ height: 130 }} />;
}
