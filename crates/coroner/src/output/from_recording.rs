//! Commands of coroner in a diagnosis of a recording: they must look at the same recording, not at the node on which they are pasted.

use coroner_diagnosis::Diagnosis;

/// The commands that read a recording with `--from`.
const READ_RECORDINGS: [&str; 4] = ["cores", "fix", "units", "zombies"];
/// Arguments with which they look at a live node.
const LIVE: [&str; 3] = ["--watch", "--apply", "--from"];

/// Adds `from` (`--from FILE`, quoted) to each command that can read a recording, in all texts of the diagnosis.
pub fn carry(diagnosis: &mut Diagnosis, from: &str) {
    let carry = |text: &mut String| *text = in_text(text, from);
    for finding in &mut diagnosis.findings {
        carry(&mut finding.detail);
        carry(&mut finding.remedy);
    }
    for verdict in &mut diagnosis.conclusion.verdicts {
        carry(&mut verdict.remedy);
        carry(&mut verdict.fix);
        carry(&mut verdict.not_fixed);
        verdict.first_aid.as_mut().into_iter().chain(&mut verdict.risk).for_each(carry);
    }
    for unexplained in &mut diagnosis.conclusion.unexplained {
        unexplained.command = command(&unexplained.command, from);
        carry(&mut unexplained.then);
    }
}

/// Commands stand between backquotes.
pub fn in_text(text: &str, from: &str) -> String {
    let parts = text.split('`').enumerate();
    let parts: Vec<String> =
        parts.map(|(i, part)| if i % 2 == 1 { command(part, from) } else { part.to_owned() }).collect();
    parts.join("`")
}

/// `coroner cores` becomes `coroner cores --from FILE`; a pipe stays behind it.
pub fn command(text: &str, from: &str) -> String {
    let (own, rest) = text.split_once(" |").map_or((text, String::new()), |(own, rest)| (own, format!(" |{rest}")));
    let mut words = own.split(' ');
    let is_ours = words.next() == Some("coroner") && words.next().is_some_and(|word| READ_RECORDINGS.contains(&word));
    match is_ours && !words.any(|word| LIVE.contains(&word)) {
        true => format!("{own} {from}{rest}"),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_carry_the_recording() {
        let of = |text| in_text(text, "--from 'my node.coroner'");
        assert_eq!(of("See `coroner cores` and `cat x`."), "See `coroner cores --from 'my node.coroner'` and `cat x`.");
        assert_eq!(of("`coroner fix --json | jq .`"), "`coroner fix --json --from 'my node.coroner' | jq .`");
        for unchanged in [
            "`coroner zombies --watch` names it",
            "coroner cores, not a command",
            "`coroner record --dir DIR`",
            "`coroner fix --apply`",
            "`coroner cores --from x`",
        ] {
            assert_eq!(of(unchanged), unchanged);
        }
    }
}
