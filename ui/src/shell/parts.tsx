// Small parts that all views use.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { ApiError } from "../api/fetch.ts";
import type { Evidence, Severity, Unseen } from "../api/types.ts";

export function Failure({ error, children }: { error: ApiError; children?: ComponentChildren }) {
  return <div class="failure" role="alert"><p><b><Words text={error.message} /></b></p>{error.whatToDo && <p><Words text={error.whatToDo} /></p>}{children}</div>;
}

export const Waiting = ({ what, tall = false }: { what: string; tall?: boolean }) => <div class={`waiting ${tall ? "tall" : ""}`} role="status"><span class="pulse" aria-hidden="true" />{what} …</div>;

export const Badge = ({ severity }: { severity: Severity | string }) => <span class={`badge ${severity}`}>{severity}</span>;

// Text of findings: parts in backticks are commands.
export function Words({ text, copy = false }: { text: string; copy?: boolean }) {
  return <>{text.split("`").map((part, at) => at % 2 === 0 ? part : copy ? <Command key={at} text={part} /> : <code key={at}>{part}</code>)}</>;
}

export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const take = () => {
    const done = () => { setCopied(true); setTimeout(() => setCopied(false), 1500); };
    // The clipboard needs https or localhost; the text can also be selected by hand.
    navigator.clipboard?.writeText(text).then(done, () => undefined);
  };
  return <span class="command"><code>{text}</code><button onClick={take} aria-label={`Copy ${text}`} title="Copy">{copied ? "copied" : "copy"}</button></span>;
}

export function Evidences({ of }: { of: Evidence[] }) {
  if (!of.length) return null;
  return (
    <table class="evidence">
      <thead><tr><th scope="col">what</th><th scope="col">value</th><th scope="col">where</th></tr></thead>
      <tbody>{of.map((row, at) => <tr key={at}><td>{row.what}</td><td class="value">{value(row)}</td><td class="mono source">{row.source}</td></tr>)}</tbody>
    </table>
  );
}

const value = (row: Evidence): string => {
  const text = typeof row.value === "number" ? Number.isInteger(row.value) ? row.value.toLocaleString("en") : String(Number(row.value.toPrecision(4))) : row.value;
  return row.unit ? `${text} ${row.unit}` : text;
};

export function NotSeen({ of }: { of: Unseen[] }) {
  if (!of.length) return null;
  return (
    <details class="fold"><summary>Not seen <span class="count">{of.length}</span></summary>
      <ul class="plain">{of.map((one, at) => <li key={at}><b>{one.what}</b>: <Words text={one.why} />{one.how_to_see && <span class="muted"> To see it: <Words text={one.how_to_see} /></span>}</li>)}</ul>
    </details>
  );
}

export const bytes = (value: number | null | undefined): string => {
  if (value === null || value === undefined) return "?";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0, left = value;
  while (left >= 1024 && at < units.length - 1) { left /= 1024; at++; }
  return `${at && left < 100 ? left.toFixed(1) : Math.round(left)} ${units[at]}`;
};
export const basename = (path: string): string => path.replace(/\/+$/, "").split("/").pop() || path;
export const count = (value: number | null | undefined): string => value === null || value === undefined ? "?" : value.toLocaleString("en");
export const rate = (perHour: number | null | undefined): string => perHour === null || perHour === undefined ? "?" : perHour >= 3600 ? `${(perHour / 3600).toFixed(1)} a second` : perHour >= 60 ? `${(perHour / 60).toFixed(1)} a minute` : `${Math.round(perHour)} an hour`;
export const when = (time: string | null | undefined): string => time ? time.replace("T", " ").replace(/(\.\d)\d*Z$/, "$1").replace(/Z$/, "") + " UTC" : "?";
