// The tooltip.
import { useLayoutEffect, useRef } from "preact/hooks";
import { cell, useCell } from "../cell.ts";

export const tip = cell<{ x: number; y: number; lines: string[] } | null>(null);

export function Tip() {
  const shown = useCell(tip);
  const ref = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const box = ref.current;
    if (!box || !shown) return;
    const { offsetWidth: width, offsetHeight: height } = box;
    const x = shown.x + 16 + width > innerWidth ? Math.max(4, shown.x - width - 12) : shown.x + 16;
    const y = shown.y + 18 + height > innerHeight ? Math.max(4, shown.y - height - 12) : shown.y + 18;
    box.style.transform = `translate(${x}px, ${y}px)`;
  });
  if (!shown) return null;
  return <div class="tip" ref={ref} role="presentation">{shown.lines.map((line, at) => <div key={at} class={at ? "" : "first"}>{line}</div>)}</div>;
}
