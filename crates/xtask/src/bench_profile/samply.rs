//! samply as a peer that names functions.
//!
//! `samply import` of 0.13.1 names kernel functions and leaves those of programs to its server, which its page asks
//! (`--unstable-presymbolicate` is for `record`; `import` ignores it). So we ask its server like the page, once for every
//! unnamed address of the imported profile. The server gets a profile with only the list of files: reading its own output back is
//! not part of naming.

use super::peers::{Cost, ended};
use crate::child::Ended;
use anyhow::{Context, bail};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A hanging server must not stop the benchmark.
const PATIENCE: Duration = Duration::from_secs(120);

/// The request for all names of one profile.
pub struct Naming {
    samply: PathBuf,
    /// Its download directory (nothing is downloaded), instead of the home directory.
    cache: PathBuf,
    /// The profile without its samples.
    files: PathBuf,
    question: String,
    pub places: usize,
}

impl Naming {
    /// From the output of `samply import` (plain JSON).
    pub fn of(samply: &Path, profile: &Path, scratch: &Path) -> anyhow::Result<Naming> {
        let profile: Value = serde_json::from_slice(&std::fs::read(profile)?).context("the output of samply import")?;
        let unnamed = unnamed(&profile).context("the output of samply import is not that of 0.13.1")?;
        let libs = profile["libs"].as_array().context("no libs")?;
        let (mut map, mut places) = (Vec::new(), Vec::new());
        for (lib, addresses) in &unnamed {
            let about = libs.get(*lib as usize).context("a library that is not listed")?;
            places.extend(addresses.iter().map(|address| json!([map.len(), address])));
            map.push(json!([about["debugName"], about["breakpadId"]]));
        }
        let files = scratch.join("files.json");
        std::fs::write(&files, json!({ "libs": libs }).to_string())?;
        let question = json!({ "jobs": [{ "memoryMap": map, "stacks": [places] }] }).to_string();
        let cache = scratch.join("cache");
        Ok(Naming { samply: samply.to_owned(), cache, files, question, places: places.len() })
    }

    /// The server's cost for all names, and how many it knew.
    pub fn cost(&self) -> anyhow::Result<(Cost, usize)> {
        let begun = Instant::now();
        let child = Command::new(&self.samply)
            .arg("load")
            .arg(&self.files)
            .args(["--no-open", "--port", "3000+"])
            .env("XDG_CACHE_HOME", &self.cache)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("samply cannot be started")?;
        let mut server = Ended::by(Signal::INT, child);
        let mut line = String::new();
        let stdout = server.child.stdout.take().context("no output")?;
        let mut stdout = BufReader::new(stdout);
        stdout.read_line(&mut line)?;
        let answer = ask(&line, &self.question)?;
        server.signal();
        let cost = ended(&server.child, begun, "samply load")?;
        let answer: Value = serde_json::from_slice(&answer).context("samply's answer")?;
        let frames = answer["results"][0]["stacks"][0].as_array().context("samply's answer has no stack")?;
        Ok((cost, frames.iter().filter(|frame| frame["function"].is_string()).count()))
    }
}

/// Addresses without a name, by library.
fn unnamed(profile: &Value) -> Option<BTreeMap<u64, BTreeSet<u64>>> {
    let mut unnamed: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for thread in profile["threads"].as_array()? {
        let frames = &thread["frameTable"];
        let (addresses, functions) = (frames["address"].as_array()?, frames["func"].as_array()?);
        let names = frames["nativeSymbol"].as_array()?;
        let (resources, libs) =
            (thread["funcTable"]["resource"].as_array()?, thread["resourceTable"]["lib"].as_array()?);
        for ((address, function), name) in addresses.iter().zip(functions).zip(names) {
            let resource = resources.get(function.as_u64()? as usize)?.as_u64();
            let lib = resource.and_then(|resource| libs.get(resource as usize)).and_then(Value::as_u64);
            if let (Some(address), Some(lib), true) = (address.as_u64(), lib, name.is_null()) {
                unnamed.entry(lib).or_default().insert(address);
            }
        }
    }
    Some(unnamed)
}

/// `line` is the address of samply's page: `…/?symbolServer=http%3A%2F%2F127.0.0.1%3A3000%2FTOKEN`.
fn ask(line: &str, question: &str) -> anyhow::Result<Vec<u8>> {
    let server =
        line.trim().split_once("symbolServer=").map(|(_, server)| server.replace("%3A", ":").replace("%2F", "/"));
    let server = server.as_deref().and_then(|server| server.strip_prefix("http://")?.split_once('/'));
    let Some((address, token)) = server else { bail!("samply load said {line:?}") };
    let mut stream = TcpStream::connect(address).with_context(|| format!("samply's server at {address}"))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(
        stream,
        "POST /{token}/symbolicate/v5 HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{question}",
        question.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let at = answer.windows(4).position(|four| four == b"\r\n\r\n").context("samply's server did not answer")?;
    let body = answer.split_off(at + 4);
    let head = String::from_utf8_lossy(&answer);
    if !head.starts_with("HTTP/1.1 200") || head.to_lowercase().contains("transfer-encoding: chunked") {
        bail!("samply's server answered {}", head.lines().next().unwrap_or_default());
    }
    Ok(body)
}
