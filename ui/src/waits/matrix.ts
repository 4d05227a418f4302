// The wait ledger as a matrix: who lost × who had the core meanwhile.
import type { WaitCharge, WaitRow, Who } from "../api/types.ts";

export const keyOf = (who: Who): string => [who.kind, who.name, who.pid ?? "", who.tid ?? "", who.parent_pid ?? ""].join("|");
// The number after the name: of the thread, the process, or the parent of short-lived ones.
export const numberOf = (who: Who): string => { const number = who.tid ?? who.pid ?? who.parent_pid; return number === null ? "" : `[${number}]`; };
export const nameOf = (who: Who): string => who.name + numberOf(who);
export const lost = (row: WaitRow): number => row.waited_ms + row.throttled_ms + row.blocked_ms;

export interface Taken { key: string; who: Who; ms: number; cores: Map<number, number>; why: Map<string, number> }

// What each had of one row's waiting, most first: over all cores and reasons.
export function takers(charged: WaitCharge[]): Taken[] {
  const sums = new Map<string, Taken>();
  for (const { to, core, ms, why } of charged) {
    const key = keyOf(to), sum = sums.get(key) ?? { key, who: to, ms: 0, cores: new Map<number, number>(), why: new Map<string, number>() };
    sums.set(key, sum);
    sum.ms += ms;
    sum.cores.set(core, (sum.cores.get(core) ?? 0) + ms);
    sum.why.set(why, (sum.why.get(why) ?? 0) + ms);
  }
  return [...sums.values()].sort((a, b) => b.ms - a.ms);
}

export interface Matrix { rows: { row: WaitRow; cells: number[]; rest: number }[]; columns: Taken[]; largest: number; hasRest: boolean }

// Those who waited most, and those who took most from them. What the others took is the rest.
export function matrixOf(all: WaitRow[], mostRows: number, mostColumns: number): Matrix {
  const chosen = all.filter(row => row.waited_ms > 0).sort((a, b) => b.waited_ms - a.waited_ms).slice(0, mostRows);
  const columns = takers(chosen.flatMap(row => row.charged)).slice(0, mostColumns);
  const rows = chosen.map(row => {
    const taken = new Map(takers(row.charged).map(one => [one.key, one.ms]));
    const cells = columns.map(column => taken.get(column.key) ?? 0);
    const charged = row.charged.reduce((sum, charge) => sum + charge.ms, 0);
    return { row, cells, rest: Math.max(0, charged - cells.reduce((sum, cell) => sum + cell, 0)) };
  });
  const largest = Math.max(0, ...rows.flatMap(({ cells, rest }) => [...cells, rest]));
  return { rows, columns, largest, hasRest: rows.some(({ rest }) => rest >= 1) };
}

export const time = (ms: number): string => ms >= 99_950 ? `${Math.round(ms / 1000)} s` : ms >= 9_995 ? `${(ms / 1000).toFixed(1)} s` : ms >= 999.5 ? `${(ms / 1000).toFixed(2)} s` : ms >= 1 ? `${Math.round(ms)} ms` : ms > 0 ? "< 1 ms" : "0";

// As in `coroner waits`.
export const WHY: Record<string, string> = {
  deadline: "SCHED_DEADLINE goes before every other class", "real-time": "real-time threads go before ordinary ones", "idle-class": "the waiter is SCHED_IDLE or SCHED_BATCH",
  nice: "the other is less nice", turns: "ordinary threads take turns", weights: "its cgroup weighs more", interrupts: "interrupts go before all threads",
  hypervisor: "the hypervisor ran something else", "wake-up": "the core was idle: it was about to run", unknown: "not known",
};
