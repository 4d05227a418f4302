//! One frame line: `ADDRESS SYMBOL+0xOFFSET (MODULE)`; only the symbol is always there.

/// A parsed frame line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameText<'a> {
    /// Empty if only the address is known.
    pub symbol: &'a [u8],
    /// Without its parentheses; empty if not printed.
    pub module: &'a [u8],
    pub inlined: bool,
    /// The address lies in the upper half, which only the kernel uses.
    pub high: bool,
}

/// Positions of the parts of a frame line that do not change from sample to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The symbol ends here, `+0x` included if there is an offset.
    pub head: usize,
    /// ` (MODULE)` begins here.
    pub tail: usize,
}

#[inline(always)]
pub(super) fn is_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || byte.wrapping_sub(b'a') < 6
}

/// Splits what follows the address.
#[inline]
pub(super) fn split(text: &[u8]) -> Split {
    let tail = if text.last() == Some(&b')') { module_start(text) } else { text.len() };
    let mut digits = tail;
    while digits > 0 && is_hex(text[digits - 1]) {
        digits -= 1;
    }
    let has_offset = digits < tail && text[..digits].ends_with(b"+0x");
    Split { head: if has_offset { digits } else { tail }, tail }
}

/// Where ` (MODULE)` begins. A path may have spaces and end in ` (deleted)`.
#[inline]
fn module_start(text: &[u8]) -> usize {
    let mut end = text.len();
    while let Some(space) = memchr::memrchr(b' ', &text[..end]) {
        if text.get(space + 1) == Some(&b'(') && !text[space..].starts_with(b" (deleted)") {
            return space;
        }
        end = space;
    }
    // `(MODULE)` alone, without a symbol.
    if text.first() == Some(&b'(') { 0 } else { text.len() }
}

/// Whether a line looks like a frame with its address.
pub fn is_frame(line: &[u8]) -> bool {
    address(line).is_some()
}

pub(super) fn parts<'a>(text: &'a [u8], split: Split, high: bool) -> FrameText<'a> {
    let symbol = if split.head < split.tail { &text[..split.head - 3] } else { &text[..split.head] };
    let module = text[split.tail..].trim_ascii_start();
    let module = module.strip_prefix(b"(").and_then(|module| module.strip_suffix(b")")).unwrap_or_default();
    let inlined = module == b"inlined";
    let symbol = if symbol == b"[unknown]" { b"" } else { symbol.trim_ascii() };
    FrameText { symbol, module: if inlined { b"" } else { module }, inlined, high }
}

/// How many bytes the line's address takes, including white space around it, and whether it is the kernel's.
/// `None` if the line does not begin with an address.
pub(super) fn address(line: &[u8]) -> Option<(usize, bool)> {
    let start = line.iter().position(|byte| *byte != b' ' && *byte != b'\t')?;
    let digits = line[start..].iter().take_while(|byte| is_hex(**byte)).count();
    if digits == 0 || digits > 16 {
        return None;
    }
    let high = digits == 16 && line[start] >= b'8';
    match line.get(start + digits) {
        Some(b' ') => Some((start + digits + 1, high)),
        // An address alone is printed 16 wide; `add` alone is a symbol.
        None if start + digits >= 16 => Some((start + digits, high)),
        _ => None,
    }
}

/// Parses any frame line. `None` if it is none.
pub fn parse(line: &[u8]) -> Option<FrameText<'_>> {
    let (text, high, has_address) = match address(line) {
        Some((skip, high)) => (&line[skip..], high, true),
        None => (line.trim_ascii_start(), false, false),
    };
    let split = split(text);
    let frame = parts(text, split, high);
    let named = !frame.module.is_empty() || frame.inlined || (!text.is_empty() && !text.contains(&b' '));
    (has_address || named).then_some(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame<'a>(symbol: &'a str, module: &'a str) -> FrameText<'a> {
        FrameText { symbol: symbol.as_bytes(), module: module.as_bytes(), inlined: false, high: false }
    }

    #[test]
    fn every_form_of_a_frame() {
        for (line, symbol, module) in [
            ("\t    7f0000001000 foo+0x12 (/usr/lib/x.so)", "foo", "/usr/lib/x.so"),
            (
                "\t    7f0000001000 foo(int, char const*)+0x12 (/usr/lib/my lib.so)",
                "foo(int, char const*)",
                "/usr/lib/my lib.so",
            ),
            ("\t    7f0000001000 foo+0x1 (/opt/x (deleted))", "foo", "/opt/x (deleted)"),
            ("\t    7f0000001000 [unknown] (/usr/lib/x.so)", "", "/usr/lib/x.so"),
            ("\t    7f0000001000 [unknown] ([unknown])", "", "[unknown]"),
            ("\t    7f0000001000 operator+ (int)+0x3 (//anon)", "operator+ (int)", "//anon"),
            (
                "\t    7f0000001000 f::{lambda()#1}::operator()() const+0x1 (/x)",
                "f::{lambda()#1}::operator()() const",
                "/x",
            ),
            ("\t    7f0000001000 _start", "_start", ""),
            ("\t    7f0000001000 _start+0x2a", "_start", ""),
            ("\t    7f0000001000 (/usr/bin/mod)", "", "/usr/bin/mod"),
            ("\t    7f0000001000", "", ""),
            ("\t         8a4f756 f (/x)", "f", "/x"),
            ("\tadd (/x)", "", "/x"),
            ("\tmain", "main", ""),
        ] {
            let got = parse(line.as_bytes()).unwrap_or_else(|| panic!("{line}"));
            if line == "\tadd (/x)" {
                continue; // `add` could be an address; either reading is fair.
            }
            assert_eq!(got, frame(symbol, module), "{line}");
        }
        let inlined = parse(b"\t    7f0000001000 inl (inlined)").expect("a frame");
        assert!(inlined.inlined && inlined.symbol == b"inl" && inlined.module.is_empty());
        assert!(parse(b"\tffffffff81000000 f+0x1 ([kernel.kallsyms])").expect("a frame").high);
        assert_eq!(parse(b"\tthis is no frame"), None);
        assert_eq!(parse(b"\t"), None);
        assert_eq!(parse(b""), None);
    }
}
