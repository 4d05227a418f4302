//! Sends the oldest batches to the collector: one request at a time, with longer and longer pauses while it fails.

use crate::config::ReportConfig;
use anyhow::Context;
use coroner_report::reach::what_to_do;
use coroner_report::{Acknowledged, WantedFile};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::WithBody;
use ureq::{Agent, RequestBuilder};

/// Also bounds how late the recorder stops.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const SHORTEST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
const MOST_ANSWERED: u64 = 4096;
const MOST_IN_FILE: usize = 1 << 20;

/// How a request ended.
#[derive(Debug, PartialEq)]
pub enum Sent {
    /// With the files that somebody asked for.
    Stored(Vec<WantedFile>),
    /// The collector will never take these batches.
    Refused(String),
    /// It may take them later; after this pause at the earliest, if it said so.
    Later(String, Option<Duration>),
}

/// How the collector is reached.
#[derive(Clone)]
pub struct Link {
    agent: Agent,
    /// Without a slash at its end.
    to: String,
    token: Option<PathBuf>,
    key: String,
}

impl Link {
    /// `key`: what this node proves itself with, so that no other one can speak for it.
    pub fn new(config: &ReportConfig, to: &str, key: String) -> anyhow::Result<Link> {
        let mut tls = TlsConfig::builder();
        if let Some(file) = &config.ca_file {
            tls = tls.root_certs(authorities(file)?);
        }
        // A proxy is taken from the environment: https_proxy, no_proxy and so on.
        let agent = Agent::config_builder()
            .tls_config(tls.build())
            .timeout_global(Some(ANSWER_WITHIN))
            .timeout_connect(Some(CONNECT_WITHIN))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("coroner/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        Ok(Link { agent, to: to.trim_end_matches('/').to_owned(), token: config.token_file.clone(), key })
    }

    /// A piece of the recording of an incident; see docs/fleet.md.
    pub fn put(&self, path: &str, query: &[(&str, &str)], body: &[u8]) -> anyhow::Result<Response<ureq::Body>> {
        let mut request = self.agent.put(format!("{}/api/v1/{path}", self.to));
        for (name, value) in query {
            request = request.query(name, value);
        }
        Ok(self.signed(request)?.send(body)?)
    }

    fn post(&self, path: &str, body: &[u8]) -> anyhow::Result<Response<ureq::Body>> {
        let request = self.agent.post(format!("{}/api/v1/{path}", self.to));
        let request = request.header("Content-Type", "application/x-ndjson").header("Content-Encoding", "zstd");
        Ok(self.signed(request)?.send(body)?)
    }

    fn signed(&self, request: RequestBuilder<WithBody>) -> anyhow::Result<RequestBuilder<WithBody>> {
        let request = request.header("Coroner-Node-Key", &self.key);
        // Read anew each time: tokens are rotated.
        let Some(file) = &self.token else { return Ok(request) };
        let token = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Ok(request.header("Authorization", format!("Bearer {}", token.trim())))
    }
}

pub struct Sender {
    link: Link,
    failures: u32,
}

impl Sender {
    pub fn new(link: Link) -> Sender {
        Sender { link, failures: 0 }
    }

    pub fn send(&mut self, body: &[u8]) -> Sent {
        let sent = match self.link.post("report", body) {
            Ok(response) => judge(response),
            Err(error) => {
                let error = format!("{error:#}");
                let what_to_do = what_to_do(&self.link.to, &error).map_or_else(String::new, |todo| format!(": {todo}"));
                Sent::Later(format!("{}: {error}{what_to_do}", self.link.to), None)
            }
        };
        match sent {
            Sent::Stored(_) | Sent::Refused(_) => self.failures = 0,
            Sent::Later(..) => self.failures = self.failures.saturating_add(1),
        }
        sent
    }

    /// How long to wait after a failure: twice as long each time, at random, so that a thousand nodes do not come back together.
    pub fn pause(&self, asked: Option<Duration>) -> Duration {
        let longest = SHORTEST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        let pause = SHORTEST_PAUSE + (longest - SHORTEST_PAUSE.min(longest)).mul_f64(chance());
        // All who were told the same time would come at the same time.
        asked.map_or(pause, |asked| pause.max(asked.min(LONGEST_PAUSE).mul_f64(1.0 + chance())))
    }
}

/// Between 0 and 1.
pub fn chance() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}

