//! Files of every kind through the readers, the views and the writers. Against the real perf: `tests/perf.rs`.

#[path = "../targets/mod.rs"]
mod targets;

mod corpus;
mod cut;
mod hostile;
