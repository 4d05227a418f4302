// Dark or light: the system's preference unless the user chose.
import { useEffect, useState } from "preact/hooks";
import type { Theme } from "./colour.ts";

const KEY = "coroner-theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen: Theme | null = null;
try { const kept = localStorage.getItem(KEY); if (kept === "dark" || kept === "light") chosen = kept; } catch { /* storage is disabled */ }

const listeners = new Set<() => void>();
// The applied theme: page and canvases switch together, even if the system's preference changes during a draw.
let current: Theme = "light";
export const theme = (): Theme => current;

function apply(): void {
  current = chosen ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.theme = current;
  listeners.forEach(tell => tell());
}
dark.addEventListener("change", apply);
apply();

export function turn(): void {
  chosen = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem(KEY, chosen); } catch { /* for this visit only */ }
  apply();
}

export function useTheme(): Theme {
  const [value, set] = useState(theme());
  useEffect(() => {
    const tell = () => set(theme());
    listeners.add(tell);
    tell();
    return () => { listeners.delete(tell); };
  }, []);
  return value;
}

export const calm = (): boolean => matchMedia("(prefers-reduced-motion: reduce)").matches;
