//! Frame labels in flame graphs and folded stacks: the function without its arguments, or `[module]` without a symbol, and a
//! suffix that marks kernel (`_[k]`), JIT (`_[j]`) and inlined (`_[i]`) code, which flame graph tools colour by.

use super::FramePlace;

/// Whose code a module is. `high`: the address lies in the upper half, which only the kernel uses.
pub fn place_of(module: &str, high: bool) -> FramePlace {
    let base = base_name(module);
    if module.is_empty() || module == "[unknown]" {
        return if high { FramePlace::Kernel } else { FramePlace::User };
    }
    if let Some(inner) = module.strip_prefix('[') {
        // Bracketed names are the kernel, its modules and BPF programs, except for what it maps into processes.
        let mapped = ["vdso", "vsyscall", "heap", "stack", "anon", "uprobes", "vvar"];
        return if mapped.iter().any(|name| inner.starts_with(name)) { FramePlace::User } else { FramePlace::Kernel };
    }
    if base == "vmlinux" || base.starts_with("vmlinux-") || is_module_file(base) {
        FramePlace::Kernel
    } else if is_jit_map(module) {
        FramePlace::Jit
    } else {
        FramePlace::User
    }
}

/// Whether kernel code with this module name belongs to a module or a BPF program.
pub fn is_module(module: &str) -> bool {
    match module.strip_prefix('[') {
        Some(inner) => !["kernel", "guest", "unknown"].iter().any(|own| inner.starts_with(own)),
        None => is_module_file(base_name(module)),
    }
}

fn is_module_file(base: &str) -> bool {
    [".ko", ".ko.xz", ".ko.gz", ".ko.zst"].iter().any(|end| base.ends_with(end))
}

/// perf's `/tmp/perf-PID.map`.
fn is_jit_map(module: &str) -> bool {
    module
        .rsplit_once("/perf-")
        .and_then(|(_, rest)| rest.strip_suffix(".map"))
        .is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The label of a frame. Contains `;` only if a compiler's `outer->inner` names several frames.
pub fn label(symbol: &str, module: &str, place: FramePlace, suffixes: bool) -> String {
    if symbol.is_empty() || symbol == "[unknown]" {
        let mut text = if module.is_empty() || module == "[unknown]" {
            "[unknown]".to_owned()
        } else {
            format!("[{}]", base_name(module).replace(';', ":"))
        };
        if suffixes && text != "[unknown]" {
            text.push_str(match place {
                FramePlace::Kernel => "_[k]",
                FramePlace::Jit => "_[j]",
                FramePlace::User => "",
            });
        }
        return text;
    }
    let mut text = String::with_capacity(symbol.len() + 4);
    // Java's perf-map-agent appends inlined callees to their caller: `outer->inner`. `operator->` is a name.
    let several = symbol.contains("->") && !symbol.contains("operator->");
    let mut parts = symbol.split("->");
    let push = |part: &str, suffix: &str, text: &mut String| {
        if !text.is_empty() {
            text.push(';');
        }
        text.extend(without_arguments(part).chars().map(|c| if c == ';' { ':' } else { c }));
        text.push_str(suffix);
    };
    let suffix = match place {
        _ if !suffixes => "",
        FramePlace::Kernel => "_[k]",
        FramePlace::Jit => "_[j]",
        FramePlace::User => "",
    };
    if several {
        push(parts.next().unwrap_or_default(), suffix, &mut text);
        for part in parts {
            push(part, if suffixes { "_[i]" } else { "" }, &mut text);
        }
    } else {
        push(symbol, suffix, &mut text);
    }
    text
}

/// Cuts a C++ parameter list: `f(int) const` becomes `f`. Keeps parentheses that belong to the name: `(anonymous namespace)::f`,
/// Go's `(*T).Method`, `operator()`, lambdas in braces, Rust's `<(A, B) as T>::f`.
fn without_arguments(symbol: &str) -> &str {
    if !symbol.contains('(') {
        return symbol;
    }
    let bytes = symbol.as_bytes();
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'{' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] != b'-' => depth = depth.saturating_sub(1),
            b'}' => depth = depth.saturating_sub(1),
            b'(' if at > 0 && depth == 0 => {
                let (before, after) = (&symbol[..at], &symbol[at..]);
                let part_of_name = before.ends_with('.')
                    || before.ends_with("operator")
                    || before.ends_with("::")
                    || after.starts_with("(anonymous namespace)");
                if !part_of_name {
                    return before;
                }
            }
            _ => {}
        }
    }
    symbol
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_cut_and_names_kept() {
        for (symbol, want) in [
            ("foo(int, char const*)", "foo"),
            ("foo", "foo"),
            ("(anonymous namespace)::bar(int)", "(anonymous namespace)::bar"),
            ("ns::(anonymous namespace)::bar(int) const", "ns::(anonymous namespace)::bar"),
            ("go.(*T).Method", "go.(*T).Method"),
            ("X::operator()(int) const", "X::operator()"),
            ("main::{lambda(int)#1}::f(int)", "main::{lambda(int)#1}::f"),
            ("<T as (A,B)>::call", "<T as (A,B)>::call"),
        ] {
            assert_eq!(label(symbol, "/bin/x", FramePlace::User, true), want);
        }
    }

    #[test]
    fn the_suffix_marks_whose_code_it_is() {
        let of = |symbol: &str, module: &str| label(symbol, module, place_of(module, false), true);
        assert_eq!(of("schedule", "[kernel.kallsyms]"), "schedule_[k]");
        assert_eq!(of("nft_do_chain", "[nf_tables]"), "nft_do_chain_[k]");
        assert_eq!(of("nft_do_chain", "/lib/modules/6.1/kernel/net/nf_tables.ko.xz"), "nft_do_chain_[k]");
        assert_eq!(of("f", "/usr/lib/debug/vmlinux-5.3"), "f_[k]");
        assert_eq!(of("[unknown]", "/usr/lib/libc.so.6"), "[libc.so.6]");
        assert_eq!(of("[unknown]", "[unknown]"), "[unknown]");
        assert_eq!(of("Lcom/foo/Bar;::baz", "/tmp/perf-123.map"), "Lcom/foo/Bar:::baz_[j]");
        assert_eq!(of("x->y", "/tmp/perf-123.map"), "x_[j];y_[i]");
        assert_eq!(of("T::operator->", "/bin/x"), "T::operator->");
        assert_eq!(of("__vdso_clock_gettime", "[vdso]"), "__vdso_clock_gettime");
        assert_eq!(place_of("[unknown]", true), FramePlace::Kernel);
    }
}
