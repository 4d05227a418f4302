//! A real server and real requests.

use super::ms;
use crate::child::Ended;
use anyhow::{Context, bail};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    _child: Ended,
    address: String,
}

/// An answer.
pub struct Got {
    pub path: String,
    /// From the first byte of the request to the last of the answer.
    pub time: Duration,
    pub body: Vec<u8>,
    pub bytes: usize,
}

impl Got {
    /// The value of a field of the document.
    pub fn said(&self, field: &str) -> String {
        let document: Option<serde_json::Value> = serde_json::from_slice(&self.body).ok();
        let value = document.map_or(serde_json::Value::Null, |document| document[field].clone());
        format!(" ({field} {value}, {} samples, {:.0} KB)", samples(&self.body), self.bytes as f64 / 1e3)
    }

    pub fn size(&self) -> String {
        format!(" ({:.0} KB)", self.bytes as f64 / 1e3)
    }
}

fn samples(body: &[u8]) -> u64 {
    let document: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    document.and_then(|document| document["source"]["selected"].as_u64()).unwrap_or(0)
}

impl Server {
    /// Started and listening.
    pub fn start(coroner: &Path, path: &Path) -> anyhow::Result<Server> {
        let mut child = Command::new(coroner)
            .arg("view")
            .arg(path)
            .args(["--no-open", "--listen", "127.0.0.1:0", "--no-symbols"])
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| coroner.display().to_string())?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("http://").and_then(|rest| rest.strip_suffix('/'));
        let child = Ended::by(Signal::KILL, child);
        let address = address.with_context(|| format!("coroner view said {line:?}"))?.to_owned();
        Ok(Server { _child: child, address })
    }

    pub fn get(&self, path: &str) -> anyhow::Result<Got> {
        let got = self.ask(path)?;
        match got.1 {
            200 => Ok(got.0),
            status => bail!("{path}: {status}: {}", String::from_utf8_lossy(&got.0.body)),
        }
    }

    /// With its status. Uncompressed, so that decompression is not measured.
    pub fn ask(&self, path: &str) -> anyhow::Result<(Got, u16)> {
        let began = Instant::now();
        let mut stream = TcpStream::connect(&self.address)?;
        stream.set_nodelay(true)?;
        write!(stream, "GET /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut response = Vec::new();
        stream.read_to_end(&mut response)?;
        let time = began.elapsed();
        let end = response.windows(4).position(|four| four == b"\r\n\r\n").context("no answer")?;
        let head = String::from_utf8_lossy(&response[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).context("no status")?;
        let body = response.split_off(end + 4);
        let bytes = body.len();
        Ok((Got { path: path.split('?').next().unwrap_or_default().to_owned(), time, body, bytes }, status))
    }

    /// Concurrently, with the time of each.
    pub fn get_together(&self, paths: &[&str]) -> anyhow::Result<Vec<Got>> {
        std::thread::scope(|scope| {
            let asked: Vec<_> = paths.iter().map(|path| scope.spawn(move || self.get(path))).collect();
            asked.into_iter().map(|got| got.join().unwrap_or_else(|_| bail!("a client panicked"))).collect()
        })
    }

    /// The answer with the median time of several turns, each on a new server that has answered /source.
    pub fn median_of(
        coroner: &Path,
        path: &Path,
        turns: u32,
        ask: impl Fn(&Server, u32) -> anyhow::Result<Got>,
    ) -> anyhow::Result<Got> {
        let mut got = Vec::new();
        for turn in 0..turns {
            let server = Server::start(coroner, path)?;
            server.get("source")?;
            got.push(ask(&server, turn)?);
        }
        got.sort_by_key(|got| got.time);
        let middle = got.len() / 2;
        eprintln!("  {}: {}", got[middle].path, got.iter().map(|got| ms(got.time)).collect::<Vec<_>>().join(", "));
        Ok(got.swap_remove(middle))
    }
}
