// What a cell's colour means: the worst problem of the node, or a number of it.
import { mix, paletteOf, ramp, rgb, type Rgb, type Theme } from "../paint/colour.ts";
import type { FleetMap, Numbers } from "./types.ts";
import { NUMBERS, told } from "./words.ts";

// Healthy, info, warning, critical, never diagnosed: they differ in lightness as well as in hue (test/fleet.test.ts).
export const SEVERITIES: Record<Theme, Rgb[]> = {
  light: ["#c9d2db", "#6aa5da", "#e0900f", "#b3200f", "#eef1f5"].map(rgb),
  dark: ["#3a4653", "#4585c2", "#f0b03c", "#ff5540", "#222932"].map(rgb),
};
const NAMES = ["nothing wrong", "info", "warning", "critical", "not diagnosed"];
const STEPS = 8;

export interface Colouring {
  fills: Rgb[];
  of(node: number): number;               // index into fills
  legend: { text: string; fill: Rgb }[];
}

export const numbersOf = (map: FleetMap, colour: string): Numbers => colour === "up" ? map.up_s : map.numbers[colour] ?? [];

export function colouring(map: FleetMap, colour: string, problem: number, theme: Theme): Colouring {
  const coloured = colour === "problem" ? bySeverity(map, theme) : byNumber(map, colour, theme);
  if (problem < 0) return coloured;
  // The open problem's nodes keep their colour; the others step back.
  const palette = paletteOf(theme), faded = coloured.fills.length;
  const back = mix(palette.panel, SEVERITIES[theme][0]!, 0.55);
  const having = (node: number) => map.has[node]!.includes(problem);
  const seen = new Set(map.nodes.map((_, node) => node).filter(having).map(coloured.of));
  const legend = colour === "problem" ? coloured.legend.filter(({ fill }) => seen.has(coloured.fills.indexOf(fill))) : coloured.legend;
  return { ...coloured, fills: [...coloured.fills, back], of: node => having(node) ? coloured.of(node) : faded, legend: [...legend, { text: "without this problem", fill: back }] };
}

function bySeverity(map: FleetMap, theme: Theme): Colouring {
  const fills = SEVERITIES[theme];
  const of = (node: number) => map.severity[node] ?? 4;
  const seen = new Set(map.nodes.map((_, node) => of(node)));
  return { fills, of, legend: [3, 2, 1, 0, 4].filter(at => at === 0 || seen.has(at)).map(at => ({ text: NAMES[at]!, fill: fills[at]! })) };
}

// Shares are linear. Counts and times span powers of ten: their logarithm is.
export function scaleOf(colour: string, values: Numbers): { step: (value: number) => number; at: (step: number) => number } {
  const isShare = NUMBERS[colour]?.kind === "share", isTime = colour === "up";
  const most = isShare ? 1 : values.reduce<number>((most, value) => Math.max(most, value ?? 0), 0) || 1;
  const up = isShare || isTime ? (value: number) => value / most : (value: number) => Math.log1p(value) / Math.log1p(most);
  const down = isShare || isTime ? (share: number) => share * most : (share: number) => Math.expm1(share * Math.log1p(most));
  return { step: value => Math.min(STEPS - 1, Math.max(0, Math.floor(up(Math.max(0, value)) * STEPS))), at: step => down(step / STEPS) };
}

function byNumber(map: FleetMap, colour: string, theme: Theme): Colouring {
  const values = numbersOf(map, colour), palette = paletteOf(theme), scale = scaleOf(colour, values);
  // The ramp's first colour is that of an empty cell.
  const fills = Array.from({ length: STEPS }, (_, step) => ramp(palette.ramp, (step + 0.6) / STEPS));
  const of = (node: number) => { const value = values[node] ?? null; return value === null ? STEPS : scale.step(value); };
  const legend = [0, 2, 4, 6].map(step => ({ text: `≥ ${told(colour, step ? Math.round(scale.at(step) * 100) / 100 : 0, true)}`, fill: fills[step]! }));
  if (NUMBERS[colour]?.kind !== "share") legend.forEach((one, at) => { if (at) one.text = `≥ ${told(colour, Math.ceil(scale.at(at * 2)), true)}`; });
  if (map.nodes.some((_, node) => (values[node] ?? null) === null)) legend.push({ text: "not seen", fill: SEVERITIES[theme][4]! });
  return { fills: [...fills, SEVERITIES[theme][4]!], of, legend };
}
