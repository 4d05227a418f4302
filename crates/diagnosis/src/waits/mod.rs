//! What the wait ledger means: who lost markedly, who took it, and why that one came first.

pub mod blocks;
pub mod cited;
pub mod losses;
pub mod precedence;
#[cfg(test)]
pub mod test_ledger;