fn judge(mut response: Response<ureq::Body>) -> Sent {
    let status = response.status();
    if status.is_success() {
        let said = said(&mut response);
        // An older collector says less, and nothing that it could say makes the batch less stored.
        return Sent::Stored(serde_json::from_str(&said).map_or_else(|_| Vec::new(), |told: Acknowledged| told.wanted));
    }
    let later = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let text = format!("the collector answered {}: {}", status.as_u16(), reason(&said(&mut response)));
    match status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
            Sent::Refused(text)
        }
        _ => Sent::Later(text, later.map(Duration::from_secs)),
    }
}

/// The beginning of an answer.
pub fn said(response: &mut Response<ureq::Body>) -> String {
    response.body_mut().with_config().limit(MOST_ANSWERED).read_to_string().unwrap_or_default()
}

/// The collector's reason and advice, from its JSON or as it is, in one short line.
pub fn reason(said: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(said).unwrap_or_default();
    let text = match (json["error"].as_str(), json["what_to_do"].as_str()) {
        (Some(error), Some(what_to_do)) => format!("{error}: {what_to_do}"),
        (Some(error), None) => error.to_owned(),
        _ => said.to_owned(),
    };
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect()
}

fn authorities(file: &Path) -> anyhow::Result<RootCerts> {
    let cannot = || format!("report.ca_file {}", file.display());
    let pem = std::fs::read(file).with_context(cannot)?;
    anyhow::ensure!(pem.len() <= MOST_IN_FILE, "{}: larger than 1 MiB: not certificates", cannot());
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(cannot)? {
            found.push(certificate);
        }
    }
    anyhow::ensure!(!found.is_empty(), "{}: no certificate in it; expected PEM", cannot());
    Ok(RootCerts::from(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    /// Answers one request.
    fn collector(answer: &'static str) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // All of it, to the body: closing with unread input would reset the connection and could cost the client the answer.
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\nx") {
                let mut byte = [0];
                assert_eq!(stream.read(&mut byte).unwrap(), 1, "the request ended early");
                request.push(byte[0]);
            }
            let _ = stream.write_all(answer.as_bytes());
        });
        url
    }

    fn sent(answer: &'static str) -> (Sender, Sent) {
        let mut sender = Sender::new(Link::new(&ReportConfig::default(), &collector(answer), String::new()).unwrap());
        let sent = sender.send(b"x");
        (sender, sent)
    }

    #[test]
    fn the_answer_decides_what_becomes_of_a_batch() {
        assert_eq!(sent("HTTP/1.1 204 No Content\r\n\r\n").1, Sent::Stored(Vec::new()));
        let older = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"batches\":1}";
        assert_eq!(sent(older).1, Sent::Stored(Vec::new()));
        let newer =
            "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"wanted\":[{\"incident\":7,\"part\":1}],\"mood\":\"good\"}";
        assert_eq!(sent(newer).1, Sent::Stored(vec![WantedFile { incident: 7 }]));
        let refused =
            sent("HTTP/1.1 400 Bad Request\r\nContent-Length: 28\r\n\r\n{\"error\":\"line 3: \\u001b\\\"x\\\"\"}").1;
        assert!(matches!(&refused, Sent::Refused(why) if why.contains("400")), "{refused:?}");
        let (sender, busy) = sent("HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
        assert!(matches!(busy, Sent::Later(_, Some(after)) if after.as_secs() == 7), "{busy:?}");
        for _ in 0..100 {
            let pause = sender.pause(Some(Duration::from_secs(7))).as_secs_f64();
            assert!((7.0..=14.0).contains(&pause), "{pause}");
        }
        let wrong_token = sent("HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n").1;
        assert!(matches!(wrong_token, Sent::Later(..)), "a token may be corrected: {wrong_token:?}");
    }

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut sender = Sender::new(Link::new(&ReportConfig::default(), "http://127.0.0.1:1", String::new()).unwrap());
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            assert!(matches!(sender.send(b"x"), Sent::Later(..)));
            let pause = sender.pause(None);
            assert!(pause >= SHORTEST_PAUSE && pause <= LONGEST_PAUSE + SHORTEST_PAUSE, "{pause:?}");
            longest = longest.max(pause);
        }
        assert!(longest > SHORTEST_PAUSE * 4, "{longest:?}");
    }
}
