//! `coroner fleet fetch`

use super::{ago, print};
use crate::answers::{Fetch, called};
use crate::args::FetchArgs;
use crate::client::{self, encoded, parse};
use crate::files::hex;
use crate::ingest::{fools, printable};
use crate::save::{Existing, must_be_free, save};
use anyhow::{Context, bail, ensure};
use coroner_report::Wall;
use ring::digest;
use serde_json::json;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

const ASKS_EVERY: Duration = Duration::from_secs(1);
/// Between two words on how far it is.
const TELLS_EVERY: Duration = Duration::from_secs(5);
const MIB: f64 = (1 << 20) as f64;

pub fn run(args: &FetchArgs) -> anyhow::Result<()> {
    let (node, number) = &args.incident;
    let usual = || PathBuf::from(format!("{}-{number}.coroner", file_name(node)));
    let output = args.output.clone().unwrap_or_else(usual);
    must_be_free(&output, Existing::Keep)?;
    let path = format!("nodes/{}/incidents/{number}", encoded(node));
    let stored = wait(args, &format!("{path}/fetch"))?;
    let bytes = download(args, &format!("{path}/file"), &output)?;
    let document = json!({
        "schema": stored.schema, "id": stored.id, "host": stored.host, "state": stored.state, "file": output, "bytes": bytes,
        "sha256": stored.sha256,
    });
    match args.at.json {
        true => print(&format!("{document}\n")),
        false => print(&format!(
            "{:.1} MiB written to {}; read it with: coroner diagnose --from {}\n",
            bytes as f64 / MIB,
            output.display(),
            output.display()
        )),
    }
}

/// A name that cannot lead elsewhere.
fn file_name(node: &str) -> String {
    let name: String = node.chars().map(|c| if c == '/' || fools(c) { '_' } else { c }).take(100).collect();
    name.trim_start_matches('.').to_owned()
}

/// Until the collector has it.
fn wait(args: &FetchArgs, path: &str) -> anyhow::Result<Fetch> {
    let mut fetch: Fetch = parse(&client::post(&args.at, path)?)?;
    let (mut moved, mut told) = (Instant::now(), None);
    loop {
        decided(&fetch)?;
        if fetch.state == "stored" {
            return Ok(fetch);
        }
        if moved.elapsed() >= args.timeout {
            bail!("{}", timed_out(args, &fetch));
        }
        if told.is_none_or(|at: Instant| at.elapsed() >= TELLS_EVERY && fetch.state == "receiving") {
            eprintln!("coroner fleet: {}", how_far(&fetch));
            told = Some(Instant::now());
        }
        std::thread::sleep(ASKS_EVERY);
        let next = match asked_again(args, path) {
            Ok(next) => next,
            // The collector is being restarted, perhaps.
            Err(_) if moved.elapsed() < args.timeout => continue,
            Err(error) => return Err(error),
        };
        if (&next.state, next.bytes, &next.incident_state) != (&fetch.state, fetch.bytes, &fetch.incident_state) {
            moved = Instant::now();
            told = told.filter(|_| next.state == fetch.state);
        }
        fetch = next;
    }
}

fn asked_again(args: &FetchArgs, path: &str) -> anyhow::Result<Fetch> {
    let fetch: Fetch = parse(&client::ask(&args.at, path, &[])?)?;
    // A collector that was restarted does not remember what was wanted.
    if fetch.state == "unwanted" { parse(&client::post(&args.at, path)?) } else { Ok(fetch) }
}

fn name_of(fetch: &Fetch) -> String {
    let node = fetch.id.rsplit_once('/').map_or(fetch.id.as_str(), |(node, _)| node);
    printable(called(node, fetch.host.as_deref()))
}

/// Fails if there is nothing to wait for.
fn decided(fetch: &Fetch) -> anyhow::Result<()> {
    let node = name_of(fetch);
    match fetch.state.as_str() {
        "refused" => {
            bail!("{node} does not send recordings: its configuration says report.files = false (--report-no-files)")
        }
        "gone" => bail!(
            "{node} no longer has this recording (its incidents.max_size lets the oldest go first), and it was not fetched before or was removed \
             here since (--files-max, --keep-files of the collector)"
        ),
        "too large" => bail!(
            "the recording is too large for the collector ({:.0} MiB): copy it from {node}: coroner export --incident",
            fetch.of.unwrap_or_default() as f64 / MIB
        ),
        "waiting" if fetch.is_silent => bail!(
            "{node} is silent: its last report came {} ago. Ask again when it reports",
            ago(fetch.last_seen, Wall::from(SystemTime::now()))
        ),
        _ => Ok(()),
    }
}

fn how_far(fetch: &Fetch) -> String {
    let node = name_of(fetch);
    match (fetch.state.as_str(), fetch.bytes, fetch.of) {
        ("receiving", Some(bytes), Some(of)) => {
            format!("{:.1} of {:.1} MiB from {node}", bytes as f64 / MIB, of as f64 / MIB)
        }
        _ if fetch.incident_state == "open" => format!("waiting until {node} has completed the incident"),
        _ => format!("waiting for the next report of {node}"),
    }
}

fn timed_out(args: &FetchArgs, fetch: &Fetch) -> String {
    let node = name_of(fetch);
    let last = ago(fetch.last_seen, Wall::from(SystemTime::now()));
    let within = args.timeout.as_secs();
    match fetch.state.as_str() {
        "receiving" => format!("nothing came from {node} for {within} s; what came is kept for a day: ask again"),
        _ => format!(
            "{node} did not answer within {within} s; its last report came {last} ago. An older version of coroner there sends no recordings"
        ),
    }
}

/// Compared with the checksum that the node sent.
fn download(args: &FetchArgs, path: &str, output: &std::path::Path) -> anyhow::Result<u64> {
    let answer = client::open(&args.at, path, &[])?;
    let expected = answer.headers().get("coroner-sha256").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let expected = expected.context("the collector sent no checksum; is it of this version?")?;
    let mut body = answer.into_body();
    save(output, Existing::Keep, |file| {
        let mut context = digest::Context::new(&digest::SHA256);
        let (mut bytes, mut buffer) = (0, vec![0; 256 << 10]);
        loop {
            match body.read(&mut buffer).context("the connection broke")? {
                0 => break,
                read => {
                    context.update(&buffer[..read]);
                    file.write_all(&buffer[..read])?;
                    bytes += read as u64;
                }
            }
        }
        let actual = hex(context.finish().as_ref());
        ensure!(
            actual == expected,
            "what came is not what was sent: its checksum is {actual} instead of {}",
            printable(&expected)
        );
        Ok(bytes)
    })
}
