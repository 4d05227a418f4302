//! A thread that does not leave its core to others: real-time, pinned, or in the kernel without a break.

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
                "{}{} had core {core} for itself while others waited for it",
                thread.name(),
                case.home_of(thread.pid)
            ),
            measured(finding, format!("{} ran on core {core}, and the others waited for that core", thread.name())),
            "Why the program asks for this class or core is for its owner to say.",
        ))
    },
};
