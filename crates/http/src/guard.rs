//! Who may ask.
//!
//! On loopback the address is the guard, and three things could get around it: a page of somebody else that makes a browser ask (no
//! answer can be read across origins, and API requests from other sites are refused), a name of somebody else that leads to
//! 127.0.0.1 (DNS rebinding: only names of this machine are served), and other users of this machine ([`crate::server`] looks at
//! whose connection it is). On any other address a token is demanded as well.

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use std::net::{IpAddr, SocketAddr};

use crate::Refusal;

/// The cookie that holds the token once it was given.
const COOKIE: &str = "coroner-token";
/// Shorter ones can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// Who knows this may ask.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// `None` if it is too short or cannot stand in a header.
    pub fn new(text: &str) -> Option<Token> {
        let text = text.trim();
        let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
        (text.len() >= SHORTEST_TOKEN && text.len() <= 512 && is_plain).then(|| Token(text.to_owned()))
    }

    pub fn text(&self) -> &str {
        &self.0
    }

    /// Takes as long whatever is wrong.
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
    /// Names of this machine under which a page may be reached, without ports.
    pub names: Vec<String>,
    pub token: Option<Token>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Passes {
    Yes,
    /// The token was in the address: it goes into a cookie, and the address is cleaned.
    WithCookie(HeaderValue),
}

impl Guard {
    pub fn check(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<Passes, Refusal> {
        if method != Method::GET && method != Method::HEAD {
            let (error, what_to_do) = ("only GET and HEAD are answered", "nothing can be changed through the page");
            return Err(Refusal::of_status(StatusCode::METHOD_NOT_ALLOWED, error, what_to_do));
        }
        self.check_host(uri, headers)?;
        let is_api = uri.path().starts_with("/api/");
        let site = headers.get("sec-fetch-site").and_then(|site| site.to_str().ok()).unwrap_or("none");
        if is_api && !matches!(site, "same-origin" | "none") {
            let (error, what_to_do) = ("a page of another site asked", "open the page itself");
            return Err(Refusal::of_status(StatusCode::FORBIDDEN, error, what_to_do));
        }
        self.check_token(uri, headers)
    }

    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (uri.authority(), hosts.next(), hosts.next()) {
            (Some(authority), _, None) => Some(authority.as_str()),
            (None, Some(host), None) => host.to_str().ok(),
            _ => None,
        };
        if host.and_then(name_of).is_some_and(|name| self.is_ours(name)) {
            return Ok(());
        }
        let what_to_do = if self.is_loopback {
            "use http://localhost:PORT or http://127.0.0.1:PORT, also through ssh -L"
        } else {
            "use the machine's IP address or its host name"
        };
        Err(Refusal::of_status(StatusCode::MISDIRECTED_REQUEST, "the Host header names another machine", what_to_do))
    }

    fn is_ours(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
        match address {
            // An address cannot be rebound to another one.
            Some(ip) => !self.is_loopback || is_loopback(&SocketAddr::new(ip, 0)),
            None => name.eq_ignore_ascii_case("localhost") || self.names.iter().any(|n| name.eq_ignore_ascii_case(n)),
        }
    }

    fn check_token(&self, uri: &Uri, headers: &HeaderMap) -> Result<Passes, Refusal> {
        let Some(token) = &self.token else { return Ok(Passes::Yes) };
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        if bearer.and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|given| token.is(given.trim())) {
            return Ok(Passes::Yes);
        }
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut cookies = cookies.flat_map(|line| line.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        if cookies.any(|(name, value)| name == COOKIE && token.is(value)) {
            return Ok(Passes::Yes);
        }
        if uri.path() == "/" {
            let query = form_urlencoded::parse(uri.query().unwrap_or("").as_bytes());
            let given = query.filter(|(name, _)| name == "token").any(|(_, given)| token.is(&given));
            let cookie = format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict", token.text());
            if let (true, Ok(cookie)) = (given, HeaderValue::from_str(&cookie)) {
                return Ok(Passes::WithCookie(cookie));
            }
        }
        Err(Refusal::of_status(
            StatusCode::UNAUTHORIZED,
            "a token is needed",
            "open the whole address that coroner view printed, with ?token=…, or send Authorization: Bearer TOKEN",
        ))
    }
}

/// Of a Host header without its port.
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

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

/// What every response says to browsers.
pub fn secure(headers: &mut HeaderMap) {
    let all: [(HeaderName, &'static str); 6] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in all {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(guard: &Guard, uri: &str, headers: &[(&str, &str)]) -> Result<Passes, StatusCode> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        guard.check(&Method::GET, &uri.parse().unwrap(), &map).map_err(|refusal| refusal.status)
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
            assert_eq!(refused, StatusCode::MISDIRECTED_REQUEST, "{others}");
        }
        assert!(
            asked(&guard, "/", &[]).is_err() && asked(&guard, "/", &[("host", "localhost"), ("host", "a")]).is_err()
        );
    }

    #[test]
    fn other_sites_may_link_to_the_page_and_not_ask() {
        let guard = Guard { is_loopback: true, names: vec![], token: None };
        let from = |site| [("host", "localhost"), ("sec-fetch-site", site)];
        assert!(asked(&guard, "/", &from("cross-site")).is_ok());
        assert!(asked(&guard, "/api/v1/source", &from("same-origin")).is_ok());
        assert_eq!(asked(&guard, "/api/v1/source", &from("cross-site")).unwrap_err(), StatusCode::FORBIDDEN);
    }

    #[test]
    fn elsewhere_a_token_is_demanded() {
        let token = Token::new("0123456789abcdef");
        let guard = Guard { is_loopback: false, names: vec!["node7".into()], token };
        let host = ("host", "node7:80");
        let refused = |uri: &str, headers: &[(&str, &str)]| asked(&guard, uri, headers).unwrap_err();
        assert_eq!(refused("/", &[host]), StatusCode::UNAUTHORIZED);
        assert_eq!(refused("/?token=0123456789abcdeX", &[host]), StatusCode::UNAUTHORIZED);
        assert_eq!(refused("/api/v1/source?token=0123456789abcdef", &[host]), StatusCode::UNAUTHORIZED);
        let Ok(Passes::WithCookie(cookie)) = asked(&guard, "/?token=0123456789abcdef", &[host]) else { panic!() };
        let cookie = cookie.to_str().unwrap();
        assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"));
        let cookie = cookie.split(';').next().unwrap();
        assert!(asked(&guard, "/api/v1/source", &[host, ("cookie", &format!("a=b; {cookie}"))]).is_ok());
        assert!(asked(&guard, "/api/v1/source", &[host, ("authorization", "Bearer 0123456789abcdef")]).is_ok());
        assert_eq!(refused("/api/v1/source", &[host, ("authorization", "Bearer x")]), StatusCode::UNAUTHORIZED);
        assert_eq!(refused("/", &[("host", "evil.example")]), StatusCode::MISDIRECTED_REQUEST);
        assert!(Token::new("short").is_none() && Token::new("0123456789abcdef;").is_none());
    }

    #[test]
    fn nothing_can_be_changed() {
        let guard = Guard { is_loopback: true, names: vec![], token: None };
        let refused = guard.check(&Method::POST, &Uri::from_static("/"), &HeaderMap::new()).unwrap_err();
        assert_eq!(refused.status, StatusCode::METHOD_NOT_ALLOWED);
    }
}
