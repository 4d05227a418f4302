//! What the wait ledger means: who lost time, who took it, and why that one came first.

pub mod blocks;
pub mod cited;
pub mod losses;
pub mod precedence;
pub mod sums;
#[cfg(test)]
pub mod test_ledger;
