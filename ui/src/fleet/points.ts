// The points of uptime × number. Numbers in, numbers out.
import type { Points } from "./types.ts";

export interface Point { node: string; hours: number; value: number; growth: number | null; sick: boolean }
export interface Shown { points: Point[]; mostHours: number; most: number; sickGrowth: number | null; otherGrowth: number | null }

export function median(values: number[]): number | null {
  if (!values.length) return null;
  const ordered = [...values].sort((a, b) => a - b), middle = ordered.length >> 1;
  return ordered.length % 2 ? ordered[middle]! : (ordered[middle - 1]! + ordered[middle]!) / 2;
}

export function shownPoints(from: Points): Shown {
  const points: Point[] = [];
  let mostHours = 1, most = 1;
  from.nodes.forEach((node, at) => {
    const hours = from.up_hours[at] ?? null, value = from.value[at] ?? null;
    if (hours === null || value === null) return;
    points.push({ node, hours, value, growth: from.per_hour[at] ?? null, sick: from.sick[at] === true });
    mostHours = Math.max(mostHours, hours);
    most = Math.max(most, value);
  });
  const growth = (sick: boolean) => median(points.filter(point => point.sick === sick && point.growth !== null).map(point => point.growth!));
  return { points, mostHours, most, sickGrowth: growth(true), otherGrowth: growth(false) };
}

const NEAR = 12;
export function nearest<P>(points: P[], place: (point: P) => [number, number], x: number, y: number): P | null {
  let best: P | null = null, least = NEAR * NEAR;
  for (const point of points) {
    const [px, py] = place(point), distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least) { best = point; least = distance; }
  }
  return best;
}
