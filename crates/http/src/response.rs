//! HTTP responses.

use crate::Refusal;
use crate::kept::Encoded;
use bytes::Bytes;
use std::io::{self, Write};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

/// Security headers of every response.
const SECURE: [(&str, &str); 6] = [
    ("Content-Security-Policy", POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Ok = 200,
    SeeOther = 303,
    NotModified = 304,
    BadRequest = 400,
    Unauthorized = 401,
    Forbidden = 403,
    NotFound = 404,
    MethodNotAllowed = 405,
    Gone = 410,
    Misdirected = 421,
    HeadTooLarge = 431,
    Failed = 500,
    Unavailable = 503,
    TimedOut = 504,
}

impl Status {
    fn reason(self) -> &'static str {
        match self {
            Status::Ok => "OK",
            Status::SeeOther => "See Other",
            Status::NotModified => "Not Modified",
            Status::BadRequest => "Bad Request",
            Status::Unauthorized => "Unauthorized",
            Status::Forbidden => "Forbidden",
            Status::NotFound => "Not Found",
            Status::MethodNotAllowed => "Method Not Allowed",
            Status::Gone => "Gone",
            Status::Misdirected => "Misdirected Request",
            Status::HeadTooLarge => "Request Header Fields Too Large",
            Status::Failed => "Internal Server Error",
            Status::Unavailable => "Service Unavailable",
            Status::TimedOut => "Gateway Timeout",
        }
    }
}

pub struct Response {
    status: Status,
    headers: Vec<(&'static str, String)>,
    body: Bytes,
}

impl Response {
    pub fn new(status: Status, headers: &[(&'static str, &str)]) -> Response {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Response { status, headers, body: Bytes::new() }
    }

    /// An answer; `cache` is the value of Cache-Control.
    pub fn whole(encoded: Encoded, tag: Option<&str>, cache: &str) -> Response {
        let mut response = Response::new(
            Status::Ok,
            &[("Content-Type", encoded.content_type), ("Cache-Control", cache), ("Vary", "accept-encoding")],
        );
        let mut set = |name, value: String| response.headers.push((name, value));
        if let Some(encoding) = encoded.encoding.header() {
            set("Content-Encoding", encoding.to_owned());
        }
        if let Some(tag) = tag {
            set("ETag", tag.to_owned());
        }
        if let Some(name) = encoded.file_name {
            let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
            let name: String = name.chars().map(plain).collect();
            set("Content-Disposition", format!("attachment; filename=\"{name}\""));
        }
        Response { body: encoded.body, ..response }
    }

    pub fn not_modified(tag: &str, cache: &str) -> Response {
        Response::new(Status::NotModified, &[("ETag", tag), ("Cache-Control", cache)])
    }

    pub fn refused(refusal: &Refusal) -> Response {
        let more: &[(&str, &str)] = match refusal.status {
            Status::MethodNotAllowed => &[("Allow", "GET, HEAD")],
            Status::Unavailable => &[("Retry-After", "1")],
            Status::Unauthorized => &[("WWW-Authenticate", "Bearer")],
            _ => &[],
        };
        let always = [("Content-Type", "application/json"), ("Cache-Control", "no-store")];
        let headers: Vec<(&str, &str)> = always.iter().chain(more).copied().collect();
        Response { body: Bytes::from(refusal.document()), ..Response::new(refusal.status, &headers) }
    }

    /// `is_last`: the connection closes after it.
    pub fn write(&self, to: &mut impl Write, with_body: bool, is_last: bool) -> io::Result<()> {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status as u16, self.status.reason());
        let ours = self.headers.iter().map(|(name, value)| (*name, value.as_str()));
        for (name, value) in ours.chain(SECURE) {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        // For a 304 the length would be that of the body that is not sent.
        if self.status != Status::NotModified {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        head.push_str(if is_last { "Connection: close\r\n\r\n" } else { "\r\n" });
        to.write_all(head.as_bytes())?;
        to.write_all(if with_body { &self.body } else { &[] })
    }
}
