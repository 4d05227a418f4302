//! What a process runs, without its arguments, which may contain secrets.

use super::stat::without_controls;

/// Longer names are truncated.
const MAX_NAME: usize = 120;

/// From /proc/PID/cmdline: the program, or interpreter and script (`python3 train.py`, `python3 -m ray.serve`, `java -jar x.jar`).
///
/// If a program has replaced its arguments with a title (`sshd: root@pts/0`), only the first word is kept.
pub fn command_of(cmdline: &[u8]) -> Option<String> {
    let arguments = arguments(cmdline);
    let first = *arguments.first()?;
    if let Some(title) = title(first) {
        return Some(title);
    }
    // Chromium and others put the whole line into one string.
    let first = if arguments.len() == 1 { first.split(u8::is_ascii_whitespace).next()? } else { first };
    let program = name(first.strip_prefix(b"-").unwrap_or(first)).trim_end_matches(':').to_owned();
    if program.is_empty() {
        return None;
    }
    Some(match script(&program, &arguments[1..]) {
        Some(script) => format!("{program} {script}"),
        None => program,
    })
}

/// The title Ray gives its workers (`ray::Learner.step`), up to where arguments could begin.
pub fn title(first: &[u8]) -> Option<String> {
    let title = first.strip_prefix(b"ray::")?;
    let end = title.iter().position(|b| b.is_ascii_whitespace() || *b == b'(').unwrap_or(title.len());
    Some(format!("ray::{}", cut(without_controls(&title[..end]))))
}

/// The arguments, without the empty strings that setproctitle leaves behind.
pub fn arguments(cmdline: &[u8]) -> Vec<&[u8]> {
    let mut arguments: Vec<&[u8]> = cmdline.split(|&b| b == 0).take(MAX_ARGUMENTS).collect();
    while arguments.last().is_some_and(|last| last.is_empty()) {
        arguments.pop();
    }
    arguments
}

/// An interpreter's script comes before this.
const MAX_ARGUMENTS: usize = 512;

pub fn is_python(program: &str) -> bool {
    program.starts_with("python") || program.starts_with("pypy")
}

/// What an interpreter runs.
fn script(program: &str, arguments: &[&[u8]]) -> Option<String> {
    if is_python(program) {
        return python(arguments);
    }
    match program {
        "sh" | "bash" | "dash" | "ash" | "zsh" | "ksh" => shell(arguments),
        "node" | "nodejs" => node(arguments),
        "java" => java(arguments),
        "ruby" | "perl" => ruby_or_perl(arguments),
        _ => None,
    }
}

fn python(arguments: &[&[u8]]) -> Option<String> {
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            b"-" => return None,
            b"--check-hash-based-pycs" => drop(rest.next()),
            _ if argument.starts_with(b"--") => {}
            _ if argument.starts_with(b"-") => {
                for (at, flag) in argument.iter().enumerate().skip(1) {
                    let attached = Some(&argument[at + 1..]).filter(|a| !a.is_empty());
                    match flag {
                        b'm' => {
                            let module = attached.or_else(|| rest.next().copied())?;
                            return Some(format!("-m {}", name(module)));
                        }
                        b'c' => return Some("-c".to_owned()),
                        b'W' | b'X' => {
                            if attached.is_none() {
                                rest.next();
                            }
                            break;
                        }
                        _ => {}
                    }
                }
            }
            _ => return Some(name(argument)),
        }
    }
    None
}

fn shell(arguments: &[&[u8]]) -> Option<String> {
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            b"--" => return rest.next().map(|script| name(script)),
            b"-" => return None,
            // A pipe from `bash <(…)`: its number means nothing.
            _ if argument.starts_with(b"/dev/fd/") => return None,
            b"--rcfile" | b"--init-file" => drop(rest.next()),
            _ if argument.starts_with(b"--") => {}
            _ if argument.starts_with(b"-") || argument.starts_with(b"+") => {
                if argument.contains(&b'c') {
                    return Some("-c".to_owned());
                }
                if argument.contains(&b's') {
                    return None;
                }
                if matches!(argument.last(), Some(b'o' | b'O')) {
                    rest.next();
                }
            }
            _ => return Some(name(argument)),
        }
    }
    None
}

