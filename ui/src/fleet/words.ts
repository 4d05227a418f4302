// How the fleet's page writes names, numbers and times.

// Names come from nodes. Preact keeps markup out; this keeps out what would reorder or hide text around them.
export const plain = (text: string): string => text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, "\ufffd");

export interface NumberKind { title: string; kind: "share" | "count" | "ms" }
// Without a prototype: names come from the address, too.
export const NUMBERS: Record<string, NumberKind> = { __proto__: null as never,
  zombies: { title: "dead cgroups", kind: "count" },
  busy: { title: "busy, all cores", kind: "share" },
  busy_max: { title: "busy, busiest core", kind: "share" },
  worst_core_system: { title: "in the kernel, worst core", kind: "share" },
  saturated_ms: { title: "full cores", kind: "ms" },
  memcgs: { title: "memory cgroups", kind: "count" },
  memcgs_live: { title: "live memory cgroups", kind: "count" },
  restarts: { title: "unit restarts", kind: "count" },
  nic_resets: { title: "NIC resets", kind: "count" },
  drops: { title: "dropped packets", kind: "count" },
  oom_kills: { title: "OOM kills", kind: "count" },
  cpu_stall_ms: { title: "waiting for a core", kind: "ms" },
  memory_stall_ms: { title: "waiting for memory", kind: "ms" },
  io_stall_ms: { title: "waiting for disks", kind: "ms" },
  lost_samples: { title: "lost samples", kind: "count" },
  starved_queues: { title: "NIC queues on full cores", kind: "count" },
  throttled_ms: { title: "stopped by CPU quotas", kind: "ms" },
  direct_reclaim_pages: { title: "pages reclaimed by processes", kind: "count" },
  own_cpu_ms: { title: "CPU time of the recorder", kind: "ms" },
};

export const titleOf = (colour: string): string => colour === "problem" ? "worst problem" : colour === "up" ? "uptime" : NUMBERS[colour]?.title ?? colour;

const compact = (value: number): string => value >= 1e6 ? `${trim(value / 1e6)}M` : value >= 1e4 ? `${Math.round(value / 1e3)}k` : value.toLocaleString("en");
const trim = (value: number): string => value.toFixed(1).replace(/\.0$/, "");

export function told(name: string, value: number | null | undefined, short = false): string {
  if (value === null || value === undefined) return "not seen";
  if (name === "up") return ago(value);
  const kind = NUMBERS[name]?.kind ?? "count";
  if (kind === "share") return `${Math.round(value * 100)} %`;
  if (kind === "ms") return value >= 1000 ? `${trim(value / 1000)} s` : `${Math.round(value)} ms`;
  return short ? compact(value) : value.toLocaleString("en");
}

// What the value of an hour is, of its minutes' values.
export const ofAnHour = (name: string): string => name === "busy" ? "mean of each hour" : NUMBERS[name]?.kind === "share" || /^(zombies|memcgs|starved_queues)/.test(name) ? "highest of each hour" : "sum of each hour";

// A length of time in its one or two largest units.
export function ago(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h${s < 36_000 && Math.floor(s / 60) % 60 ? ` ${Math.floor(s / 60) % 60} min` : ""}`;
  const days = s / 86_400;
  return days < 10 ? `${trim(days)} ${trim(days) === "1" ? "day" : "days"}` : `${Math.round(days)} days`;
}

// What people call a node: by its host name, if it goes by its machine id.
export const called = (node: string, host: string | null): string => host && /^[0-9a-f]{32}$/i.test(node) ? host : node;

// To the minute, UTC.
export const clockOf = (seconds: number): string => new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ") + " UTC";
export const secondsOf = (time: string): number => Math.floor(Date.parse(time) / 1000);

export const many = (count: number, one: string): string => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

// How `coroner fleet show` and the page name attributes: labels are a user's own.
export const attributeTitle = (name: string): string => plain(name.startsWith("label:") ? name.slice(6) + " (label)" : name.replace(/_/g, " "));
