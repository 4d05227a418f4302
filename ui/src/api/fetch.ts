// Requests to the server. Answers are cached, so that going back and forth costs nothing.
import { useEffect, useRef, useState } from "preact/hooks";

export class ApiError extends Error {
  constructor(readonly status: number, message: string, readonly whatToDo: string) { super(message); }
}

// What to do when nobody answers.
export const advice = { unreachable: "Is `coroner view` still running? If you came through ssh -L, is that connection still open?" };

export type Parameters = Record<string, string | number | undefined | null>;

// Relative: a collector serves a node's page below an address of its own.
export function address(path: string, parameters: Parameters = {}): string {
  const query = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "")
    .map(([name, value]) => `${name}=${encodeURIComponent(value!)}`).join("&");
  return `api/v1/${path}${query ? `?${query}` : ""}`;
}

const KEPT = 60;
const kept = new Map<string, unknown>();
// Concurrent requests for the same URL share one fetch; it is aborted only when all callers gave up.
const asked = new Map<string, { answer: Promise<unknown>; abort: AbortController; wanted: number }>();

// Answers are outdated once a live source has grown.
export function forget(): void { kept.clear(); }

export async function get<T>(url: string, signal?: AbortSignal): Promise<T> {
  if (kept.has(url)) return kept.get(url) as T;
  let one = asked.get(url);
  if (!one) {
    const abort = new AbortController();
    one = { answer: load<T>(url, abort.signal).finally(() => { if (asked.get(url) === one) asked.delete(url); }), abort, wanted: 0 };
    asked.set(url, one);
  }
  const own = one;
  own.wanted++;
  signal?.addEventListener("abort", () => { if (--own.wanted === 0) { own.abort.abort(); if (asked.get(url) === own) asked.delete(url); } }, { once: true });
  return own.answer as Promise<T>;
}

async function load<T>(url: string, signal: AbortSignal): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(url, { signal, credentials: "same-origin", headers: { accept: "application/json" } });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError(0, "The server does not respond.", advice.unreachable);
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new ApiError(answer.status, body?.error ?? `The server returned status ${answer.status}.`, body?.what_to_do ?? "");
  if (body === null) throw new ApiError(answer.status, "The server's answer is not JSON.", "Reload the page. If that does not help, page and server have different versions.");
  kept.set(url, body);
  if (kept.size > KEPT) kept.delete(kept.keys().next().value!);
  return body as T;
}

export interface Answer<T> { data: T | null; error: ApiError | null; loading: boolean; url: string | null }

// The newest answer for `url`; while a new one is loading, the last one stays (`loading` is set). `wait` in milliseconds lets a
// gesture end before the request.
export function useApi<T>(url: string | null, wait = 0, generation = 0): Answer<T> {
  const [answer, setAnswer] = useState<Answer<T>>({ data: null, error: null, loading: url !== null, url: null });
  const asked = useRef<string | null>(null);
  useEffect(() => {
    asked.current = url;
    if (url === null) { setAnswer({ data: null, error: null, loading: false, url }); return; }
    if (kept.has(url)) { setAnswer({ data: kept.get(url) as T, error: null, loading: false, url }); return; }
    const abort = new AbortController();
    setAnswer(last => ({ ...last, loading: true }));
    const timer = setTimeout(() => get<T>(url, abort.signal).then(
      data => { if (asked.current === url) setAnswer({ data, error: null, loading: false, url }); },
      error => {
        if (abort.signal.aborted || asked.current !== url) return;
        setAnswer({ data: null, error: error instanceof ApiError ? error : new ApiError(0, String(error), ""), loading: false, url });
      }), wait);
    return () => { clearTimeout(timer); abort.abort(); };
  }, [url, generation]);
  // The URL has changed since: mark the shown answer as stale at once.
  return answer.url === url ? answer : { ...answer, loading: url !== null };
}
