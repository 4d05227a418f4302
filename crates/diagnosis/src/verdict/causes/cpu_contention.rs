//! More threads want to run than the cores can serve, and none in particular is to blame.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::CpuContention],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            "more threads want to run than the cores can serve",
            measured(finding, "the full cores are the ones that threads waited for"),
            "Limits and weights only redistribute the shortage.",
        ))
    },
};
