//! Page faults or huge pages take the time.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::PageFaults, Code::HugePages],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            match finding.code {
                Code::HugePages => "the kernel makes huge pages instead of running the jobs",
                _ => "the program touches memory that it does not have yet, again and again",
            },
            measured(finding, "the samples are of the same threads"),
            "Settings of huge pages or of the allocator move the cost; whether the program needs so much new memory is its own matter.",
        ))
    },
};
