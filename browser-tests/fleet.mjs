// The real collector with nodes that the test invents, and its page.
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { repository } from "./browser.mjs";

const program = process.env.CORONER_FLEET_PROGRAM ?? join(repository, "target", "release", "coroner-fleet");

// Starts a collector on its own port, in a directory of its own; close() stops it and removes that.
export async function collect() {
  const dir = mkdtempSync(join(tmpdir(), "coroner-fleet-page-"));
  const child = spawn(program, ["serve", "--dir", dir, "--listen", "127.0.0.1:0"], { stdio: ["ignore", "pipe", "pipe"] });
  let said = "";
  try {
    await new Promise((resolve, reject) => {
      const hear = data => { said += data; if (/coroner fleet status/.test(said)) resolve(); };
      child.stdout.on("data", hear);
      child.stderr.on("data", hear);
      child.on("exit", code => reject(new Error(`coroner-fleet ended with ${code}: ${said}`)));
      child.on("error", reject);
    });
  } catch (error) {
    rmSync(dir, { recursive: true, force: true });
    throw error;
  }
  const origin = /^at (http:\/\/\S+);/m.exec(said)[1];
  const read = name => readFileSync(join(dir, name), "utf8").trim();
  const close = async () => {
    const ended = new Promise(resolve => { child.removeAllListeners("exit"); child.on("exit", resolve); });
    child.kill("SIGTERM");
    await ended;
    rmSync(dir, { recursive: true, force: true });
  };
  return { url: `${origin}/`, port: Number(new URL(origin).port), said, token: read("user.token"), agents: read("agent.token"), close };
}

// A zstd frame without compression: Node 18 has no zstd.
export function packed(lines) {
  const body = Buffer.from(lines.map(line => JSON.stringify(line) + "\n").join("")), most = 128 * 1024;
  const head = Buffer.alloc(9);
  head.writeUInt32LE(0xfd2fb528, 0);
  head.writeUInt8(0xa0, 4);
  head.writeUInt32LE(body.length, 5);
  const parts = [head];
  for (let at = 0; at < body.length; at += most) {
    const block = body.subarray(at, at + most), size = Buffer.alloc(3);
    size.writeUIntLE(block.length << 3 | (at + most >= body.length ? 1 : 0), 0, 3);
    parts.push(size, block);
  }
  return Buffer.concat(parts);
}

export async function report(collector, node, rows) {
  const answer = await fetch(`${collector.url}api/v1/report`, { method: "POST", body: packed(rows),
    headers: { authorization: `Bearer ${collector.agents}`, "coroner-node-key": `key of ${node}` } });
  if (!answer.ok) throw new Error(`${node}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

// Sends a file as a node does that was told it is wanted.
export async function send(collector, node, incident, file) {
  const bytes = readFileSync(file), sha256 = createHash("sha256").update(bytes).digest("hex"), most = 256 * 1024;
  for (let offset = 0; offset < bytes.length; offset += most) {
    const asked = new URLSearchParams({ node, size: bytes.length, offset, sha256 });
    const answer = await fetch(`${collector.url}api/v1/incidents/${incident}/file?${asked}`, { method: "PUT", body: bytes.subarray(offset, offset + most),
      headers: { authorization: `Bearer ${collector.agents}`, "coroner-node-key": `key of ${node}` } });
    if (!answer.ok) throw new Error(`${node}: ${answer.status} ${await answer.text()}`);
  }
}

export const ns = seconds => Math.round(seconds) * 1e9;
