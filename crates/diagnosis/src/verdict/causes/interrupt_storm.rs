//! Interrupts or softirqs that take a core before any thread can run.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::InterruptStorm],
    judge: |_, finding| {
        let core = finding.ties.cores.first()?;
        Some(Root::of(
            finding,
            format!("interrupts run ahead of every thread on core {core}"),
            measured(finding, format!("the interrupts were counted on core {core}")),
            "Spreading interrupts over more cores does not reduce them: whatever causes them goes on.",
        ))
    },
};
