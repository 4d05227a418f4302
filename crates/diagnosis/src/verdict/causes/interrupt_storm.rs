//! Interrupts or softirqs that take a core before any thread can run.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::InterruptStorm],
    judge: |_, finding| {
        let core = finding.ties.cores.first()?;
        Some(Root::of(
            finding,
            format!("interrupts come before every thread on core {core}"),
            measured(finding, format!("the interrupts were counted on core {core}")),
            "Spreading them over more cores does not make them fewer: who sends or what fires so often remains.",
        ))
    },
};
