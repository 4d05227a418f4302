//! A thread that keeps others off its core: real-time, pinned, or in the kernel without a break.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CoreMonopolised],
    judge: |case, finding| {
        let thread = finding.ties.culprits.first()?;
        let core = finding.ties.cores.first()?;
        Some(Root::of(
            finding,
            format!(
                "{}{} kept core {core} to itself while other threads waited for it",
                thread.name(),
                case.home_of(thread.pid)
            ),
            measured(finding, format!("{} ran on core {core}, the core that the others waited for", thread.name())),
            "Only the program's owner knows why it uses this scheduling class or core.",
        ))
    },
};
