//! An agent that monitors the node harms it by doing so.

use super::{Cause, Root, measured};
use crate::code::Code;

pub const CAUSE: Cause = Cause {
    codes: &[Code::ObserverCost],
    judge: |case, finding| {
        let observer = finding.ties.culprits.first()?;
        Some(Root::of(
            finding,
            format!(
                "{}{} spends this time reading statistics of processes or cgroups; of which ones, samples do not show",
                observer.name(),
                case.home_of(observer.pid)
            ),
            measured(finding, format!("{} was sampled in these functions", observer.name())),
            "Its measurements will be missing: check whether anybody uses them before turning it off.",
        ))
    },
};
