//! Text of the node as Markdown. Names of units and processes, and lines of logs, may hold anything: none of it may become markup.

use super::safe::{self, one_line};

/// A line of text. What stands between backticks becomes code: our own texts write commands so.
pub fn line(text: &str) -> String {
    let text = one_line(text);
    let parts: Vec<&str> = text.trim().split('`').collect();
    let mut out = String::new();
    for (i, part) in parts.iter().enumerate() {
        let is_code = i % 2 == 1;
        let is_closed = i + 1 < parts.len();
        match (is_code, is_closed) {
            (false, _) => out.push_str(&escaped(part)),
            // Between two of them there is no third: nothing in it can end it.
            (true, true) if !part.trim().is_empty() => out.push_str(&format!("`{part}`")),
            (true, true) => out.push_str(&format!("\\`{part}\\`")),
            (true, false) => out.push_str(&format!("\\`{}", escaped(part))),
        }
    }
    not_a_block(out)
}

/// The cell of a table. Code would not be safe there: tables are cut at `|` before code is looked for.
pub fn cell(text: &str) -> String {
    escaped(one_line(text).trim())
}

/// Lines as they are.
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
            // Within a word it means nothing.
            '_' => !(before.is_alphanumeric() && after.is_alphanumeric()),
            // Neither http:// nor www. shall become a link.
            ':' => after == '/',
            '.' => out.to_ascii_lowercase().ends_with("www"),
            _ => false,
        };
        if is_markup {
            out.push('\\');
        }
        out.push(c);
        // Nobody is to be called by the name of a process.
        if c == '@' && !before.is_alphanumeric() {
            out.push(safe::mark(safe::Style::Apart));
        }
        before = c;
    }
    out
}

/// At the beginning of a line some signs begin a heading, a list or a rule.
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
    fn names_become_no_markup() {
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
    fn commands_are_code_and_no_name_ends_them() {
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
    fn a_block_ends_where_we_end_it() {
        assert_eq!(code_block("a\n```\nb"), "````text\na\n```\nb\n````\n");
        assert_eq!(code_block("x"), "```text\nx\n```\n");
    }
}
