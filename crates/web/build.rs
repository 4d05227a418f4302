//! Embeds the files of the page into the binary.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=assets");
    let root = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("assets");
    let mut files = Vec::new();
    list(&root, &root, &mut files);
    files.sort();
    let mut text = String::from("pub static FILES: &[(&str, &[u8])] = &[\n");
    for (name, path) in files {
        println!("cargo:rerun-if-changed={}", path.display());
        writeln!(text, "    ({name:?}, include_bytes!({path:?})),").expect("a string takes everything");
    }
    text.push_str("];\n");
    let out = PathBuf::from(std::env::var("OUT_DIR").expect("cargo sets it")).join("assets.rs");
    std::fs::write(out, text).expect("OUT_DIR can be written");
}

/// Regular files with their names below `root`, as used in URLs.
fn list(root: &Path, directory: &Path, files: &mut Vec<(String, PathBuf)>) {
    for entry in std::fs::read_dir(directory).expect("the assets directory exists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            println!("cargo:rerun-if-changed={}", path.display());
            list(root, &path, files);
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            files.push((name.to_owned(), path));
        }
    }
}
