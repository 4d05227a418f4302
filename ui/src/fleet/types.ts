// Types of the documents of a collector (docs/fleet.md). Times that end in _s are seconds since 1970.
import type { Severity } from "../api/types.ts";

export type Numbers = (number | null)[];
export interface MapProblem { key: string; code: string; severity: string; title: string; nodes: number; silent: number; since_s: number; last_onset_s: number; is_new: boolean }
export interface MapAttribute { name: string; values: string[]; of: number[] }
export interface FleetMap {
  at: string; at_s: number; live: boolean; numbers_of: "minute" | "hour"; from_s: number; minutes_from_s: number;
  nodes: string[]; severity: Numbers; up_s: Numbers; silent: number[]; problems: MapProblem[]; has: number[][];
  attributes: MapAttribute[]; attributes_left_out: number; numbers: Record<string, Numbers>;
}
export interface FleetHistory { from_s: number; step_s: number; sick: number[]; problems: { code: string; nodes: number[] }[]; left_out: number }
export interface Points {
  code: string; number: string; nodes: string[]; sick: boolean[]; up_hours: Numbers; value: Numbers; per_hour: Numbers; slope_hours: number;
}
export interface Minutes { step_s: number; at_s: number[]; numbers: Record<string, Numbers> }

export type Attributes = Record<string, string>;
export interface Ratio { value: number; low: number; high: number }
export interface Cohort {
  attributes: Attributes; aliases: Attributes[]; rivals: Attributes[]; protective: boolean; sick: number; of: number; elsewhere_sick: number; elsewhere: number;
  risk_ratio: Ratio; p_adjusted: number; told_apart_by: string[];
}
export interface Curve { of: "all" | "cohort" | "elsewhere"; nodes: number; lives: number; onsets: number; watched_hours: number; points: { hours: number; survival: number; at_risk: number; onsets: number }[] }
export interface Why {
  nodes: { sick: number; healthy: number; unknown: number }; cohorts: Cohort[];
  uptime: { matters: boolean; reboot_helps_for_days: number | null; curves: Curve[] }; conclusion: string; words: string[];
  remedy: { words: string[]; image_lines: string[] } | null;
}
export interface Episode { key: string; code: string; subject: string | null; severity: Severity | string; certainty: string | null; title: string; began: string; seen_until: string; ended: string | null }
export interface Incident { number: number; code: string; key?: string | null; subject: string; text: string; triggered_real_ns: number; from_real_ns: number; until_real_ns: number; state: string; repeats: number; error: string | null }
export interface NodeDetail {
  at: string;
  node: { node: string; host: string | null; attributes: Attributes; version: string | null; booted: string | null; first_seen: string; last_seen: string; is_silent: boolean; conclusion: string | null; numbers: Record<string, number>; problems: Episode[] };
  history: Episode[]; incidents: Incident[]; boots: { boot_id: string; booted: string | null; first_seen: string; last_seen: string }[];
}
export interface FleetIncidents { at: string; incidents: { node: string; host: string | null; incident: Incident }[] }
