//! Text from the node as Markdown. Names and log lines may contain anything; none of it may become markup.

use super::safe::{self, one_line};

/// A line of text. Text between backticks becomes code: our own texts mark commands that way.
pub fn line(text: &str) -> String {
    let text = one_line(text);
    let parts: Vec<&str> = text.trim().split('`').collect();
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        let is_code = i % 2 == 1;
        let is_closed = i + 1 < parts.len();
        match (is_code, is_closed) {
            (false, _) => out.push_str(&escaped(part)),
            // It was split at backticks, so nothing inside can end it.
            (true, true) if !part.trim().is_empty() => out.push_str(&format!("`{part}`")),
            (true, true) => out.push_str(&format!("\\`{part}\\`")),
            (true, false) => out.push_str(&format!("\\`{}", escaped(part))),
        }
    }
    not_a_block(out)
}

/// A table cell. No code here: Markdown splits tables at `|` before it looks for code.
pub fn cell(text: &str) -> String {
    escaped(one_line(text).trim())
}

pub fn code_block(text: &str) -> String {
    let lines: Vec<String> = text.lines().map(one_line).collect();
    let longest = lines.iter().flat_map(|line| line.split(|c| c != '`')).map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}text\n{}\n{fence}\n", lines.join("\n"))
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let after = rest.peek().copied().unwrap_or(' ');
        let is_markup = match c {
            '\\' | '`' | '*' | '[' | ']' | '<' | '>' | '|' | '~' | '&' | '$' => true,
            // No markup within a word.
            '_' => !(before.is_alphanumeric() && after.is_alphanumeric()),
            // http:// and www. must not become links.
            ':' => after == '/',
            '.' => out.to_ascii_lowercase().ends_with("www"),
            _ => false,
        };
        if is_markup {
            out.push('\\');
        }
        out.push(c);
        // A process name must not notify somebody.
        if c == '@' && !before.is_alphanumeric() {
            out.push(safe::mark(safe::Style::Apart));
        }
        before = c;
    }
    out
}

/// Escapes what would start a heading, a list or a rule.
fn not_a_block(line: String) -> String {
    if line.starts_with(['#', '-', '+', '=']) {
        return format!("\\{line}");
    }
    let digits = line.chars().take_while(char::is_ascii_digit).count();
    match line[digits..].starts_with(['.', ')']) && digits > 0 {
        true => format!("{}\\{}", &line[..digits], &line[digits..]),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_become_markup() {
        assert_eq!(line("a*b* <img src=x> [x](y) ~~z~~ 1|2"), r"a\*b\* \<img src=x\> \[x\](y) \~\~z\~\~ 1\|2");
        assert_eq!(line("# title"), r"\# title");
        assert_eq!(line("- item"), r"\- item");
        assert_eq!(line("12. item"), r"12\. item");
        assert_eq!(line("a\nb\u{1b}[31m"), "a\u{fffd}b\u{fffd}\\[31m");
        assert_eq!(line("&lt; \\ $x$"), r"\&lt; \\ \$x\$");
        assert_eq!(line("http://x www.y"), r"http\://x www\.y");
        assert_eq!(safe::text(&line("@root getty@tty1.service")), "@\u{200b}root getty@tty1.service");
        assert_eq!(line("memory_reclaim _x_"), r"memory_reclaim \_x\_");
    }

    #[test]
    fn commands_are_code_and_names_cannot_end_them() {
        assert_eq!(line("Stop it: `systemctl stop a_b`."), "Stop it: `systemctl stop a_b`.");
        assert_eq!(line("`a``b`"), "`a``b`");
        assert_eq!(line("``` fence"), "\\`\\`\\` fence");
        assert_eq!(line("`stop x`<b>`y`"), r"`stop x`\<b\>`y`");
    }

    #[test]
    fn a_cell_stays_one_cell() {
        assert_eq!(cell("a|b"), r"a\|b");
        assert_eq!(cell("a\\|b"), r"a\\\|b");
        assert_eq!(cell("`a|b`"), r"\`a\|b\`");
        assert_eq!(cell("a\nb"), "a\u{fffd}b");
    }

    #[test]
    fn text_cannot_end_a_code_block() {
        assert_eq!(code_block("a\n```\nb"), "````text\na\n```\nb\n````\n");
        assert_eq!(code_block("x"), "```text\nx\n```\n");
    }
}
