//! An agent that watches the node hurts it by looking.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::ObserverCost],
    judge: |_, finding| {
        let observer = finding.ties.culprits.first()?;
        Some(Root::of(
            finding,
            format!(
                "{} spends this time looking at other processes or cgroups, not at work of its own",
                observer.name()
            ),
            measured(finding, format!("{} was sampled in these functions", observer.name())),
            "What it measured is then missing: see whether anybody uses it before it is turned off.",
        ))
    },
};
