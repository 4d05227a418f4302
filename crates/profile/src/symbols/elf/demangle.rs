//! Names as their authors wrote them.

use std::fmt::Write;

/// No name is longer: a few bytes of a mangled one can stand for any length.
const MAX_NAME: usize = 16 << 10;

/// The name in the program's language: C++ and Rust without the hash. Others, Go's too, are written plainly.
pub(super) fn demangle(name: &[u8]) -> String {
    let plain = || String::from_utf8_lossy(name).into_owned();
    let Ok(text) = std::str::from_utf8(name) else { return plain() };
    if !(text.starts_with("_Z") || text.starts_with("_R") || text.starts_with("__Z")) {
        return plain();
    }
    if let Ok(rust) = rustc_demangle::try_demangle(text) {
        let mut out = Bounded(String::new());
        return match write!(out, "{rust:#}") {
            Ok(()) => out.0,
            Err(_) => plain(),
        };
    }
    let Ok(symbol) = cpp_demangle::Symbol::new(text) else { return plain() };
    let mut out = Bounded(String::new());
    let options = cpp_demangle::DemangleOptions::new();
    match symbol.structured_demangle(&mut out, &options) {
        Ok(()) => out.0,
        Err(_) => plain(),
    }
}

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        if self.0.len() + text.len() > MAX_NAME {
            return Err(std::fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}
