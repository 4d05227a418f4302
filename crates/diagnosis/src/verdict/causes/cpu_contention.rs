//! More threads want to run than there are cores, and nobody in particular is to blame.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CpuContention],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "more threads want to run than the cores can serve",
            measured(finding, "the same cores were full and waited for"),
            "Limits and weights share the shortage out; they do not end it.",
        ))
    },
};
