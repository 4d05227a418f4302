// The wait ledger: who lost time, who had the core meanwhile, and why that one came first.
import { address, useApi } from "../api/fetch.ts";
import type { WaitRow, Waits } from "../api/types.ts";
import { css, inkOn, legible, paletteOf, ramp } from "../paint/colour.ts";
import { useTheme } from "../paint/theme.ts";
import { count, Failure, NotSeen, Waiting, when } from "../shell/parts.tsx";
import { update, WAITS_BY, type Range, type State } from "../state.ts";
import { keyOf, lost, matrixOf, nameOf, numberOf, takers, time, WHY } from "./matrix.ts";

const ROWS = 16, COLUMNS = 10;
// Who lost less than this of the time watched is listed with all (a).
const LEAST = 0.01;

export function WaitsView({ state, range, generation }: { state: State; range: Range; generation: number }) {
  const of = state.selection ?? (state.range ? range : null);
  const { data, error, loading } = useApi<Waits>(address("waits", { by: state.waitsBy, from: of?.from, to: of?.to }), 150, generation);
  if (error) return <section class="panel"><Failure error={error} /></section>;
  if (!data) return <section class="panel"><Waiting what="Reading the wait ledger" tall /></section>;
  const watched = data.balance.watched_ms, length = Date.parse(data.window?.to ?? "") - Date.parse(data.window?.from ?? "");
  const losers = data.rows.filter(row => state.all || lost(row) >= watched * LEAST);
  const open = data.rows.find(row => keyOf(row.who) === state.shown) ?? losers[0] ?? null;
  return (
    <div class={`waits ${loading ? "stale" : ""}`}>
      <section class="panel" aria-label="Who waited, and who had the core">
        <header class="bar"><h2>Who waited, and who had the core</h2><span class="about">{data.window ? `${when(data.window.from)} … ${when(data.window.to)}` : ""}{data.method === "estimate" ? " · an estimate: BPF was not available" : ""}</span><span class="grow" />
          <span class="choice" role="radiogroup" aria-label="Sum up by">{WAITS_BY.map(by => <button key={by} role="radio" aria-checked={state.waitsBy === by} onClick={() => update({ waitsBy: by, shown: "" })}>{by}</button>)}</span></header>
        {length > 0 && watched < length * 0.98 && <p class="note">Threads switch so often here that only {Math.round(watched / length * 100)} % of the time was watched; times are of that.</p>}
        {losers.length === 0 ? <p>Nobody lost more than 1 % of the time.</p> : <MatrixTable rows={losers} open={open} />}
        {!state.all && losers.length < data.rows.length && <p class="note">{count(data.rows.length - losers.length)} who lost less than 1 % of the time are not shown. <button class="link" onClick={() => update({ all: true })}>Show them</button></p>}
        {(data.left_out ?? 0) > 0 && <p class="note">{count(data.left_out)} more lost less than these.</p>}
        <NotSeen of={data.unseen.filter(one => one.probe === "waits")} />
      </section>
      {open && <Account row={open} />}
      <LossList rows={losers} open={open} />
    </div>
  );
}

const share = (of: number) => of > 0 && of < 0.01 ? "less than 1 %" : `${Math.round(of * 100)} %`;
const pick = (row: WaitRow) => update({ shown: keyOf(row.who) }, true);

function MatrixTable({ rows, open }: { rows: WaitRow[]; open: WaitRow | null }) {
  const theme = useTheme(), palette = paletteOf(theme), matrix = matrixOf(rows, ROWS, COLUMNS);
  if (!matrix.rows.length) return <p>Nobody waited for a core; what was lost otherwise is below.</p>;
  const cell = (ms: number, key: string, title: string) => {
    const fill = legible(ramp(palette.ramp, Math.sqrt(ms / Math.max(matrix.largest, 1e-9))));
    return <td key={key} class="number" title={title} style={ms >= 1 ? { background: css(fill), color: css(inkOn(fill)) } : {}}>{ms >= 1 ? time(ms) : ""}</td>;
  };
  return (
    <div class="wide"><table class="matrix">
      <caption class="note">Rows waited, columns had the core meanwhile. Click on a row for its account.</caption>
      <thead><tr><th scope="col">waited</th><th scope="col" class="number">in all</th>{matrix.columns.map(column => <th key={column.key} scope="col" title={column.who.cgroup ?? ""}><span>{column.who.name}</span><span>{numberOf(column.who)}</span></th>)}{matrix.hasRest && <th scope="col"><span>others</span></th>}</tr></thead>
      <tbody>{matrix.rows.map(({ row, cells, rest }) => <tr key={keyOf(row.who)} class={row === open ? "marked" : ""}>
        <th scope="row"><button class="link" aria-pressed={row === open} onClick={() => pick(row)}>{nameOf(row.who)}</button></th><td class="number">{time(row.waited_ms)}</td>
        {cells.map((ms, at) => cell(ms, matrix.columns[at]!.key, `${nameOf(matrix.columns[at]!.who)} had the core for ${time(ms)} of the ${time(row.waited_ms)} that ${nameOf(row.who)} waited`))}
        {matrix.hasRest && cell(rest, "rest", `others: ${time(rest)}`)}</tr>)}</tbody>
    </table></div>
  );
}

