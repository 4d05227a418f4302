//! What could not be seen, and what looking cost.

use crate::Code;
use crate::name::{Name, named};
use serde::{Deserialize, Serialize};

/// Something that could not be seen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Unseen {
    /// The probe that is blind, or the code of the rule that cannot tell.
    pub probe: String,
    /// Which part of what the probe reads, if a rule asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<About>,
    /// What is unknown because of it: "run-queue waits of other users' threads".
    pub what: String,
    /// Why: "/proc/pressure/cpu: No such file or directory".
    pub why: String,
    /// How it could be seen: "run as root", "boot with psi=1".
    pub how_to_see: String,
}

impl Unseen {
    /// The rule that cannot tell; `None` if a probe is blind. No probe has the name of a code.
    pub fn rule(&self) -> Option<Code> {
        Code::parse(&self.probe)
    }
}

macro_rules! abouts {
    ($($(#[$doc:meta])* $variant:ident = $text:literal,)*) => {
        /// What a probe that reads many things is blind to.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum About {
            $($(#[$doc])* $variant,)*
            /// Of a newer version than this one.
            Other(Name),
        }

        impl About {
            pub const ALL: &[About] = &[$(About::$variant,)*];

            pub fn as_str(&self) -> &str {
                match self {
                    $(About::$variant => $text,)*
                    About::Other(name) => name.as_str(),
                }
            }

            pub fn parse(text: &str) -> Option<About> {
                match text { $($text => Some(About::$variant),)* _ => None }
            }
        }
    };
}

abouts! {
    /// How many memory cgroups there are.
    MemoryCgroups = "memory-cgroups",
    /// How many of them are dead.
    DeadCgroups = "dead-cgroups",
    /// The names of the dead.
    DeadNames = "dead-names",
    /// Throttling by CPU quotas.
    CpuQuotas = "cpu-quotas",
    /// How long a read of memory statistics takes.
    StatsRead = "stats-read",
    /// The same, if timing it would do harm.
    DangerousStatsRead = "dangerous-stats-read",
}

named!(About, "what is not seen");

/// What looking cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time until the first full look was done.
    pub startup_cpu_ms: u64,
    /// CPU time after that.
    pub cpu_ms: u64,
    pub peak_rss_bytes: u64,
}
