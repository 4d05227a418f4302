//! The part of HTTP/1 (RFC 9112) that browsers, scrapers and curl need: GET and HEAD, without bodies.

/// A parsed request head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// The part after the `?`, not decoded.
    pub query: String,
    pub is_http_1_0: bool,
    headers: Vec<(String, String)>,
}

/// Where the head ends, if it is complete, and where the rest begins. Bare line feeds are accepted (RFC 9112, section 2.2).
/// `from`: the bytes before it were already searched.
pub fn head_end(bytes: &[u8], from: usize) -> Option<(usize, usize)> {
    (from.saturating_sub(2)..bytes.len()).find_map(|at| {
        let rest = &bytes[at..];
        let blank = [&b"\n\r\n"[..], b"\n\n"].into_iter().find(|blank| rest.starts_with(blank))?;
        Some((at, at + blank.len()))
    })
}

impl Request {
    /// `None` if it is not an HTTP/1 request, or is ambiguous.
    pub fn parse(head: &[u8]) -> Option<Request> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
        let is_target = target.starts_with('/') && target.bytes().all(|byte| byte.is_ascii_graphic());
        if words.next().is_some() || !is_method || !is_target {
            return None;
        }
        let is_http_1_0 = match version {
            "HTTP/1.1" => false,
            "HTTP/1.0" => true,
            _ => return None,
        };
        let mut headers: Vec<(String, String)> = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(':')?;
            let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_name || value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
                return None;
            }
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let (method, path, query) = (method.to_owned(), path.to_owned(), query.to_owned());
        let request = Request { method, path, query, is_http_1_0, headers };
        // Two Host headers are used to fool proxies; only HTTP/1.0 may omit it.
        match request.all("host").count() {
            0 if !is_http_1_0 => None,
            0 | 1 => Some(request),
            _ => None,
        }
    }

    /// All values of a header; `name` in lower case.
    pub fn all<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r str> {
        self.headers.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The first of them; empty if there is none.
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// The connection must close after this request. Bodies are not read, so one could be mistaken for the next request.
    pub fn is_last(&self) -> bool {
        let is_close = |value: &str| value.to_ascii_lowercase().contains("close");
        let has_body =
            self.all("content-length").any(|length| length != "0") || self.all("transfer-encoding").next().is_some();
        self.is_http_1_0 || self.all("connection").any(is_close) || has_body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_requests_and_rejects_broken_ones() {
        let request =
            Request::parse(b"GET /a/b?c=d%20e HTTP/1.1\r\nHost: localhost:9478\r\nAccept:  x \r\nA:\tb").unwrap();
        assert_eq!((&*request.method, &*request.path, &*request.query), ("GET", "/a/b", "c=d%20e"));
        assert_eq!(
            (request.header("host"), request.header("accept"), request.header("a")),
            ("localhost:9478", "x", "b")
        );
        assert!(!request.is_last() && Request::parse(b"GET / HTTP/1.0").unwrap().is_last());
        for last in ["Connection: Close", "Content-Length: 3", "Transfer-Encoding: chunked"] {
            assert!(
                Request::parse(format!("POST / HTTP/1.1\nHost: a\n{last}").as_bytes()).unwrap().is_last(),
                "{last}"
            );
        }
        for broken in [
            "",
            "GET",
            "GET /metrics",
            "GET /metrics HTTP/1.1",
            "GET /metrics HTTP/2\r\nHost: localhost",
            "get /metrics HTTP/1.1\r\nHost: localhost",
            "GET http://localhost/metrics HTTP/1.1\r\nHost: localhost",
            "GET /met\trics HTTP/1.1\r\nHost: localhost",
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nHost: evil.example",
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\n folded",
            "GET /metrics HTTP/1.1\r\nHost: localhost\r\nX: a\rb",
            "\u{16}\u{3}\u{1}\u{2}",
        ] {
            assert_eq!(Request::parse(broken.as_bytes()), None, "{broken:?}");
        }
    }

    #[test]
    fn a_head_ends_with_a_blank_line() {
        let whole = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody";
        assert_eq!(head_end(whole, 0), Some((24, 27)));
        assert_eq!(head_end(whole, 26), Some((24, 27)), "also if it arrived in two parts");
        assert_eq!(head_end(b"GET / HTTP/1.0\n\n", 0), Some((14, 16)));
        assert_eq!(head_end(b"GET / HTTP/1.1\r\nHost: a\r\n", 0), None);
        assert_eq!(head_end(b"", 0), None);
    }
}
