//! The files of the page: built into the binary or, for page development, from a directory.

use bytes::Bytes;
use coroner_http::Asset;
use std::path::PathBuf;

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// A directory whose files replace those in the binary: `npm run build` in ui/ and reload.
pub const DIRECTORY_VARIABLE: &str = "CORONER_WEB_ASSETS";

/// Where assets are looked up.
#[derive(Debug, Clone, Default)]
pub struct Assets {
    directory: Option<PathBuf>,
}

impl Assets {
    pub fn from_environment() -> Assets {
        let directory = std::env::var_os(DIRECTORY_VARIABLE).filter(|directory| !directory.is_empty());
        Assets { directory: directory.map(PathBuf::from) }
    }

    /// The file with this name, `index.html` or `assets/app.1a2b3c.js`.
    pub fn get(&self, name: &str) -> Option<Asset> {
        let body = match &self.directory {
            None => Bytes::from_static(FILES.iter().find(|(known, _)| *known == name)?.1),
            // Names are listed here too: a client's path is only compared, never opened.
            Some(directory) => {
                let listed = list(directory).into_iter().find(|known| known == name)?;
                Bytes::from(std::fs::read(directory.join(listed)).ok()?)
            }
        };
        let is_immutable = name.starts_with("assets/") && self.directory.is_none();
        Some(Asset { body, content_type: content_type(name), is_immutable })
    }
}

/// The files in a directory and in its `assets`.
fn list(directory: &std::path::Path) -> Vec<String> {
    let names = |below: &str| -> Vec<String> {
        let entries = std::fs::read_dir(directory.join(below)).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        files.filter_map(|file| Some(format!("{below}{}", file.file_name().to_str()?))).collect()
    };
    let mut all = names("");
    all.extend(names("assets/"));
    all
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("ico") => "image/x-icon",
        Some("json" | "webmanifest") => "application/json",
        Some("woff2") => "font/woff2",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_in_the_binary_and_nothing_else_is_served() {
        let page = Assets::default().get("index.html").expect("the page is built in");
        assert!(page.content_type.starts_with("text/html") && !page.is_immutable);
        for wrong in ["", "..", "../Cargo.toml", "/etc/passwd", "assets/../index.html", "index.html/"] {
            assert!(Assets::default().get(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_directory_replaces_the_built_in_page() {
        let directory = std::env::temp_dir().join(format!("coroner-assets-{}", std::process::id()));
        std::fs::create_dir_all(directory.join("assets")).unwrap();
        std::fs::write(directory.join("index.html"), "new").unwrap();
        std::fs::write(directory.join("assets/app.js"), "1").unwrap();
        let assets = Assets { directory: Some(directory.clone()) };
        let bodies = [assets.get("index.html"), assets.get("assets/app.js")].map(|asset| asset.map(|asset| asset.body));
        let outside = assets.get("../../etc/passwd").is_some();
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(bodies, [Some(Bytes::from("new")), Some(Bytes::from("1"))]);
        assert!(!outside);
    }
}
