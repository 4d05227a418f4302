//! From evidence to findings.
//!
//! A rule is a pure function of the evidence that answers *finding*, *fine* or *cannot tell, because*. Each has a file under
//! [`rules`]. What several rules derive from the evidence (how busy a core was, who owned it, who waited) is in [`cores`] and
//! [`log_events`].

pub mod agents;
pub mod case;
pub mod cgroup_paths;
pub mod cores;
pub mod finding;
pub mod kernel_work;
pub mod key;
pub mod log_events;
pub mod memcg_size;
pub mod outcome;
pub mod rules;
pub mod ties;
pub mod units;
pub mod verdict;
pub mod waits;
pub mod words;
pub mod zombies;

pub use case::Case;
pub use coroner_report::code;
pub use finding::{
    Answer, Code, Diagnosis, Fact, FactKey, Finding, FindingRef, RuledOut, Severity, Subject, SubjectKind, diagnose,
};
pub use outcome::Outcome;
