//! Something of fixed size is full: the table of connections, what the provider allows.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::ConntrackFull, Code::NicAllowance],
    judge: |_, finding| {
        Some(Root::of(
            finding,
            match finding.code {
                Code::NicAllowance => "the provider drops what is more than this kind of machine may send or receive",
                _ => "the kernel drops packets of new connections when its table is full",
            },
            measured(finding, "limit and drops are counted at the same place"),
            "A larger limit does not say who needs it.",
        ))
    },
};
