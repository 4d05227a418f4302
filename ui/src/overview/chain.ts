// The links of a verdict as a list of steps from the root cause down, side effects indented. Pure.
import type { Link, Named, Verdict } from "../api/types.ts";

export const keyOf = (named: Named): string => `${named.code}|${named.subject.kind}|${named.subject.name}${named.by ? `|${named.by}` : ""}`;

export interface Step {
  finding: Named;
  link: Link | null;        // the link to this step; null for the root
  also: Link[];             // other links to this step
  depth: number;            // 0 on the trunk, more for branches
  worst: boolean;
}

// The trunk is the longest path down; other effects of a step follow right below it, indented.
export function stepsOf(verdict: Verdict): Step[] {
  const by = new Map<string, Link[]>();
  for (const link of verdict.chain) by.set(keyOf(link.from), [...(by.get(keyOf(link.from)) ?? []), link]);
  const into = new Map<string, Link[]>();
  for (const link of verdict.chain) into.set(keyOf(link.to), [...(into.get(keyOf(link.to)) ?? []), link]);
  const longest = new Map<string, number>();
  const reach = (key: string, open: Set<string>): number => {
    if (longest.has(key)) return longest.get(key)!;
    if (open.has(key)) return 0;
    open.add(key);
    const far = Math.max(0, ...(by.get(key) ?? []).map(link => 1 + reach(keyOf(link.to), open)));
    open.delete(key);
    longest.set(key, far);
    return far;
  };
  const steps: Step[] = [], seen = new Set<string>();
  // A step reached by two paths belongs to the longer one.
  const far = new Map<string, number>();
  const measure = (key: string, at: number, open: Set<string>) => {
    if (open.has(key) || (far.get(key) ?? -1) >= at) return;
    far.set(key, at);
    open.add(key);
    for (const link of by.get(key) ?? []) measure(keyOf(link.to), at + 1, open);
    open.delete(key);
  };
  measure(keyOf(verdict.root_cause), 0, new Set());
  const put = (finding: Named, link: Link | null, depth: number) => {
    const key = keyOf(finding);
    if (seen.has(key)) return;
    seen.add(key);
    steps.push({ finding, link, also: (into.get(key) ?? []).filter(other => other !== link), depth, worst: false });
    const next = [...(by.get(key) ?? [])].filter(other => !seen.has(keyOf(other.to)) && (far.get(keyOf(other.to)) ?? 0) === (far.get(key) ?? 0) + 1);
    const length = (link: Link) => reach(keyOf(link.to), new Set());
    // Among equals the last, which keeps the verdict's order.
    const trunk = next.reduce<Link | null>((best, link) => !best || length(link) >= length(best) ? link : best, null);
    // Branches first, so that the trunk continues below them.
    for (const branch of next) if (branch !== trunk) put(branch.to, branch, depth + 1);
    if (trunk) put(trunk.to, trunk, depth);
  };
  put(verdict.root_cause, null, 0);
  for (const link of verdict.chain) if (!seen.has(keyOf(link.to))) put(link.to, link, 0);
  return steps;
}

export const PROOFS = [["identity", "same thing"], ["order", "order in time"], ["size", "size"]] as const;

// "5 of 6 links proven", as in the command's output.
export function lessSure(verdict: Verdict): string {
  const rank = { proven: 2, likely: 1, possible: 0 };
  const weak = verdict.chain.filter(link => rank[link.certainty] < rank[verdict.certainty]).length;
  return weak ? `${verdict.chain.length - weak} of ${verdict.chain.length} links ${verdict.certainty === "proven" ? "" : "at least "}${verdict.certainty}` : "";
}

// The core that a verdict is about.
export function coreOf(verdict: Verdict): number | null {
  for (const named of [verdict.root_cause, ...verdict.chain.map(link => link.to)]) {
    if (named.subject.kind === "core" && /^\d+$/.test(named.subject.name)) return Number(named.subject.name);
  }
  return null;
}
