//! /metrics for Prometheus: the state of the node and of the recorder, served on loopback by `coroner-http`.
//! [`text`] turns a [`Status`] into the text format.

mod text;

use crate::status::Status;
use anyhow::Context;
use coroner_http::{Answer, Api, ApiQuery, Asset, Refusal, Running, ServerOptions};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use text::Format;

/// A scraper or two, and a person with curl.
const CONNECTIONS: usize = 16;

const PAGE: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>coroner</title></head>\n<body><h1>coroner \
record</h1>\n<p><a href=\"/metrics\">/metrics</a> for Prometheus</p></body></html>\n";

struct Metrics(Arc<Mutex<Status>>);

impl Api for Metrics {
    fn asset(&self, name: &str) -> Option<Asset> {
        let body = PAGE.as_bytes().into();
        (name == "index.html").then_some(Asset { body, content_type: "text/html; charset=utf-8", is_immutable: false })
    }

    fn version(&self, _: &ApiQuery) -> Option<u64> {
        None
    }

    fn is_light(&self, _: &ApiQuery) -> bool {
        true
    }

    fn answer(&self, ask: &ApiQuery) -> Result<Answer, Refusal> {
        if ask.path != "metrics" {
            return Err(Refusal::absent(format!("there is no {:?}", ask.path), "only /metrics is served here"));
        }
        let is_open = ask.accept.contains("application/openmetrics-text");
        let format = if is_open { Format::OpenMetrics } else { Format::Plain };
        // Copied under the lock, formatted outside of it.
        let status = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Answer::of(format.content_type(), text::metrics(status, format)))
    }
}

/// Serves until it is dropped.
pub fn serve(listen: SocketAddr, status: Arc<Mutex<Status>>) -> anyhow::Result<Running> {
    let listener = TcpListener::bind(listen)
        .with_context(|| format!("metrics.listen: cannot listen on {listen} (choose another port, or \"off\")"))?;
    // Any user on this node may read them: the scraper runs as another one.
    let (names, users) = (Vec::new(), Vec::new());
    let options = ServerOptions { name: "metrics", token: None, names, users, connections: CONNECTIONS, heavy: 1 };
    Ok(coroner_http::serve(listener, Arc::new(Metrics(status)), options)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn start() -> Running {
        serve(([127, 0, 0, 1], 0).into(), Arc::default()).unwrap()
    }

    fn ask(server: &Running, request: &str) -> String {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(format!("{request}\r\nConnection: close\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_are_served() {
        let server = start();
        let answer = ask(&server, "GET /metrics?name[]=a HTTP/1.1\r\nHost: localhost:9478");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
        assert!(body.contains("coroner_build_info{"), "{body}");
        let open = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text;version=1.0.0";
        assert!(ask(&server, open).ends_with("# EOF\n"));
        assert!(ask(&server, "GET / HTTP/1.1\r\nHost: [::1]:9478").contains("/metrics</a>"));
        assert!(ask(&server, "GET /metrics HTTP/1.0").starts_with("HTTP/1.1 200 "));
        assert!(ask(&server, "GET /metric HTTP/1.1\r\nHost: localhost").starts_with("HTTP/1.1 404 "));
        assert!(ask(&server, "GET /metrics HTTP/1.1\r\nHost: evil.example").starts_with("HTTP/1.1 421 "));
    }

    #[test]
    fn a_port_in_use_is_a_clear_error() {
        let server = start();
        let error = serve(server.address, Arc::default()).err().unwrap();
        let text = format!("{error:#}");
        assert!(text.contains(&server.address.to_string()) && text.contains("another port"), "{text}");
    }
}