fn node(arguments: &[&[u8]]) -> Option<String> {
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            b"-e" | b"--eval" | b"-p" | b"--print" | b"-pe" => return Some("-e".to_owned()),
            b"-r" | b"--require" | b"--import" | b"--loader" | b"--experimental-loader" | b"-C" | b"--conditions" => {
                rest.next();
            }
            b"--" => {}
            b"-" => return None,
            _ if argument.starts_with(b"-") => {}
            // May be the value of an option we do not know.
            _ => {
                let is_script = [&b".js"[..], b".mjs", b".cjs", b".ts"].iter().any(|e| argument.ends_with(e));
                return (is_script || argument.contains(&b'/')).then(|| name(argument));
            }
        }
    }
    None
}

fn java(arguments: &[&[u8]]) -> Option<String> {
    const WITH_VALUE: [&[u8]; 11] = [
        b"-cp",
        b"-classpath",
        b"--class-path",
        b"-p",
        b"--module-path",
        b"--upgrade-module-path",
        b"--add-modules",
        b"--add-opens",
        b"--add-exports",
        b"--add-reads",
        b"--patch-module",
    ];
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            b"-jar" => return rest.next().map(|jar| format!("-jar {}", name(jar))),
            b"-m" | b"--module" => return rest.next().map(|module| format!("-m {}", cut(without_controls(module)))),
            _ if WITH_VALUE.contains(&argument) => drop(rest.next()),
            _ if argument.starts_with(b"-") || argument.starts_with(b"@") => {}
            _ => {
                let class = without_controls(argument);
                let plausible = class.chars().all(|c| c.is_alphanumeric() || "._$/-".contains(c));
                return plausible.then(|| cut(class));
            }
        }
    }
    None
}

fn ruby_or_perl(arguments: &[&[u8]]) -> Option<String> {
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            b"--" => return rest.next().map(|script| name(script)),
            b"-" => return None,
            b"-I" | b"-r" | b"-C" => drop(rest.next()),
            _ if argument.starts_with(b"--") => {}
            _ if argument.starts_with(b"-I") || argument.starts_with(b"-M") || argument.starts_with(b"-r") => {}
            _ if argument.starts_with(b"-") => {
                if argument.contains(&b'e') || argument.contains(&b'E') {
                    return Some("-e".to_owned());
                }
            }
            _ => return Some(name(argument)),
        }
    }
    None
}

/// The last part of a path, without anything after `?` or `=`: a script may be named by URL.
fn name(path: &[u8]) -> String {
    let path = path.split(|b| matches!(b, b'?' | b'=')).next().unwrap_or_default();
    let last = path.rsplit(|&b| b == b'/').find(|part| !part.is_empty()).unwrap_or_default();
    cut(without_controls(last))
}

