// The recording of an incident: brought from its node, then opened in the node's own page.
import { useEffect, useRef, useState } from "preact/hooks";
import { address, ApiError } from "../api/fetch.ts";
import { ago, plain, secondsOf } from "./words.ts";

const ASKS_EVERY = 2000;

export interface Fetched { state: string; incident_state: string; bytes: number | null; of: number | null; last_seen: string; is_silent: boolean }

const MIB = 1 << 20;

// What to say while it is not here; `over`: nothing will come.
export function word(fetched: Fetched, now: number): { text: string; over: boolean } {
  switch (fetched.state) {
    case "receiving": return { text: `${((fetched.bytes ?? 0) / MIB).toFixed(1)} of ${((fetched.of ?? 0) / MIB).toFixed(1)} MiB`, over: false };
    case "refused": return { text: "the node does not send recordings (its configuration: report.files)", over: true };
    case "gone": return { text: "the node no longer has this recording", over: true };
    case "too large": return { text: `too large for the collector (${Math.round((fetched.of ?? 0) / MIB)} MiB): copy it from the node`, over: true };
    default:
      if (fetched.is_silent) return { text: `the node is silent: last heard of ${ago(now - secondsOf(fetched.last_seen))} ago`, over: true };
      return { text: fetched.incident_state === "open" ? "waiting until the node has completed the incident" : "waiting for the node's next report, a minute at most", over: false };
  }
}

export function Recording({ node, number }: { node: string; number: number }) {
  const [said, say] = useState<{ text: string; busy: boolean }>({ text: "", busy: false });
  const ended = useRef(false), timer = useRef(0);
  useEffect(() => () => { ended.current = true; clearTimeout(timer.current); }, []);
  const place = `nodes/${encodeURIComponent(node)}/incidents/${number}/fetch`;
  const ask = async (method: string): Promise<void> => {
    try {
      const answer = await fetch(address(place), { method, credentials: "same-origin" });
      const body = await answer.json().catch(() => null);
      if (!answer.ok || body === null) throw new ApiError(answer.status, body?.error ?? `The server returned status ${answer.status}.`, body?.what_to_do ?? "");
      if (ended.current) return;
      if (body.state === "stored") { location.assign(`incidents/${encodeURIComponent(node)}/${number}/`); say({ text: "", busy: false }); return; }
      const { text, over } = word(body, Date.now() / 1000);
      say({ text, busy: !over });
      if (!over) timer.current = window.setTimeout(() => ask(body.state === "unwanted" ? "POST" : "GET"), ASKS_EVERY);
    } catch (error) {
      if (!ended.current) say({ text: error instanceof Error ? plain(error.message) : String(error), busy: false });
    }
  };
  return (
    <><button class="link" disabled={said.busy} title="Brings the recording from the node, and opens it in the node's page" onClick={() => { say({ text: "", busy: true }); void ask("POST"); }}>open its recording</button>
      {said.text && <span class="muted" role="status"> {said.text}</span>}</>
  );
}
