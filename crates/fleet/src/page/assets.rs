//! The files of the page: built into the binary or, for those who work on it, from a directory (as in crates/web).

use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::borrow::Cow;

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// A directory whose files replace those in the binary.
const DIRECTORY_VARIABLE: &str = "CORONER_FLEET_ASSETS";

/// The file with this name, `index.html` or `assets/app.1a2b3c.js`. A client's name is compared, never opened.
pub fn file(name: &str) -> Option<Response> {
    let known = |name: &str| FILES.iter().find(|(known, _)| *known == name).map(|(_, body)| Cow::Borrowed(*body));
    let directory = std::env::var_os(DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty());
    let body = match &directory {
        None => known(name)?,
        Some(directory) => {
            let below = std::path::Path::new(directory);
            let listed = ["", "assets"].iter().flat_map(|part| {
                let entries = std::fs::read_dir(below.join(part)).into_iter().flatten().flatten();
                entries.map(|entry| entry.path()).filter(|path| path.is_file())
            });
            let mut listed =
                listed.filter(|path| path.strip_prefix(below).is_ok_and(|path| path.to_str() == Some(name)));
            Cow::Owned(std::fs::read(listed.next()?).ok()?)
        }
    };
    let content_type = match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        _ => "application/octet-stream",
    };
    // The names of assets have their hash.
    let is_immutable = name.starts_with("assets/") && directory.is_none();
    let cache = if is_immutable { "public, max-age=31536000, immutable" } else { "no-cache" };
    Some(([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, cache)], body.into_owned()).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_in_the_binary_and_nothing_else_is_served() {
        assert!(file("index.html").is_some());
        for wrong in ["", "..", "../Cargo.toml", "/etc/passwd", "assets/../index.html", "index.html/"] {
            assert!(file(wrong).is_none(), "{wrong}");
        }
    }
}
