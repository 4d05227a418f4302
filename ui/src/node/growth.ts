// Growth of dead cgroups. Pure.
import type { Zombies } from "../api/types.ts";

// How many more there were at the end than at the start: what a verdict calls growing. Births of the last hour differ: they also
// count cgroups that died before watching began.
export function grownBy({ at, dead }: NonNullable<Zombies["growth"]>): { more: number; ns: number } | null {
  const known = at.flatMap((at, index) => dead[index] === null || dead[index] === undefined ? [] : [{ at, dead: dead[index]! }]);
  const [first, last] = [known[0], known[known.length - 1]];
  return first && last && last.at > first.at && last.dead > first.dead ? { more: last.dead - first.dead, ns: last.at - first.at } : null;
}
