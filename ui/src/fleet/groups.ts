// Which nodes are shown, in which groups, and what is wrong with each group.
import type { FleetMap } from "./types.ts";
import type { Group } from "./layout.ts";
import { plain } from "./words.ts";

// More groups than this cannot be told from each other; the smallest share one.
export const MOST_GROUPS = 60;
export const UNKNOWN = "not told";

const collator = new Intl.Collator("en", { numeric: true });

// The nodes by name, node-9 before node-10. Once per answer: a collator takes 100 ms for ten thousand names.
const ordered = new WeakMap<FleetMap, number[]>();
function byName(map: FleetMap): number[] {
  let order = ordered.get(map);
  if (!order) {
    const keys = map.nodes.map(name => name.replace(/\d+/g, digits => digits.padStart(16, "0")));
    order = keys.map((_, node) => node).sort((a, b) => keys[a]! < keys[b]! ? -1 : keys[a]! > keys[b]! ? 1 : a - b);
    ordered.set(map, order);
  }
  return order;
}

// Words of the search: `zone=us-east-1a` is an attribute's value; quotes keep spaces together; anything else is part of a node's name.
export function termsOf(find: string): { name: string | null; value: string }[] {
  const words = find.match(/(?:[^\s"]|"[^"]*")+/g) ?? [];
  return words.map(word => {
    const text = word.replace(/"/g, ""), at = text.indexOf("=");
    return at > 0 ? { name: text.slice(0, at), value: text.slice(at + 1) } : { name: null, value: text.toLowerCase() };
  });
}

export const quoted = (name: string, value: string): string => /[\s"]/.test(name + value) ? `"${`${name}=${value}`.replace(/"/g, "")}"` : `${name}=${value}`;

// Whether each node matches all words. An attribute that no node has matches none.
export function matching(map: FleetMap, find: string): (node: number) => boolean {
  const tests = termsOf(find).map(({ name, value }) => {
    if (name === null) { const names = map.nodes.map(node => node.toLowerCase()); return (node: number) => names[node]!.includes(value); }
    if (name === "problem") { const wanted = new Set(map.problems.flatMap((problem, at) => problem.code === value || problem.key === value ? [at] : [])); return (node: number) => map.has[node]!.some(at => wanted.has(at)); }
    const attribute = map.attributes.find(attribute => attribute.name === name) ?? map.attributes.find(attribute => attribute.name === `label:${name}`);
    const index = value === UNKNOWN ? -1 : attribute?.values.indexOf(value) ?? -2;
    return (node: number) => attribute !== undefined && (index >= 0 || value === UNKNOWN) && attribute.of[node] === index;
  });
  return node => tests.every(test => test(node));
}

// Why nothing matches, if the search itself may be why.
export function misread(map: FleetMap, find: string): string {
  const names = new Set(map.attributes.map(attribute => attribute.name.replace(/^label:/, "")));
  const unknown = termsOf(find).find(({ name }) => name !== null && name !== "problem" && !/[<>!]$/.test(name) && !names.has(name.replace(/^label:/, "")));
  if (/[<>()]|!=|(^|\s)(and|or|not|silent)(\s|$)/.test(find)) return "The search takes parts of names, ATTRIBUTE=VALUE and problem=CODE. For expressions: coroner fleet nodes --where";
  return unknown ? `No node has an attribute ${plain(unknown.name!)}.` : "";
}

export function groupsOf(map: FleetMap, by: string, find: string, worst: boolean, weight: (node: number) => number): Group[] {
  const matches = matching(map, find);
  const order = byName(map).filter(matches);
  // Stable: equals stay in the order of their names.
  if (worst) order.sort((a, b) => weight(b) - weight(a));
  const attribute = map.attributes.find(attribute => attribute.name === by);
  if (!attribute) return order.length ? [{ label: "", members: order }] : [];
  const groups = new Map<number, number[]>();
  for (const node of order) {
    const value = attribute.of[node]!, members = groups.get(value);
    if (members) members.push(node); else groups.set(value, [node]);
  }
  const label = (value: number) => value < 0 ? UNKNOWN : attribute.values[value]!;
  let listed = [...groups].map(([value, members]) => ({ value, label: label(value), members }));
  let rest: typeof listed = [];
  if (listed.length > MOST_GROUPS) {
    listed.sort((a, b) => b.members.length - a.members.length);
    [listed, rest] = [listed.slice(0, MOST_GROUPS - 1), listed.slice(MOST_GROUPS - 1)];
  }
  // What is not told comes last.
  listed.sort((a, b) => Number(a.value < 0) - Number(b.value < 0) || collator.compare(a.label, b.label));
  const out: Group[] = listed.map(({ label, members }) => ({ label, members }));
  if (rest.length) out.push({ label: `${rest.length} smaller ones`, members: rest.flatMap(one => one.members) });
  return out;
}

export interface GroupCount { label: string; nodes: number; sick: number; silent: number; having: number }

// `problem`: the index of the open problem, or -1.
export function counts(map: FleetMap, groups: Group[], problem: number): GroupCount[] {
  const silent = new Set(map.silent);
  return groups.map(({ label, members }) => ({
    label: plain(label) || "all nodes", nodes: members.length,
    sick: members.filter(node => (map.severity[node] ?? 0) >= 2).length,
    silent: members.filter(node => silent.has(node)).length,
    having: problem < 0 ? 0 : members.filter(node => map.has[node]!.includes(problem)).length,
  }));
}
