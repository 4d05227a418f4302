//! The wait ledger: for every thread, the time it ran, waited for a core, was throttled, or was blocked; and for every wait, who had
//! that core meanwhile.
//!
//! These are sums over an interval. `coroner-diagnosis` (module `waits`) says what they mean: who lost markedly, and to whom.

use crate::tasks::SchedulingClass;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// The books of one interval. Intervals follow each other; sums of a longer time are sums over intervals.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitLedger {
    pub from: Time,
    pub to: Time,
    pub method: LedgerMethod,
    /// How much of the interval was watched: less than its length if the ledger worked in slices to bound its cost.
    pub watched_ns: u64,
    pub parties: Vec<Party>,
    pub accounts: Vec<Account>,
    pub charges: Vec<Charge>,
    pub blocks: Vec<Block>,
    /// Of the cgroups of those who waited or ran meanwhile, and of their ancestors.
    pub weights: Vec<CgroupWeight>,
    /// Waits seen but not charged because a table was full.
    pub unbooked_ns: u64,
}

/// What a cgroup weighs against its siblings when they compete for a core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupWeight {
    /// Path in the hierarchy with the cpu controller.
    pub path: String,
    /// cpu.shares (v1; 1024 unless set) or cpu.weight (v2; 100 unless set).
    pub weight: u64,
}

impl WaitLedger {
    /// Less than this is not told of a thread: on a node with thousands of threads most do next to nothing.
    pub const TRIFLE_NS: u64 = 1_000_000;
    /// Less than this is not told of those who had a core.
    pub const TRIFLING_CHARGE_NS: u64 = 200_000;

    /// Its size in memory, but for what names take.
    pub(crate) fn bytes(&self) -> usize {
        let stacks: usize = self.blocks.iter().map(|block| block.stack.len() * 40).sum();
        size_of_val(self.parties.as_slice())
            + size_of_val(self.accounts.as_slice())
            + size_of_val(self.charges.as_slice())
            + size_of_val(self.blocks.as_slice())
            + stacks
            + self.parties.len() * 64
    }

    /// Sums threads with next to nothing into their party, and those who had a little of a core into [`Runner::Others`].
    pub fn drop_trifles(&mut self) {
        let is_trifle = |account: &Account| {
            let lost = account.waited_ns.max(account.throttled_ns).max(account.blocked_ns);
            lost < WaitLedger::TRIFLE_NS && account.ran_ns < WaitLedger::TRIFLE_NS && account.open_wait_ns == 0
        };
        let mut told = HashSet::new();
        let mut sums: BTreeMap<u32, Account> = BTreeMap::new();
        self.accounts.retain(|account| {
            let is_kept = account.tid.is_some() && !is_trifle(account);
            if is_kept {
                told.insert((account.party, account.tid));
            } else {
                sums.entry(account.party)
                    .or_insert(Account { party: account.party, ..Account::default() })
                    .add(account);
            }
            is_kept
        });
        self.accounts.extend(sums.into_values().filter(|sum| !is_trifle(sum)));
        let mut charges: BTreeMap<(u32, Option<u32>, u32, Runner), u64> = BTreeMap::new();
        for charge in self.charges.drain(..) {
            let tid = charge.tid.filter(|_| told.contains(&(charge.victim, charge.tid)));
            let to = if charge.ns < WaitLedger::TRIFLING_CHARGE_NS { Runner::Others } else { charge.to };
            let sum = charges.entry((charge.victim, tid, charge.core, to)).or_default();
            *sum = sum.saturating_add(charge.ns);
        }
        let has_account: HashSet<u32> = self.accounts.iter().map(|account| account.party).collect();
        let charge = |((victim, tid, core, to), ns)| Charge { victim, tid, to, core, ns };
        self.charges = charges.into_iter().map(charge).filter(|charge| has_account.contains(&charge.victim)).collect();
        let mut used = has_account;
        used.extend(self.blocks.iter().map(|block| block.party));
        used.extend(self.charges.iter().filter_map(|charge| match charge.to {
            Runner::Party(party) => Some(party),
            Runner::Idle | Runner::Others | Runner::Unknown => None,
        }));
        self.parties.retain(|party| used.contains(&party.id));
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LedgerMethod {
    /// Every switch and wake-up was seen.
    Bpf,
    /// From schedstat, thread states and samples of who ran.
    #[default]
    Estimate,
}

impl LedgerMethod {
    pub fn as_str(self) -> &'static str {
        match self {
            LedgerMethod::Bpf => "bpf",
            LedgerMethod::Estimate => "estimate",
        }
    }
}

/// Who runs or waits: the threads of a process that compete alike (same cgroup, class, priority), or short-lived processes with the same
/// parent, name and cgroup.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Party {
    /// Names the party within this ledger only.
    pub id: u32,
    /// `None`: short-lived processes, summed.
    pub pid: Option<u32>,
    /// The process that started it. Known for short-lived processes.
    pub parent_pid: Option<u32>,
    pub parent_comm: Option<String>,
    /// Name of the process (its main thread).
    pub comm: String,
    pub kernel: bool,
    /// Path in the hierarchy with the cpu controller; `None` if it is gone or was not found.
    pub cgroup: Option<String>,
    pub class: SchedulingClass,
    /// 1 to 99 for real-time threads, else 0.
    pub rt_priority: u8,
    pub nice: i8,
    /// Threads that ended in the interval.
    pub ended: u64,
}