fn cut(text: String) -> String {
    match text.char_indices().nth(MAX_NAME) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn command(arguments: &[&str]) -> Option<String> {
        let mut bytes = arguments.join("\0").into_bytes();
        bytes.push(0);
        command_of(&bytes)
    }

    #[test]
    fn programs_lose_their_path_and_arguments() {
        for (arguments, expected) in [
            (&["/usr/bin/kubelet", "--token=SECRET"][..], "kubelet"),
            (&["-bash"], "bash"),
            (&["mysqld", "-pSECRET"], "mysqld"),
            (&["sshd: root@pts/0"], "sshd"),
            (&["postgres: alice SECRET 10.0.0.1(1) SELECT"], "postgres"),
            (&["/opt/chrome/chrome --type=renderer --key=SECRET"], "chrome"),
            (&["ray::Learner.step"], "ray::Learner.step"),
            (&["ray::Learner(key=SECRET).step()"], "ray::Learner"),
            (&["ray::IDLE", "", "", ""], "ray::IDLE"),
            (&["prog=SECRET"], "prog"),
        ] {
            assert_eq!(command(arguments).as_deref(), Some(expected), "{arguments:?}");
        }
        assert_eq!(command_of(b""), None);
        assert_eq!(command_of(b"\0\0"), None);
    }

    #[test]
    fn interpreters_show_their_script_and_nothing_else() {
        for (arguments, expected) in [
            (&["/v/bin/python3", "-u", "/srv/train.py", "--key", "SECRET"][..], "python3 train.py"),
            (&["python3.11", "-X", "dev", "-Wignore", "-m", "ray.serve", "SECRET"], "python3.11 -m ray.serve"),
            (&["python", "-um", "torch.distributed.run", "x.py"], "python -m torch.distributed.run"),
            (&["python3", "-mhttp.server", "SECRET"], "python3 -m http.server"),
            (&["python3", "-B", "-c", "SECRET"], "python3 -c"),
            (&["python3"], "python3"),
            (&["python3", "-", "SECRET"], "python3"),
            (&["/bin/sh", "-c", "SECRET"], "sh -c"),
            (&["bash", "-ec", "SECRET"], "bash -c"),
            (&["bash", "-euo", "pipefail", "/srv/run.sh", "SECRET"], "bash run.sh"),
            (&["bash", "--norc", "run.sh", "SECRET"], "bash run.sh"),
            (&["bash", "-s", "SECRET"], "bash"),
            (&["bash", "/dev/fd/3", "SECRET"], "bash"),
            (&["node", "--max-old-space-size=9", "-r", "dotenv", "/srv/app.js", "SECRET"], "node app.js"),
            (&["node", "--unknown", "SECRET", "app.js"], "node"),
            (&["node", "-e", "SECRET"], "node -e"),
            (&["java", "-Dkey=SECRET", "-cp", "SECRET:x", "org.apache.Main", "SECRET"], "java org.apache.Main"),
            (&["java", "-Xmx1g", "-jar", "/srv/kafka.jar", "SECRET"], "java -jar kafka.jar"),
            (&["java", "--unknown", "key=SECRET"], "java"),
            (&["ruby", "-I", "lib", "puma.rb", "SECRET"], "ruby puma.rb"),
            (&["perl", "-w", "x.pl", "SECRET"], "perl x.pl"),
            (&["perl", "-Mstrict", "-ne", "SECRET"], "perl -e"),
            (&["perl", "-E", "SECRET"], "perl -e"),
        ] {
            assert_eq!(command(arguments).as_deref(), Some(expected), "{arguments:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_short_clean_name_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            if let Some(command) = command_of(&bytes) {
                prop_assert!(command.chars().count() <= 2 * MAX_NAME + 10);
                prop_assert!(!command.chars().any(char::is_control));
            }
        }

        #[test]
        fn arguments_after_the_script_never_show(
            program in "python3|bash|node|java|ruby|perl|kubelet|nginx",
            flags in proptest::collection::vec("-[uBvxw]", 0..3),
            secrets in proptest::collection::vec("--?[a-z]{1,5}|SECRET[a-z]{0,5}", 1..5),
        ) {
            let mut line = vec![program];
            line.extend(flags);
            line.push("/srv/main.js".to_owned());
            line.extend(secrets);
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            prop_assert!(!command(&line).unwrap_or_default().contains("SECRET"));
        }

        #[test]
        fn any_python_line_is_read(line in proptest::collection::vec("-?-?[a-zA-Z]{0,4}", 0..8)) {
            for program in ["python3", "bash", "node", "java", "ruby", "perl"] {
                let mut all = vec![program];
                all.extend(line.iter().map(String::as_str));
                let _ = command(&all);
            }
        }
    }
}
