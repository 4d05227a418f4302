//! Times, cores and oddities in words.

use coroner_diagnosis::words::count;
use coroner_profile::import::{Oddity, OddityKind};

/// `0-3,7`.
pub fn cores(cores: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for core in cores {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*core) => *last = *core,
            _ => parts.push((*core, *core)),
        }
    }
    let part = |(from, to): &(u32, u32)| if from == to { from.to_string() } else { format!("{from}-{to}") };
    parts.iter().map(part).collect::<Vec<_>>().join(",")
}

/// What an import could not use, in words.
pub fn oddity(oddity: &Oddity) -> String {
    let what = match oddity.kind {
        OddityKind::UnparsedLine => "lines could not be parsed",
        OddityKind::UnparsedFrame => "lines within stacks are not frames",
        OddityKind::OverlongLine => "lines are too long and were skipped",
        OddityKind::HeadlessStack => "stacks have no event line; kept without task and time",
        OddityKind::EmptyStack => "events have no stack; kept with their task only",
        OddityKind::PerfRecord => "records are perf's own (mmap, comm, fork), not samples",
        OddityKind::SourceLine => "source lines of frames were not kept",
        OddityKind::StrayStack => "stacks are broken from some frame on; kept up to there",
        OddityKind::BadRecord => "records could not be decoded",
        OddityKind::Unsupported => "parts of the file are not supported",
    };
    let first: Vec<String> = oddity.first.iter().take(3).map(u64::to_string).collect();
    let place = match oddity.kind {
        OddityKind::BadRecord | OddityKind::Unsupported | OddityKind::StrayStack => "at byte",
        _ => "in line",
    };
    let more = if oddity.count > 3 { " …" } else { "" };
    let example = if oddity.example.is_empty() { String::new() } else { format!(": {}", oddity.example) };
    format!("{} {what} ({place} {}{more}{example})", count(oddity.count), first.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_written_as_ranges() {
        assert_eq!(cores(&[0, 1, 2, 3, 7, 9, 10]), "0-3,7,9-10");
        assert_eq!(cores(&[5]), "5");
        assert_eq!(cores(&[u32::MAX]), u32::MAX.to_string());
    }
}
