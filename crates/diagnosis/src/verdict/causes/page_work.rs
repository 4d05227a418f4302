//! Page faults or huge pages take the time.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::PageFaults, Code::HugePages],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            match finding.code {
                Code::HugePages => "the kernel makes huge pages instead of running jobs",
                _ => "the program keeps touching memory that is not mapped yet",
            },
            measured(finding, "the samples are of the same threads"),
            "Huge page and allocator settings only move the cost; whether the program needs that much new memory is up to its owner.",
        ))
    },
};
