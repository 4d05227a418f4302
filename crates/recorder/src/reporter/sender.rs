//! Sends the oldest batches to the collector: one request at a time, with longer and longer pauses while it fails.

use crate::config::ReportConfig;
use anyhow::Context;
use coroner_report::WantedFile;
use coroner_report::reach::what_to_do;
use serde_json::Value;
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
/// Of an answer; a collector says some hundred bytes.
const MOST_ANSWERED: u64 = 64 << 10;
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

    /// Requests in a row that failed.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// How long to wait after a failure: twice as long each time, at random, so that a thousand nodes do not come back together.
    pub fn pause(&self, asked: Option<Duration>) -> Duration {
        let longest = SHORTEST_PAUSE.saturating_mul(1 << self.failures.min(10)).min(LONGEST_PAUSE);
        let pause = SHORTEST_PAUSE + (longest - SHORTEST_PAUSE.min(longest)).mul_f64(chance());
        // All who were told the same time would come at the same time: so between it and twice as long, or in the last minute of the
        // longest pause.
        let asked = asked.map(|asked| {
            let from = asked.min(LONGEST_PAUSE.mul_f64(0.8));
            from + (asked.saturating_mul(2).min(LONGEST_PAUSE) - from).mul_f64(chance())
        });
        asked.map_or(pause, |asked| pause.max(asked))
    }
}

/// Between 0 and 1.
pub fn chance() -> f64 {
    RandomState::new().hash_one(()) as f64 / u64::MAX as f64
}

fn judge(mut response: Response<ureq::Body>) -> Sent {
    let status = response.status();
    let later = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
    let later = later.map(Duration::from_secs);
    let said = said(&mut response);
    let json: Value = serde_json::from_str(&said).unwrap_or_default();
    let stranger = || format!("{} was answered, but not by a collector of coroner; is report.to one?", status.as_u16());
    if status.is_success() {
        // Each collector says how many batches it stored; the page of a hotel's network does not.
        return match json.get("batches") {
            Some(_) => Sent::Stored(wanted(&json)),
            None => Sent::Later(stranger(), later),
        };
    }
    let text = format!("the collector answered {}: {}", status.as_u16(), reason(&said));
    match status {
        // Also of a proxy, which will not take it either.
        StatusCode::PAYLOAD_TOO_LARGE => Sent::Refused(text),
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => match json.get("error") {
            Some(_) => Sent::Refused(text),
            None => Sent::Later(stranger(), later),
        },
        _ => Sent::Later(text, later),
    }
}

/// Whatever is odd about it, the batches are stored.
fn wanted(told: &Value) -> Vec<WantedFile> {
    let wanted = told.get("wanted").cloned().unwrap_or_default();
    serde_json::from_value(wanted).unwrap_or_default()
}

/// The beginning of an answer.
pub fn said(response: &mut Response<ureq::Body>) -> String {
    response.body_mut().with_config().limit(MOST_ANSWERED).read_to_string().unwrap_or_default()
}

/// The collector's reason and advice, from its JSON or as it is, in one short line.
pub fn reason(said: &str) -> String {
    let json: Value = serde_json::from_str(said).unwrap_or_default();
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
        let older = "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"batches\":1}";
        assert_eq!(sent(older).1, Sent::Stored(Vec::new()));
        let newer =
            "HTTP/1.1 200 OK\r\nContent-Length: 48\r\n\r\n{\"batches\":1,\"wanted\":[{\"incident\":7,\"part\":1}]}";
        assert_eq!(sent(newer).1, Sent::Stored(vec![WantedFile { incident: 7 }]));
        let odd = "HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n{\"batches\":1,\"wanted\":\"x\"}";
        assert_eq!(sent(odd).1, Sent::Stored(Vec::new()));
        let refused =
            sent("HTTP/1.1 400 Bad Request\r\nContent-Length: 31\r\n\r\n{\"error\":\"line 3: \\u001b\\\"x\\\"\"}").1;
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
    fn only_a_collector_acknowledges_or_refuses() {
        for answer in [
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n<html>Welcome!</html>",
            "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"mood\":\"ok\"}",
            "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\n[\"batches\"]",
            "HTTP/1.1 400 Bad Request\r\nContent-Length: 37\r\n\r\nplain HTTP was sent to the HTTPS port",
        ] {
            let sent = sent(answer).1;
            assert!(matches!(&sent, Sent::Later(why, None) if why.contains("is report.to one?")), "{answer}: {sent:?}");
        }
    }

    /// One that is older than the node, or has no store for the moment: the batch waits.
    #[test]
    fn a_collector_that_cannot_take_a_schema_yet_loses_nothing() {
        let older = "HTTP/1.1 426 Upgrade Required\r\nRetry-After: 60\r\nContent-Length: 41\r\n\r\n\
            {\"error\":\"the schema is newer than mine\"}";
        let away = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 41\r\n\r\n\
            {\"error\":\"the schema is newer than mine\"}";
        for (answer, after) in [(older, Some(Duration::from_secs(60))), (away, None)] {
            let sent = sent(answer).1;
            assert!(matches!(&sent, Sent::Later(why, given) if why.contains("newer") && *given == after), "{sent:?}");
        }
    }

    #[test]
    fn a_collector_cannot_send_a_node_away_for_more_than_five_minutes() {
        let link = Link::new(&ReportConfig::default(), "http://127.0.0.1:1", String::new()).unwrap();
        for failures in [0, 1, 9, u32::MAX] {
            let sender = Sender { link: link.clone(), failures };
            for asked in [0, 200, 250, 300, 86_400, u64::MAX] {
                let pauses: Vec<_> = (0..50).map(|_| sender.pause(Some(Duration::from_secs(asked)))).collect();
                let (first, last) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
                assert!(*last <= LONGEST_PAUSE && first.as_secs() >= asked.min(240), "{first:?} to {last:?}");
                assert!(asked == 0 || last.saturating_sub(*first) > Duration::from_secs(10), "they come together");
            }
        }
    }

    #[test]
    fn pauses_grow_and_stay_bounded() {
        let mut sender = Sender::new(Link::new(&ReportConfig::default(), "http://127.0.0.1:1", String::new()).unwrap());
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            assert!(matches!(sender.send(b"x"), Sent::Later(..)));
            let pause = sender.pause(None);
            assert!(pause >= SHORTEST_PAUSE && pause <= LONGEST_PAUSE, "{pause:?}");
            longest = longest.max(pause);
        }
        assert!(longest > SHORTEST_PAUSE * 4, "{longest:?}");
    }
}
