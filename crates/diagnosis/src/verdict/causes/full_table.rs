//! A limit is used up: the connection table, or what the provider allows.

use super::{Cause, Root, measured};
use crate::code::Code;
use crate::verdict::{Proof, Proofs};

pub const CAUSE: Cause = Cause {
    codes: &[Code::ConntrackFull, Code::NicAllowance],
    judge: |_, finding| {
        let measured = measured(finding, "limit and drops are counted in the same place");
        Some(Root::of(
            finding,
            match finding.code {
                Code::NicAllowance => "the provider drops what exceeds this instance type's network allowance",
                _ => "the kernel drops packets of new connections when its connection table is full",
            },
            match finding.code == Code::ConntrackFull && !finding.is_ongoing() {
                false => measured,
                true => Proofs { order: Proof::not_seen("what filled it, before it was watched"), ..measured },
            },
            "A larger limit does not show what uses it up.",
        ))
    },
};
