//! A thread that does not leave its core to others: real-time, pinned, or in the kernel without a break.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CoreMonopolised],
    judge: |_, finding| {
        let thread = finding.ties.culprits.first()?;
        let core = finding.ties.cores.first()?;
        Some(Root::of(
            finding,
            format!("{} had core {core} for itself while others waited for it", thread.name()),
            measured(finding, format!("{} ran on core {core}, and the others waited for that core", thread.name())),
            "Who starts the program sets its class and place: it returns with the next start unless that is changed.",
        ))
    },
};
