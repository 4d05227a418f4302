// Types of the /api/v1 documents (docs/api.md). Times are nanoseconds after the start of the source unless they are text.

export interface Subject { kind: string; name: string }
export interface Named { code: string; subject: Subject; by?: string | null; title: string }
export type Severity = "info" | "warning" | "critical";
export type Certainty = "proven" | "likely" | "possible";
export interface Evidence { what: string; value: string | number; unit: string; source: string }
export interface Proof { shown?: string; not_seen?: string }
export interface Proofs { identity: Proof; order: Proof; size: Proof }
export interface Link { from: Named; to: Named; because: string; certainty: Certainty; proofs: Proofs; evidence: Evidence[] }
export interface Verdict {
  root_cause: Named; certainty: Certainty; severity: Severity; story: string; because: string; proofs: Proofs; chain: Link[];
  context: Named[]; timeline: { at: string; uncertainty_ms: number; already: boolean; what: string }[];
  over?: string | null; remedy: string | null; not_fixed: string | null; risk: string | null;
}
export interface Finding { code: string; severity: Severity; subject: Subject; by?: string | null; title: string; detail: string; evidence: Evidence[]; remedy: string | null }
export interface Unseen { probe: string; what: string; why: string; how_to_see: string }
export interface NodeIdentity {
  host?: string; machine_id?: string; boot_id?: string; kernel?: string; os?: string; booted?: string; cores?: number; memory_bytes?: number;
  [more: string]: unknown;
}
export interface Diagnosis {
  axis?: { from: number; to: number };
  coroner_version: string; node: NodeIdentity; window: { from: string; to: string }; conclusion: string; verdicts: Verdict[];
  unexplained: { finding: Named; needs: string; command: string; then: string }[]; findings: Finding[];
  ruled_out: { code: string; why: string }[]; unseen: Unseen[];
}

export interface Source {
  kind: "recorder" | "directory" | "recording" | "incident" | "profile"; name: string; format: string; live: boolean; node: NodeIdentity | null;
  start_ns: string; length_ns: number; start_time: string | null; cores: number[];
  has: { evidence: boolean; samples: boolean; incidents: number; diagnosis: boolean };
  loading?: { read_bytes: number; total_bytes: number } | null;
  events: { name: string; samples: number; weight: number }[]; samples: number | null; lost: number | null;
  unused?: { kind: string; count: number; example: string }[]; unnamed?: string[];
  segments?: { from: number; to: number; bytes: number }[]; gaps?: { from: number; to: number; why: string }[]; rate_hz?: number | null;
}

export interface Owner { comm: string; pid: number | null; tid: number | null; unit?: string | null; key?: string }
export type Column = (number | null)[];
export interface CoreRow {
  core: number; serves: string[]; score: number; busy: Column; user: Column; system: Column; irq: Column; steal: Column;
  owner: number[]; owner_share: Column;
}
export interface CoreGrid { from: number; to: number; step_ns: number; columns: number; source: "time" | "samples"; owner_source?: string | null; owner_part?: number; cores: CoreRow[]; owners: Owner[]; average: Column }

export interface TimelineEvent { at: number; uncertainty_ns: number; kind: string; severity: string; title: string; subject: string | null; finding_code?: string | null }
export interface Series { id: string; title: string; unit: string; worst: "max" | "sum"; values: Column; subject?: string | null }
export interface Timeline { from: number; to: number; step_ns: number; events: TimelineEvent[]; events_left_out?: number; series: Series[] }

export interface OffsetHeatmap {
  axis_ns: number; first_second: number; rows: number; largest: number; idle: number; columns: number[][]; left_out: number;
}

export interface Pruned { min_share: number; nodes: number }
export interface FlameColumns {
  total: number; samples: number; unit: string; event: string | null; inverted: boolean; pruned?: Pruned; idle?: number | null; part?: number;
  names: string[]; nodes: { name: number[]; parent: number[]; place: string[]; total: number[]; own: number[] };
}
export interface Riser {
  what: "command" | "kernel_symbol"; name: string; baseline: number; now: number; baseline_samples: number; now_samples: number; sigmas: number;
  mostly_in?: { command: string; share: number } | null; carries?: string[];
}
export interface DifferenceColumns {
  total: number; baseline_total: number; samples?: number; baseline_samples?: number; unit: string; event: string | null; pruned?: Pruned; part?: number; baseline_part?: number; risers: Riser[]; names: string[];
  nodes: { name: number[]; parent: number[]; place: string[]; now: number[]; baseline: number[]; own_now: number[]; own_baseline: number[] };
}

