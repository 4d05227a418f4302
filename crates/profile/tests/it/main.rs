//! All kinds of files through readers, views and writers. `tests/perf.rs` compares with the real perf.

#[path = "../targets/mod.rs"]
mod targets;

mod corpus;
mod cut;
mod hostile;
