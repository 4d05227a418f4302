//! Who may ask.
//!
//! On loopback only this machine can connect, and three things could get around that: a foreign page that makes the browser ask
//! (answers cannot be read across origins, and API requests from other sites are refused), a foreign name that resolves to 127.0.0.1
//! (DNS rebinding: only names of this machine are served), and other users of this machine ([`crate::server`] checks who owns the
//! connection). Every other address also requires a token.

use crate::Refusal;
use crate::request::Request;
use crate::response::Status;
use std::net::{IpAddr, SocketAddr};

/// The cookie that keeps the token after the first request.
const COOKIE: &str = "coroner-token";
/// Shorter tokens can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// The shared secret that admits a client.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// `None` if it is too short or not valid in a header.
    pub fn new(text: &str) -> Option<Token> {
        let text = text.trim();
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
        (text.len() >= SHORTEST_TOKEN && text.len() <= 512 && is_plain).then(|| Token(text.to_owned()))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Compares in constant time.
    fn is(&self, other: &str) -> bool {
        let (ours, theirs) = (self.0.as_bytes(), other.as_bytes());
        let differences = ours.iter().zip(theirs).fold(0, |sum, (a, b)| sum | (a ^ b));
        ours.len() == theirs.len() && differences == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Whether only this machine can reach an address.
pub fn is_loopback(address: &SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

#[derive(Debug, Clone)]
pub struct Guard {
    pub is_loopback: bool,
    /// Names of this machine under which the page may be reached, without ports.
    pub names: Vec<String>,
    pub token: Option<Token>,
}

/// How a request was admitted.
#[derive(Debug)]
pub enum Passes {
    Yes,
    /// The token was in the URL: it moves into a cookie, and the URL is cleaned by a redirect.
    WithCookie(String),
}

impl Guard {
    pub fn check(&self, request: &Request) -> Result<Passes, Refusal> {
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            let (error, what_to_do) = ("only GET and HEAD are supported", "this server is read-only");
            return Err(Refusal::of_status(Status::MethodNotAllowed, error, what_to_do));
        }
        self.check_host(request)?;
        let is_api = request.path.starts_with("/api/");
        if is_api && !matches!(request.header("sec-fetch-site"), "same-origin" | "none" | "") {
            let (error, what_to_do) = ("the request came from another site", "open the page itself");
            return Err(Refusal::of_status(Status::Forbidden, error, what_to_do));
        }
        self.check_token(request)
    }

    fn check_host(&self, request: &Request) -> Result<(), Refusal> {
        // Only HTTP/1.0 may omit it, and no browser speaks that.
        let host = request.all("host").next();
        if host.is_none_or(|host| name_of(host).is_some_and(|name| self.is_ours(name))) {
            return Ok(());
        }
        let what_to_do = if self.is_loopback {
            "use http://localhost:PORT or http://127.0.0.1:PORT, also with ssh -L"
        } else {
            "use the machine's IP address or its host name"
        };
        Err(Refusal::of_status(Status::Misdirected, "the Host header names another machine", what_to_do))
    }

    fn is_ours(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        match address {
            // A literal IP address cannot be rebound.
            Some(ip) => !self.is_loopback || is_loopback(&SocketAddr::new(ip, 0)),
            None => name.eq_ignore_ascii_case("localhost") || self.names.iter().any(|n| name.eq_ignore_ascii_case(n)),
        }
    }

    fn check_token(&self, request: &Request) -> Result<Passes, Refusal> {
        let Some(token) = &self.token else { return Ok(Passes::Yes) };
        if request.header("authorization").strip_prefix("Bearer ").is_some_and(|given| token.is(given.trim())) {
            return Ok(Passes::Yes);
        }
        let cookies = request.all("cookie").flat_map(|line| line.split(';'));
        let mut cookies = cookies.filter_map(|cookie| cookie.trim().split_once('='));
        if cookies.any(|(name, value)| name == COOKIE && token.is(value)) {
            return Ok(Passes::Yes);
        }
        if request.path == "/" {
            let query = form_urlencoded::parse(request.query.as_bytes());
            let given = query.filter(|(name, _)| name == "token").any(|(_, given)| token.is(&given));
            if given {
                let cookie = format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict", token.text());
                return Ok(Passes::WithCookie(cookie));
            }
        }
        Err(Refusal::of_status(
            Status::Unauthorized,
            "a token is required",
            "open the full URL that coroner view printed, with ?token=…, or send Authorization: Bearer TOKEN",
        ))
    }
}

/// The name in a Host header, without the port.
fn name_of(host: &str) -> Option<&str> {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if host.starts_with('[') {
        let end = host.find(']')?;
        let rest = &host[end + 1..];
        return (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port)).then(|| &host[..=end]);
    }
    match host.split_once(':') {
        Some((name, port)) => is_port(port).then_some(name),
        None => Some(host),
    }
    .filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(guard: &Guard, uri: &str, headers: &[(&str, &str)]) -> Result<Passes, Status> {
        let lines: String = headers.iter().map(|(name, value)| format!("\r\n{name}: {value}")).collect();
        let request = Request::parse(format!("GET {uri} HTTP/1.1{lines}").as_bytes()).ok_or(Status::BadRequest)?;
        guard.check(&request).map_err(|refusal| refusal.status)
    }

    #[test]
    fn on_loopback_only_names_of_this_machine_are_served() {
        let guard = Guard { is_loopback: true, names: vec![], token: None };
        for ours in ["localhost", "localhost:8080", "127.0.0.1:9", "[::1]:80", "127.1.2.3", "LOCALHOST."] {
            assert!(asked(&guard, "/", &[("host", ours)]).is_ok(), "{ours}");
        }
        for others in
            ["evil.example", "127.0.0.1.evil.example", "localhost:80:80", "10.0.0.1", "", "[::1", "a@localhost"]
        {
            let refused = asked(&guard, "/", &[("host", others)]).unwrap_err();
            assert_eq!(refused, Status::Misdirected, "{others}");
        }
        assert!(
            asked(&guard, "/", &[]).is_err() && asked(&guard, "/", &[("host", "localhost"), ("host", "a")]).is_err()
        );
    }

    #[test]
    fn other_sites_may_link_to_the_page_but_not_query_it() {
        let guard = Guard { is_loopback: true, names: vec![], token: None };
        let from = |site| [("host", "localhost"), ("sec-fetch-site", site)];
        assert!(asked(&guard, "/", &from("cross-site")).is_ok());
        assert!(asked(&guard, "/api/v1/source", &from("same-origin")).is_ok());
        assert_eq!(asked(&guard, "/api/v1/source", &from("cross-site")).unwrap_err(), Status::Forbidden);
    }

    #[test]
    fn other_addresses_require_a_token() {
        let token = Token::new("0123456789abcdef");
        let guard = Guard { is_loopback: false, names: vec!["node7".into()], token };
        let host = ("host", "node7:80");
        let refused = |uri: &str, headers: &[(&str, &str)]| asked(&guard, uri, headers).unwrap_err();
        assert_eq!(refused("/", &[host]), Status::Unauthorized);
        assert_eq!(refused("/?token=0123456789abcdeX", &[host]), Status::Unauthorized);
        assert_eq!(refused("/api/v1/source?token=0123456789abcdef", &[host]), Status::Unauthorized);
        let Ok(Passes::WithCookie(cookie)) = asked(&guard, "/?token=0123456789abcdef", &[host]) else { panic!() };
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
        let cookie = cookie.split(';').next().unwrap();
        assert!(asked(&guard, "/api/v1/source", &[host, ("cookie", &format!("a=b; {cookie}"))]).is_ok());
        assert!(asked(&guard, "/api/v1/source", &[host, ("authorization", "Bearer 0123456789abcdef")]).is_ok());
        assert_eq!(refused("/api/v1/source", &[host, ("authorization", "Bearer x")]), Status::Unauthorized);
        assert_eq!(refused("/", &[("host", "evil.example")]), Status::Misdirected);
        assert!(Token::new("short").is_none() && Token::new("0123456789abcdef;").is_none());
    }

    #[test]
    fn post_is_refused() {
        let guard = Guard { is_loopback: true, names: vec![], token: None };
        let request = Request::parse(b"POST / HTTP/1.1\nHost: localhost").unwrap();
        assert_eq!(guard.check(&request).unwrap_err().status, Status::MethodNotAllowed);
    }
}