export interface Thread { comm: string; pid: number | null; tid: number | null }
export interface Monopolies {
  threshold_ms: number;
  monopolies: { core: number; by: "thread" | "interrupts"; thread: Thread | null; axis_ns: number; length_ms: number; uncertainty_ms: number; kernel: number; stacks: { share: number; frames: string[] }[] }[];
}

export interface Incident {
  number: number; code: string; subject: string; by: string | null; core: number | null; text: string; triggered: string;
  window: { from: string; to: string }; state: string; repeats: number; also: unknown[]; error: string | null; bytes: number | null;
  trigger_ns?: number | null; from?: number | null; to?: number | null;
}
export interface IncidentReport { incident: Incident; diagnosis: Diagnosis | null; risers: Riser[]; missing_samples: { core: number; lost: number; throttled_ms: number }[]; unreadable: string | null }

export interface Bytes { total: number | null; [kind: string]: number | null }
export interface ZombieFile { path: string | null; name: string; filesystem: string; deleted: boolean; bytes: number; pages: number; dead: number; size: number }
export interface Maker { pid: number; comm: string; via: string | null; parent_comm: string | null; cgroup: string | null; unit: string | null; pattern: string; parent: string; processes: number; born: number; removed: number; per_minute: number; made_unit: string | null }
export interface ZombieGroup {
  parent: string; pattern: string; unit: string | null; pod_uid: string | null; container_id: string | null; example: string; dead: number | null; groups_merged: number;
  bytes: Bytes | null; bytes_are_partial: boolean; oldest: string | null; newest: string | null; per_hour: number | null; per_hour_from: string | null;
  pinned_by: ZombieFile[]; pinned_otherwise: { what: string; bytes: number; dead: number }[]; makers: Maker[];
}
export interface Zombies {
  host: string; at: string; method: string; tracked: number | null; live: number | null; dead: number | null; bytes: Bytes | null; per_hour: number | null; per_hour_from: string | null;
  groups: ZombieGroup[]; makers: Maker[]; churn: { born: number; removed: number; freed: number } | null;
  cost: { lines: { kind: string; measured: boolean; text: string; how_to_measure: string | null }[] } | null; unseen: Unseen[];
  growth?: { at: number[]; dead: (number | null)[]; tracked: (number | null)[] } | null;
}

export interface Reason { kind: string; text: string; source: string | null }
export interface Judgement {
  unit: string; agent: string; what: string; verdict: string; certainty: string; why: Reason[]; in_use: Reason[]; harm: string; report_only: boolean; safe_step: string | null; does_not_fix: string | null; rivals: string[];
}
export interface Unit {
  name: string; description: string | null; active_state: string | null; sub_state: string | null; enablement: string | null; restarts: number | null;
  exit_kind: string | null; exit_status: number | null; result: string | null; package: { name: string; version: string } | null; path: string | null; pulled_in_by: string[];
  loop: { how: string; per_hour: number; restarts_seen: number | null; trend: string | null; since: string | null } | null; churn: unknown[] | null; verdict: string | null; certainty: string | null;
  cost: { cores: number | null; memory_bytes: number | null; restarts: number | null; zombies: number | null; zombie_bytes: number | null; zombies_per_hour: number | null };
}
export interface Units { systemd: boolean; units: Unit[]; judgements: Judgement[]; findings: Finding[]; unseen: Unseen[] }

export interface Who { kind: string; name: string; pid: number | null; tid: number | null; parent_pid: number | null; cgroup: string | null }
export interface WaitCharge { to: Who; core: number; ms: number; why: string }
export interface WaitRow {
  who: Who; ran_ms: number; waited_ms: number; throttled_ms: number; blocked_ms: number; longest_wait_ms: number; charged: WaitCharge[];
  blocked_on: { what: string; function: string | null; ms: number; longest_ms: number; goes_on: boolean }[]; kept_on_cores: string | null;
}
export interface Waits { window: { from: string; to: string } | null; method: "bpf" | "estimate"; balance: { watched_ms: number }; rows: WaitRow[]; left_out?: number; unseen: Unseen[] }

export interface Owners {
  comms: { comm: string; samples: number; share: number }[]; processes: { pid: number; comm: string; samples: number; share: number }[];
  cgroups: { cgroup: string; samples: number; share: number }[];
}
