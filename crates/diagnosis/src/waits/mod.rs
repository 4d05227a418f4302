//! What the wait ledger says: who lost time, to whom, and why that one came first.

pub mod sums;
