//! Names as their authors wrote them, in the form perf prints: C++ without parameters and return type, Rust without its hash.

use std::fmt::Write;

/// No name is longer: a few bytes of a mangled one can stand for any length.
const MAX_NAME: usize = 16 << 10;

/// The name in the program's language. Others than C++ and Rust, Go too, are written plainly.
pub(super) fn demangle(name: &[u8]) -> String {
    let plain = || String::from_utf8_lossy(name).into_owned();
    let Ok(text) = std::str::from_utf8(name) else { return plain() };
    if !(text.starts_with("_Z") || text.starts_with("_R") || text.starts_with("__Z")) {
        return plain();
    }
    rust(text).or_else(|| cpp(text)).unwrap_or_else(plain)
}

fn rust(text: &str) -> Option<String> {
    let rust = rustc_demangle::try_demangle(text).ok()?;
    let mut out = Bounded(String::new());
    write!(out, "{rust:#}").ok()?;
    // What the compiler added for a part of the function (`.warm`, `.llvm.1234`).
    if text.starts_with("_R")
        && let Some((_, added)) = text.split_once('.')
        && let Some(whole) = out.0.strip_suffix(added)
    {
        let length = whole.len().saturating_sub(1);
        out.0.truncate(length);
    }
    Some(out.0)
}

fn cpp(text: &str) -> Option<String> {
    let (text, stub) = text.strip_suffix("@plt").map_or((text, ""), |text| (text, "@plt"));
    let symbol = cpp_demangle::Symbol::new(text).ok()?;
    let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
    let mut out = Bounded(String::new());
    symbol.structured_demangle(&mut out, &options).ok()?;
    let mut name = out.0;
    for qualifier in [" &&", " &", " volatile", " const"] {
        if let Some(shorter) = name.strip_suffix(qualifier) {
            name.truncate(shorter.len());
        }
    }
    name = in_perfs_words(name);
    name.push_str(stub);
    Some(name)
}

/// cpp_demangle has its own words for some things; perf's are those of the GNU tools.
fn in_perfs_words(mut name: String) -> String {
    if let Some(thunk) = thunk(&name) {
        name = thunk;
    }
    for (short, class, arguments) in STREAMS {
        for (theirs, function) in [
            (format!("std::{short}::~{short}"), format!("~{class}")),
            (format!("std::{short}::{short}"), class.to_owned()),
        ] {
            if let Some(before) = name.strip_suffix(&theirs) {
                name = format!("{before}std::{class}<{arguments} >::{function}");
                break;
            }
        }
    }
    if name.contains(", >") {
        name = name.replace(", >", ">"); // an empty list of arguments
    }
    for (kind, suffix) in
        [("(unsigned int)", "u"), ("(unsigned long)", "ul"), ("(long)", "l"), ("(unsigned long long)", "ull")]
    {
        while let Some(at) = name.find(kind) {
            let digits = name[at + kind.len()..].bytes().take_while(u8::is_ascii_digit).count();
            if digits == 0 {
                break;
            }
            name.insert_str(at + kind.len() + digits, suffix);
            name.replace_range(at..at + kind.len(), "");
        }
    }
    name
}

/// Classes that have short names, which the GNU tools write out where they are made or destroyed.
const STREAMS: [(&str, &str, &str); 4] = [
    ("ostream", "basic_ostream", "char, std::char_traits<char>"),
    ("istream", "basic_istream", "char, std::char_traits<char>"),
    ("iostream", "basic_iostream", "char, std::char_traits<char>"),
    ("string", "basic_string", "char, std::char_traits<char>, std::allocator<char>"),
];

/// `{virtual override thunk({virtual offset(0, -24)}, TARGET)}`; one with two offsets changes what is returned, too.
fn thunk(name: &str) -> Option<String> {
    let mut target = name.strip_prefix("{virtual override thunk(")?.strip_suffix(")}")?;
    let is_virtual = target.starts_with("{virtual");
    let mut offsets = 0;
    while target.starts_with("{virtual offset(") || target.starts_with("{offset(") {
        target = target.split_once("}, ")?.1;
        offsets += 1;
    }
    let kind = match (offsets, is_virtual) {
        (2, _) => "covariant return thunk",
        (_, true) => "virtual thunk",
        (_, false) => "non-virtual thunk",
    };
    Some(format!("{kind} to {target}"))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_perf_prints_them() {
        for (mangled, want) in [
            ("main", "main"),
            ("runtime.(*mheap).alloc", "runtime.(*mheap).alloc"),
            ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad"),
            ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar"),
            ("_RNvNtCs1234_7mycrate3foo3bar.warm", "mycrate::foo::bar"),
            ("_ZNK1X3getILj2EEEiv", "X::get<2u>"),
            ("_Znam", "operator new[]"),
            ("_ZN1XILi3EJEE3runEv", "X<3>::run"),
            ("_ZThn96_N1XD1Ev", "non-virtual thunk to X::~X"),
            ("_ZTv0_n24_N1X1fEv", "virtual thunk to X::f"),
            ("_ZTv0_n24_NSoD1Ev", "virtual thunk to std::basic_ostream<char, std::char_traits<char> >::~basic_ostream"),
            ("_ZTcv0_n24_v0_n32_N1A1fEv", "covariant return thunk to A::f"),
            ("_ZNSsC1EPKc", "std::basic_string<char, std::char_traits<char>, std::allocator<char> >::basic_string"),
            ("_ZN1XaaERKS_", "X::operator&&"),
            ("_Z3fooi.constprop.0", "foo"),
            ("_ZNSt6vectorIiSaIiEE9push_backEOi@plt", "std::vector<int, std::allocator<int> >::push_back@plt"),
            ("_Z", "_Z"),
        ] {
            assert_eq!(demangle(mangled.as_bytes()), want);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_name(name in "_(Z|R|ZN)[A-Za-z0-9_.$]{0,60}") {
            demangle(name.as_bytes());
        }
    }
}
