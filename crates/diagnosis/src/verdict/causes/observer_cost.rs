//! An agent that watches the node hurts it by looking.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::ObserverCost],
    judge: |case, finding| {
        let observer = finding.ties.culprits.first()?;
        Some(Root::of(
            finding,
            format!(
                "{}{} spends this time reading what processes or cgroups use, not at other work; whose, the samples do not say",
                observer.name(),
                case.home_of(observer.pid)
            ),
            measured(finding, format!("{} was sampled in these functions", observer.name())),
            "What it measured is then missing: see whether anybody uses it before it is turned off.",
        ))
    },
};
