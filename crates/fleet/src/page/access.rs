//! Who may read: people with the user token, as a bearer header or, in a browser, as a cookie that their token was exchanged for.
//!
//! A page of another site can make a browser send requests. It cannot read the answers, `SameSite=Strict` keeps the cookie from it, and a
//! request that a browser marks as another site's is refused whatever cookie it brings.

use crate::server::bearer;
use crate::tokens::Token;
use axum::http::{HeaderMap, header};

/// Not the name of the node's page: both may run on one host, and cookies do not know ports.
const COOKIE: &str = "coroner-fleet";
const KEPT_S: u32 = 30 * 86_400;

pub fn admits(token: &Token, headers: &HeaderMap) -> bool {
    if token.is(bearer(headers)) {
        return true;
    }
    let site = headers.get("sec-fetch-site").and_then(|value| value.to_str().ok()).unwrap_or_default();
    matches!(site, "same-origin" | "none" | "")
        && is_own(headers)
        && cookies(headers).any(|given| token.in_hex().is(given))
}

/// Browsers that do not tell the site still tell where a request that changes something comes from.
fn is_own(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(origin) = text(header::ORIGIN) else { return true };
    origin.split_once("://").is_some_and(|(_, host)| Some(host) == text(header::HOST))
}

fn cookies(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let lines = headers.get_all(header::COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// The value of Set-Cookie. `None` as token ends the session.
pub fn cookie(token: Option<&Token>, is_tls: bool) -> String {
    let secure = if is_tls { "; Secure" } else { "" };
    let (value, age) = token.map_or((String::new(), 0), |token| (token.in_hex().text().to_owned(), KEPT_S));
    format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={age}{secure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cookie_admits_own_pages_only() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // What a token may have and a cookie may not.
        std::fs::write(file.path(), "0123456789;\",=abcdef").unwrap();
        let token = Token::read(file.path()).unwrap();
        let set = cookie(Some(&token), true);
        assert!(set.contains("HttpOnly; SameSite=Strict") && set.ends_with("Secure") && !set.contains("456789;"));
        let given = set.split(';').next().unwrap().to_owned();
        let asked = |pairs: &[(&'static str, &str)]| {
            let headers = pairs.iter().map(|(name, value)| ((*name).parse().unwrap(), value.parse().unwrap()));
            admits(&token, &headers.collect())
        };
        assert!(asked(&[("cookie", &given)]) && asked(&[("cookie", &format!("a=b; {given}"))]));
        assert!(asked(&[("cookie", &given), ("sec-fetch-site", "same-origin")]));
        assert!(asked(&[("authorization", "Bearer 0123456789;\",=abcdef")]));
        for site in ["cross-site", "same-site"] {
            assert!(!asked(&[("cookie", &given), ("sec-fetch-site", site)]), "{site}");
        }
        assert!(!asked(&[]) && !asked(&[("cookie", "coroner-fleet=")]) && !asked(&[("cookie", "coroner-fleet=00")]));
        assert!(!asked(&[("authorization", "Bearer "), ("cookie", &given.to_uppercase())]));
    }
}
