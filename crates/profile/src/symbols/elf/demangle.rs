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
    if let Some(thunk) = name.strip_prefix("{virtual override thunk({offset(")
        && let Some((_, target)) = thunk.split_once("}, ")
        && let Some(target) = target.strip_suffix(")}")
    {
        name = format!("non-virtual thunk to {target}");
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