function Account({ row }: { row: WaitRow }) {
  const asked = row.ran_ms + row.waited_ms + row.throttled_ms, all = asked + row.blocked_ms;
  const parts: [string, number][] = [["ran", row.ran_ms], ["waited", row.waited_ms], ["throttled", row.throttled_ms], ["blocked", row.blocked_ms]];
  const list = (of: Map<number | string, number>) => [...of].sort((a, b) => b[1] - a[1]).map(([key]) => key);
  const why = takers(row.charged).filter(one => one.ms >= 1);
  return (
    <section class="panel account" aria-label={`The account of ${nameOf(row.who)}`}>
      <header class="bar"><h2>{nameOf(row.who)}</h2><span class="about mono">{row.who.cgroup ?? ""}</span></header>
      <p>{asked > 0 ? <>It got <b>{share(row.ran_ms / asked)}</b> of the CPU time it asked for. </> : null}{row.waited_ms >= 1 && <>Longest wait: {time(row.longest_wait_ms)}. </>}{row.kept_on_cores !== null && <>It may run on core{/^\d+$/.test(row.kept_on_cores) ? "" : "s"} {row.kept_on_cores} only. </>}</p>
      <div class="split" role="img" aria-label={parts.map(([what, ms]) => `${what} ${time(ms)}`).join(", ")}>{parts.filter(([, ms]) => ms > 0).map(([what, ms]) => <span key={what} class={what} style={{ width: `${ms / all * 100}%` }} />)}</div>
      <p class="legend">{parts.filter(([what, ms]) => ms >= 1 || what === "ran").map(([what, ms]) => <span key={what}><i class={what} />{what} {time(ms)}</span>)}</p>
      {why.length > 0 && <table><thead><tr><th scope="col">had the core meanwhile</th><th scope="col" class="number">time</th><th scope="col" class="number">of the wait</th><th scope="col">on core</th><th scope="col">why it came first</th></tr></thead>
        <tbody>{why.slice(0, 20).map(one => <tr key={one.key}><td class="mono">{nameOf(one.who)}</td><td class="number">{time(one.ms)}</td><td class="number">{share(one.ms / Math.max(row.waited_ms, one.ms))}</td><td>{list(one.cores).slice(0, 6).join(", ")}{one.cores.size > 6 ? " …" : ""}</td><td>{list(one.why).map(key => WHY[key] ?? key).join("; ")}</td></tr>)}</tbody></table>}
      {row.blocked_on.length > 0 && <table><thead><tr><th scope="col">blocked on</th><th scope="col">kernel function</th><th scope="col" class="number">time</th><th scope="col" class="number">longest</th><th scope="col"></th></tr></thead>
        <tbody>{row.blocked_on.slice(0, 12).map((on, at) => <tr key={at}><td class="mono">{on.what}</td><td class="mono">{on.function ?? "?"}</td><td class="number">{time(on.ms)}</td><td class="number">{time(on.longest_ms)}</td><td>{on.goes_on ? "goes on" : ""}</td></tr>)}</tbody></table>}
    </section>
  );
}

function LossList({ rows, open }: { rows: WaitRow[]; open: WaitRow | null }) {
  if (!rows.length) return null;
  return (
    <section class="panel" aria-label="Everybody who lost"><header class="bar"><h2>Everybody who lost</h2><span class="about">most first</span></header>
      <div class="wide"><table class="losers"><thead><tr><th scope="col">who</th><th scope="col" class="number">ran</th><th scope="col" class="number">waited</th><th scope="col" class="number">throttled</th><th scope="col" class="number">blocked</th><th scope="col" class="number">longest wait</th><th scope="col">mostly to</th></tr></thead>
        <tbody>{rows.slice(0, 200).map(row => <tr key={keyOf(row.who)} class={row === open ? "marked" : ""}><td><button class="link" onClick={() => pick(row)}>{nameOf(row.who)}</button></td>
          {[row.ran_ms, row.waited_ms, row.throttled_ms, row.blocked_ms, row.longest_wait_ms].map((ms, at) => <td key={at} class="number">{time(ms)}</td>)}<td class="mono">{takers(row.charged).slice(0, 1).map(one => nameOf(one.who))}</td></tr>)}</tbody></table></div>
    </section>
  );
}
