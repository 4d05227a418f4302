// Colours, chosen to be distinguishable with red-green colour blindness: kinds differ in lightness as well as in hue (after Okabe
// and Ito), differences go from blue to orange.

export type Theme = "light" | "dark";
export type Rgb = readonly [number, number, number];

export const rgb = (hex: string): Rgb => [1, 3, 5].map(at => parseInt(hex.slice(at, at + 2), 16)) as unknown as Rgb;
export const css = ([r, g, b]: Rgb): string => `rgb(${r},${g},${b})`;
export const mix = (a: Rgb, b: Rgb, share: number): Rgb => a.map((value, at) => Math.round(value + (b[at]! - value) * share)) as unknown as Rgb;

export function luminance(colour: Rgb): number {
  const [r, g, b] = colour.map(value => value / 255).map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
}
export function contrast(a: Rgb, b: Rgb): number {
  const [x, y] = [luminance(a), luminance(b)];
  return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
}
const INK = { light: rgb("#11151a"), dark: rgb("#ffffff") };
// Black or white, whichever reads better.
export const inkOn = (fill: Rgb): Rgb => contrast(fill, INK.light) >= contrast(fill, INK.dark) ? INK.light : INK.dark;

// Mid-tones suit neither ink: move them away from the ink until text is readable.
export function legible(fill: Rgb): Rgb {
  let out = fill;
  for (let turn = 0; turn < 12 && contrast(out, inkOn(out)) < 4.6; turn++) out = mix(out, inkOn(fill) === INK.light ? rgb("#ffffff") : rgb("#000000"), 0.06);
  return out;
}

export interface Palette {
  panel: Rgb; empty: Rgb; unseen: Rgb; line: Rgb; text: Rgb; muted: Rgb; accent: Rgb; critical: Rgb; warning: Rgb; info: Rgb; hit: Rgb;
  user: Rgb; system: Rgb; irq: Rgb; steal: Rgb; other: Rgb;
  ramp: Rgb[];                     // few to many
}

export const PALETTES: Record<Theme, Palette> = {
  dark: {
    panel: rgb("#151a21"), empty: rgb("#1b222b"), unseen: rgb("#2b2f36"), line: rgb("#2c3541"), text: rgb("#e8ebf0"), muted: rgb("#9ba7b6"),
    accent: rgb("#6cb2ff"), critical: rgb("#ff7a68"), warning: rgb("#f4b740"), info: rgb("#7fb4e6"), hit: rgb("#e36bd0"),
    user: rgb("#2f7cc4"), system: rgb("#f0883e"), irq: rgb("#f29fd0"), steal: rgb("#f5e66e"), other: rgb("#5b6878"),
    ramp: ["#1b222b", "#2d2a3d", "#4c2d48", "#7a3145", "#a93f37", "#d05a26", "#ea8424", "#f8b84e"].map(rgb),
  },
  light: {
    panel: rgb("#ffffff"), empty: rgb("#eef1f5"), unseen: rgb("#d3d8df"), line: rgb("#d5dbe3"), text: rgb("#171c23"), muted: rgb("#556070"),
    accent: rgb("#0a5fc2"), critical: rgb("#bf2414"), warning: rgb("#8a5a00"), info: rgb("#245e96"), hit: rgb("#a8178c"),
    user: rgb("#62aae2"), system: rgb("#d1550b"), irq: rgb("#8a2f78"), steal: rgb("#c2ab00"), other: rgb("#a9b3c0"),
    ramp: ["#eef1f5", "#fde3b8", "#fcc179", "#f7943f", "#e2631b", "#b93a12", "#85200f", "#4f0e0b"].map(rgb),
  },
};

export const paletteOf = (theme: Theme): Palette => PALETTES[theme];

// Position 0..1 on a list of colours.
export function ramp(colours: Rgb[], share: number): Rgb {
  const at = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const low = Math.min(Math.floor(at), colours.length - 2);
  return mix(colours[low]!, colours[low + 1]!, at - low);
}

// FNV-1a: the same name has the same colour in every view, on every machine.
export function hash(text: string): number {
  let value = 0x811c9dc5;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 0x01000193);
  return value >>> 0;
}

const OWNERS: Record<Theme, Rgb[]> = {
  dark: ["#4f9bd9", "#e0803a", "#4bb592", "#d973ac", "#d9c24a", "#8f86e0", "#e0615a", "#76b649", "#64c5d7", "#b98a5e", "#c490e6", "#96a5b8"].map(rgb),
  light: ["#2d79b7", "#cf5f12", "#0c8464", "#b63f86", "#a08500", "#665bc4", "#c8372f", "#568f26", "#1f8ca2", "#8d5f31", "#9450c0", "#65768b"].map(rgb),
};
// `kworker/3:1` and `kworker/5:0` share a key, as on the server.
export const ownerKey = (comm: string): string => comm.split(/[/:]/)[0] || comm;
// Twelve hues in two strengths each.
export function ownerColour(key: string, theme: Theme): Rgb {
  const at = hash(key), colour = OWNERS[theme][at % 12]!;
  return (at >>> 8) % 2 ? legible(mix(colour, rgb("#ffffff"), theme === "dark" ? 0.35 : 0.4)) : colour;
}

