//! The little of HTTP/1.1 (RFC 9112) that a scraper and a curious person need.

use super::text::{self, Format};
use crate::status::Status;
use std::net::IpAddr;

/// Longer ones are no scraper's.
pub const LONGEST_HEAD: usize = 8 << 10;

const PAGE: &str = "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>coroner</title></head>\n<body><h1>coroner \
record</h1>\n<p><a href=\"/metrics\">/metrics</a> for Prometheus</p></body></html>\n";

/// Where the head ends, if all of it is there. Lone line feeds are accepted, as RFC 9112 allows (2.2).
pub fn head_length(bytes: &[u8]) -> Option<usize> {
    let blank_line = |at: &usize| {
        let rest = &bytes[*at..];
        rest.starts_with(b"\n\r\n") || rest.starts_with(b"\n\n")
    };
    (0..bytes.len()).find(blank_line)
}

/// The answer to a request, head and body. `head` is without the blank line.
pub fn answer(head: &[u8], status: impl FnOnce() -> Status) -> Vec<u8> {
    let Some(request) = Request::parse(head) else {
        return response("400 Bad Request", "text/plain; charset=utf-8", "", "not an HTTP/1 request\n", true);
    };
    let with_body = request.method != "HEAD";
    let plain = |status, headers, body| response(status, "text/plain; charset=utf-8", headers, body, with_body);
    if !request.host_is_local() {
        let why = "the Host header names another host: use 127.0.0.1 or localhost\n";
        return plain("403 Forbidden", "", why);
    }
    if !matches!(request.method, "GET" | "HEAD") {
        return plain("405 Method Not Allowed", "Allow: GET, HEAD\r\n", "only GET and HEAD\n");
    }
    match request.path() {
        "/metrics" => {
            let format = request.format();
            response("200 OK", format.content_type(), "", &text::metrics(status(), format), with_body)
        }
        "/" => response("200 OK", "text/html; charset=utf-8", "", PAGE, with_body),
        _ => plain("404 Not Found", "", "there is only /metrics\n"),
    }
}

/// For a head that goes on and on.
pub fn too_long() -> Vec<u8> {
    let status = "431 Request Header Fields Too Large";
    response(status, "text/plain; charset=utf-8", "", "the request's head is longer than 8 KiB\n", true)
}

fn response(status: &str, content_type: &str, headers: &str, body: &str, with_body: bool) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{headers}Cache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    if with_body {
        bytes.extend_from_slice(body.as_bytes());
    }
    bytes
}

struct Request<'h> {
    method: &'h str,
    target: &'h str,
    /// `None`: HTTP/1.0 without one.
    host: Option<&'h str>,
    accept: &'h str,
}

impl<'h> Request<'h> {
    fn parse(head: &'h [u8]) -> Option<Request<'h>> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let is_method = !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
        if words.next().is_some() || !is_method || !target.starts_with('/') {
            return None;
        }
        let (mut host, mut accept) = (None, "");
        for line in lines {
            let (name, value) = line.split_once(':')?;
            if name.is_empty() || name.bytes().any(|b| b.is_ascii_whitespace() || b.is_ascii_control()) {
                return None;
            }
            let value = value.trim();
            if name.eq_ignore_ascii_case("host") {
                // Two of them are how one fools a proxy.
                if host.replace(value).is_some() {
                    return None;
                }
            } else if name.eq_ignore_ascii_case("accept") {
                accept = value;
            }
        }
        match version {
            "HTTP/1.1" => host?,
            "HTTP/1.0" => "",
            _ => return None,
        };
        Some(Request { method, target, host, accept })
    }

    fn path(&self) -> &'h str {
        self.target.split_once('?').map_or(self.target, |(path, _)| path)
    }

    /// A page elsewhere can have its own name point to 127.0.0.1 (DNS rebinding); the browser then sends that name.
    fn host_is_local(&self) -> bool {
        let Some(host) = self.host else { return true };
        let port = |rest: &str| rest.is_empty() || rest.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
        if let Some((address, rest)) = host.strip_prefix('[').and_then(|h| h.split_once(']')) {
            return port(rest) && address.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        }
        let (name, rest) = host.split_at(host.find(':').unwrap_or(host.len()));
        let local = name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        local && port(rest)
    }

    fn format(&self) -> Format {
        if self.accept.contains("application/openmetrics-text") { Format::OpenMetrics } else { Format::Plain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status_of(request: &str) -> String {
        let answer = answer(request.as_bytes(), Status::default);
        let text = String::from_utf8(answer).unwrap();
        text.strip_prefix("HTTP/1.1 ").unwrap()[..3].to_owned()
    }

    #[test]
    fn what_is_asked_for_decides_the_answer() {
        assert_eq!(status_of("GET /metrics HTTP/1.1\r\nHost: localhost:9478"), "200");
        assert_eq!(status_of("GET /metrics?name[]=a HTTP/1.1\r\nhost:127.0.0.1"), "200");
        assert_eq!(status_of("GET / HTTP/1.1\nHost: [::1]:9478"), "200");
        assert_eq!(status_of("GET /metrics HTTP/1.0"), "200");
        assert_eq!(status_of("GET /metric HTTP/1.1\r\nHost: localhost"), "404");
        assert_eq!(status_of("POST /metrics HTTP/1.1\r\nHost: localhost"), "405");
    }

    #[test]
    fn other_hosts_and_broken_requests_are_refused() {
        for host in ["evil.example", "127.0.0.1.evil.example", "localhost.", "[::1", "10.0.0.1:9478", "localhost:x", ""]
        {
            assert_eq!(status_of(&format!("GET /metrics HTTP/1.1\r\nHost: {host}")), "403", "{host:?}");
        }
        for broken in [
            "",
            "GET",
            "GET /metrics",
            "GET /metrics HTTP/1.1",
            "GET /metrics HTTP/2\r\nHost: localhost",
            "get /metrics HTTP/1.1\r\nHost: localhost",
            "GET http://localhost/metrics HTTP/1.1\r\nHost: localhost",
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\n folded",
            "\u{16}\u{3}\u{1}\u{2}",
        ] {
            assert_eq!(status_of(broken), "400", "{broken:?}");
        }
    }

    #[test]
    fn a_head_ends_with_a_blank_line() {
        assert_eq!(head_length(b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody"), Some(24));
        assert_eq!(head_length(b"GET / HTTP/1.0\n\n"), Some(14));
        assert_eq!(head_length(b"GET / HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(head_length(b""), None);
    }
}