/// Where a thread's time went. `slept_ns` is what remains, so that the books balance: for a thread that lived through the whole interval
/// the five add up to `watched_ns`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    pub party: u32,
    /// `None`: the party's threads that ended, or that did next to nothing, summed. `slept_ns` is 0 then.
    pub tid: Option<u32>,
    pub ran_ns: u64,
    /// Wanted to run and could have, but for others on the core.
    pub waited_ns: u64,
    /// Wanted to run, but its cgroup had used up its quota.
    pub throttled_ns: u64,
    /// In uninterruptible sleep (state D).
    pub blocked_ns: u64,
    pub slept_ns: u64,
    pub longest_wait_ns: u64,
    /// How often it got to run.
    pub runs: u64,
    /// Waits for a core that ended, and one that had not ended when the interval did.
    pub waits: u64,
    /// How long the wait that had not ended has lasted, since before this interval if so. 0: none.
    pub open_wait_ns: u64,
}

impl Account {
    /// All five: as long as it was watched, for a thread that lived through it.
    pub fn total_ns(&self) -> u64 {
        [self.ran_ns, self.waited_ns, self.throttled_ns, self.blocked_ns, self.slept_ns]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Adds another thread's, which is then no longer told by itself: how long it slept and what is open belongs to one thread.
    fn add(&mut self, other: &Account) {
        self.ran_ns = self.ran_ns.saturating_add(other.ran_ns);
        self.waited_ns = self.waited_ns.saturating_add(other.waited_ns);
        self.throttled_ns = self.throttled_ns.saturating_add(other.throttled_ns);
        self.blocked_ns = self.blocked_ns.saturating_add(other.blocked_ns);
        self.longest_wait_ns = self.longest_wait_ns.max(other.longest_wait_ns);
        self.runs = self.runs.saturating_add(other.runs);
        self.waits = self.waits.saturating_add(other.waits);
    }
}

/// Time that a party waited for a core, and who had that core.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    /// Who waited.
    pub victim: u32,
    /// `None`: threads of the party that ended, or that had no room of their own.
    pub tid: Option<u32>,
    pub to: Runner,
    pub core: u32,
    pub ns: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    Party(u32),
    /// The core was idle: it was on its way, or the hypervisor had the core.
    Idle,
    /// Many who had a little each.
    Others,
    /// Who ran is no longer known.
    #[default]
    Unknown,
}

/// Uninterruptible sleep at one place in the kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub party: u32,
    pub tid: Option<u32>,
    /// Within the interval.
    pub ns: u64,
    pub longest_ns: u64,
    pub times: u64,
    /// When the one that goes on began; `None`: none goes on.
    pub since: Option<Time>,
    /// Kernel functions, innermost first, without scheduler functions. Empty: the stack could not be read.
    pub stack: Vec<String>,
    /// The file it works on, or the device (`/data/x`, `sda1`), if known.
    pub on: Option<String>,
    /// Who ended the last block.
    pub waker_comm: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(party: u32, tid: Option<u32>, ran_ns: u64, waited_ns: u64) -> Account {
        Account { party, tid, ran_ns, waited_ns, runs: 1, ..Account::default() }
    }

    fn charge(victim: u32, tid: u32, to: Runner, ns: u64) -> Charge {
        Charge { victim, tid: Some(tid), to, core: 0, ns }
    }

    #[test]
    fn trifles_are_summed() {
        let ms = 1_000_000;
        let party = |id| Party { id, ..Party::default() };
        let mut ledger = WaitLedger {
            parties: [4, 5, 6, 7].map(party).to_vec(),
            accounts: vec![
                account(4, Some(1), 5 * ms, 0),
                account(4, Some(2), ms / 2, ms / 2),
                account(4, Some(3), ms / 2, ms / 2),
                account(5, Some(9), 1, 1),
            ],
            charges: vec![
                charge(4, 1, Runner::Party(6), 2 * ms),
                charge(4, 2, Runner::Party(7), ms / 10),
                charge(4, 3, Runner::Party(7), ms / 10),
                charge(5, 9, Runner::Party(7), ms / 10),
            ],
            ..WaitLedger::default()
        };
        ledger.drop_trifles();
        let rest = Account { runs: 2, ..account(4, None, ms, ms) };
        assert_eq!(ledger.accounts, [account(4, Some(1), 5 * ms, 0), rest]);
        let others = Charge { tid: None, ..charge(4, 0, Runner::Others, ms / 5) };
        assert_eq!(ledger.charges, [others, charge(4, 1, Runner::Party(6), 2 * ms)]);
        assert_eq!(ledger.parties.iter().map(|party| party.id).collect::<Vec<_>>(), [4, 6]);
        let once = ledger.clone();
        ledger.drop_trifles();
        assert_eq!(ledger, once);
    }
}