export type Language = "kernel" | "c" | "c++" | "rust" | "go" | "python" | "java" | "javascript" | "generated" | "unknown";
export const LANGUAGES: Language[] = ["kernel", "c", "c++", "rust", "go", "python", "java", "javascript", "generated", "unknown"];
const LANGUAGE_FILLS: Record<Theme, Record<Language, Rgb>> = {
  light: named({ kernel: "#f2ac77", c: "#a9cdee", "c++": "#8fb8e8", rust: "#e3b0a0", go: "#9adbe0", python: "#f1dd7e", java: "#d6b2e6", javascript: "#c9e18d", generated: "#d9d2a9", unknown: "#d6dbe2" }),
  dark: named({ kernel: "#8f4718", c: "#27517a", "c++": "#323f8c", rust: "#7a3a3a", go: "#13626e", python: "#6f6011", java: "#663a80", javascript: "#4d6416", generated: "#5c5738", unknown: "#414b58" }),
};
function named(of: Record<Language, string>): Record<Language, Rgb> {
  return Object.fromEntries(Object.entries(of).map(([name, hex]) => [name, rgb(hex)])) as Record<Language, Rgb>;
}

// Guessed from the name; symbol tables do not have the language.
export function languageOf(name: string, place: number): Language {
  if (place === KERNEL) return "kernel";
  if (name.startsWith("[")) return "unknown";
  if (/\.py(:|$)|^py::|^_?Py[A-Z_]|^_PyEval|^PyEval/.test(name)) return "python";
  if (/^(LazyCompile|Function|Script|Builtin|RegExp|JS):|\.m?js(:|$)/.test(name)) return "javascript";
  if (/^L?[a-z]+(\/[\w$]+)+[;.]|^(java|jdk|org|com|scala|kotlin)\.[\w.]+[.#:]/.test(name)) return "java";
  if (/^(core|alloc|tokio|hashbrown)::|^std::(sys|rt|io|fs|thread|panic|panicking|sync|collections|process|env|net|path|time)::|<.* as .*>::|::h[0-9a-f]{16}$|::\{\{?closure\}?\}/.test(name)) return "rust";
  if (/^(runtime|main|sync|net|syscall|internal|encoding|fmt|io|os|reflect)\.[\w(*]|^[\w.\-]+\.[a-z]+\/[\w\-./]+\.|\.\(\*\w+\)\./.test(name)) return "go";
  if (place === JIT) return "generated";
  if (name.includes("::") || /^operator|[<(].*[)>]$/.test(name)) return "c++";
  return "c";
}

// Codes of places, as /flame sends them.
export const USER = 1, KERNEL = 2, JIT = 3;
const PLACES: Record<Theme, Rgb[]> = {
  light: ["#dfe3e9", "#a5ccf0", "#f2ac77", "#efe08a"].map(rgb),
  dark: ["#3a4452", "#245180", "#934a1a", "#6a6015"].map(rgb),
};

// The fill of a frame. Equal names have equal shades, so that a function is recognisable.
export function frameFill(name: string, place: number, by: "place" | "language", theme: Theme): Rgb {
  const base = by === "language" && place !== 0 ? LANGUAGE_FILLS[theme][languageOf(name, place)] : PLACES[theme][place] ?? PLACES[theme][0]!;
  const shade = (hash(name) % 5 - 2) * 0.045;
  return shade >= 0 ? mix(base, theme === "light" ? rgb("#ffffff") : rgb("#000000"), shade * 2) : mix(base, theme === "light" ? rgb("#000000") : rgb("#ffffff"), -shade * 0.6);
}
export const placeFill = (place: number, theme: Theme): Rgb => PLACES[theme][place]!;
export const languageFill = (language: Language, theme: Theme): Rgb => LANGUAGE_FILLS[theme][language];

const MORE: Record<Theme, Rgb> = { light: rgb("#e8741c"), dark: rgb("#b9520a") };
const LESS: Record<Theme, Rgb> = { light: rgb("#5a9fe0"), dark: rgb("#2a6fb8") };
const EVEN: Record<Theme, Rgb> = { light: rgb("#e6e9ee"), dark: rgb("#333c48") };
// Colour of a change in share. Full strength if it is large relative to the frame and at least a hundredth of the total.
export function changeFill(now: number, baseline: number, theme: Theme): Rgb {
  const by = now - baseline;
  const strength = Math.abs(by) / Math.max(now, baseline, 1e-12) * Math.min(1, Math.abs(by) / 0.01);
  return mix(EVEN[theme], by > 0 ? MORE[theme] : LESS[theme], Math.min(1, strength));
}
