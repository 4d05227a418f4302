//! Names as their authors wrote them, in the form perf prints: C++ without parameters and return type, Rust without its hash.

use std::fmt::Write;

/// Longer names are cut: a few mangled bytes can expand to any length.
const MAX_NAME: usize = 16 << 10;

/// The name in the program's language. Only C++ and Rust mangle names; Go, for one, does not.
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
    // Suffixes the compiler adds to a part of a function (`.warm`, `.llvm.1234`).
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
    if let Some(mut name) = words(text) {
        name.push_str(stub);
        return Some(name);
    }
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

/// A fast path for plain names: `_ZN4llvm5Value7setNameERKNS_5TwineE` is `llvm::Value::setName`. Most are plain, and demangling
/// their parameters, which are not shown, costs most. `None` for anything else (templates, operators, lambdas).
fn words(text: &str) -> Option<String> {
    let rest = text.strip_prefix("_Z")?;
    let Some(mut rest) = rest.strip_prefix('N') else {
        let (word, rest) = word(rest)?;
        return (!rest.starts_with(['I', 'B']) && is_plain(rest)).then(|| word.to_owned());
    };
    rest = rest.trim_start_matches(['r', 'V', 'K']);
    rest = rest.strip_prefix(['R', 'O']).unwrap_or(rest);
    let mut name = String::with_capacity(text.len());
    if let Some(after) = rest.strip_prefix("St") {
        name.push_str("std");
        rest = after;
    }
    let mut last = None;
    loop {
        let (next, after) = match (rest.as_bytes(), last) {
            ([b'C', b'1'..=b'3', b'E', ..], Some(class)) => (class, &rest[2..]),
            ([b'D', b'0'..=b'2', b'E', ..], Some(class)) => {
                name.push_str("::~");
                name.push_str(class);
                return is_plain(&rest[3..]).then_some(name);
            }
            ([b'E', ..], Some(_)) => return is_plain(&rest[1..]).then_some(name),
            _ => word(rest)?,
        };
        if !name.is_empty() {
            name.push_str("::");
        }
        name.push_str(next);
        (last, rest) = (Some(next), after);
    }
}

/// `3foobar` is the word `foo`, and `bar` follows.
fn word(text: &str) -> Option<(&str, &str)> {
    // An internal-linkage marker.
    let text = text.strip_prefix('L').unwrap_or(text);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (length, rest) = text.split_at(digits);
    let (word, rest) = rest.split_at_checked(length.parse().ok().filter(|length| *length > 0)?)?;
    let is_anonymous =
        matches!(word.as_bytes(), [b'_', b'G', b'L', b'O', b'B', b'A', b'L', b'_', b'.' | b'_' | b'$', b'N', ..]);
    Some((if is_anonymous { "(anonymous namespace)" } else { word }, rest))
}

/// Parameters and compiler suffixes.
fn is_plain(rest: &str) -> bool {
    rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$'))
}

/// cpp_demangle prints some names its own way; perf prints them as the GNU tools do.
fn in_perfs_words(mut name: String) -> String {
    if let Some(thunk) = thunk(&name) {
        name = thunk;
    }
    for (short, class, arguments) in STREAMS {
        let Some(before) = name.strip_suffix(short) else { continue };
        let (before, destroys) = before.strip_suffix('~').map_or((before, ""), |before| (before, "~"));
        let before = before.strip_suffix("::").and_then(|before| before.strip_suffix(short)?.strip_suffix("std::"));
        if let Some(before) = before {
            name = format!("{before}std::{class}<{arguments} >::{destroys}{class}");
        }
    }
    if name.contains(", >") {
        name = name.replace(", >", ">"); // an empty list of arguments
    }
    if !name.contains('(') {
        return name;
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

/// Classes with abbreviations, which the GNU tools write out in constructors and destructors.
const STREAMS: [(&str, &str, &str); 4] = [
    ("ostream", "basic_ostream", "char, std::char_traits<char>"),
    ("istream", "basic_istream", "char, std::char_traits<char>"),
    ("iostream", "basic_iostream", "char, std::char_traits<char>"),
    ("string", "basic_string", "char, std::char_traits<char>, std::allocator<char>"),
];

/// `{virtual override thunk({virtual offset(0, -24)}, TARGET)}`; with two offsets it also adjusts the return value.
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
            ("_ZN4llvm5Value7setNameERKNS_5TwineE", "llvm::Value::setName"),
            ("_ZN12_GLOBAL__N_19Inlinable3runEv", "(anonymous namespace)::Inlinable::run"),
            ("_ZN12_GLOBAL__N_1L3runEv.part.0", "(anonymous namespace)::run"),
            ("_ZNKSt9exception4whatEv", "std::exception::what"),
            ("_ZN4llvm5ValueD2Ev", "llvm::Value::~Value"),
            ("_ZN4llvm5ValueC1EPNS_4TypeEj@plt", "llvm::Value::Value@plt"),
            ("_ZL4initv", "init"),
            ("_Z3maxIiET_S0_S0_", "max<int>"),
            ("_ZN3abc99too_longE", "_ZN3abc99too_longE"),
        ] {
            assert_eq!(demangle(mangled.as_bytes()), want);
        }
    }

    /// What cpp_demangle makes of it, without the fast path.
    fn taken_apart(text: &str) -> Option<String> {
        let symbol = cpp_demangle::Symbol::new(text).ok()?;
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let mut out = String::new();
        symbol.structured_demangle(&mut out, &options).ok()?;
        Some(in_perfs_words(out.strip_suffix(" const").unwrap_or(&out).to_owned()))
    }

    proptest::proptest! {
        #[test]
        fn any_name(name in "_(Z|R|ZN)[A-Za-z0-9_.$]{0,60}") {
            demangle(name.as_bytes());
        }

        #[test]
        fn the_fast_path_gives_the_same(
            words_ in proptest::collection::vec("[a-zA-Z_][a-zA-Z0-9_]{0,7}|_GLOBAL__N_1", 1..5),
            start in "(N|NK|NSt|NKSt|L|)",
            end in "(C1|C2|D0|D2|)",
            parameters in "(v|i|PKc|RKSsj|S_|St6vectorIiSaIiEE)",
        ) {
            let nested = start.starts_with('N');
            let count = if nested { words_.len() } else { 1 };
            let mangled: String = words_[..count].iter().map(|word| format!("{}{word}", word.len())).collect();
            let (end, close) = if nested { (end.as_str(), "E") } else { ("", "") };
            let text = format!("_Z{start}{mangled}{end}{close}{parameters}");
            if let Some(want) = taken_apart(&text) {
                proptest::prop_assert_eq!(words(&text), Some(want), "{}", text);
            }
        }
    }
}
