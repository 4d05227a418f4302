//! From what the kernel has summed up to the books of an interval.
//!
//! The kernel books time when a state ends. At the end of an interval we add what is still open, and remember what we have told:
//! so a wait of many seconds is in each interval in part, and all intervals together have it once.

use std::collections::{BTreeMap, HashMap};

use coroner_evidence::{Account, Charge, Runner};

use super::tables::{self, ChargeKey, Core, Folded, Identity, Slot, Snapshot, State};

/// An identity that is no longer in the kernel's table is kept for this many intervals: cores remember who had them.
const KEPT: u32 = 10;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sums {
    ran: u64,
    waited: u64,
    throttled: u64,
    blocked: u64,
    runs: u64,
    waits: u64,
}

impl Sums {
    fn of(slot: &Slot) -> Sums {
        let Slot { ran, waited, throttled, blocked, runs, waits, .. } = *slot;
        Sums { ran, waited, throttled, blocked, runs: u64::from(runs), waits: u64::from(waits) }
    }

    fn folded(folded: &Folded) -> Sums {
        let Folded { ended: _, ran, waited, throttled, blocked, runs, waits } = *folded;
        Sums { ran, waited, throttled, blocked, runs, waits }
    }

    fn with(self, other: Sums, of: impl Fn(u64, u64) -> u64) -> Sums {
        Sums {
            ran: of(self.ran, other.ran),
            waited: of(self.waited, other.waited),
            throttled: of(self.throttled, other.throttled),
            blocked: of(self.blocked, other.blocked),
            runs: of(self.runs, other.runs),
            waits: of(self.waits, other.waits),
        }
    }

    fn plus(self, other: Sums) -> Sums {
        self.with(other, u64::saturating_add)
    }

    fn minus(self, other: Sums) -> Sums {
        self.with(other, u64::saturating_sub)
    }

    fn add_open(&mut self, state: State, ns: u64) {
        match state {
            State::Running => self.ran += ns,
            State::Waiting => self.waited += ns,
            State::Throttled => self.throttled += ns,
            State::Blocked => self.blocked += ns,
            State::None | State::Sleeping => {}
        }
    }

    fn time(&self) -> u64 {
        self.ran.saturating_add(self.waited).saturating_add(self.throttled).saturating_add(self.blocked)
    }

    /// Within an interval no thread has more time than there was: looks take a moment, and threads go on meanwhile.
    fn limit(&mut self, most: u64) {
        let excess = self.time().saturating_sub(most);
        if let Some(largest) =
            [&mut self.ran, &mut self.waited, &mut self.throttled, &mut self.blocked].into_iter().max()
        {
            *largest = largest.saturating_sub(excess);
        }
    }
}

/// What was told of a thread.
#[derive(Debug, Clone, Copy)]
struct Told {
    party: u32,
    born: u32,
    /// What the kernel had booked, and with what was open.
    booked: Sums,
    all: Sums,
}

/// A thread that the kernel's programs have not seen: it has been in this state since before they looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Untouched {
    pub tid: u32,
    pub party: Identity,
    pub core: u32,
    pub state: State,
}

/// A block that has not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenBlock {
    pub tid: u32,
    pub party: u32,
    pub since: u64,
    pub ns: u64,
}

/// The books of an interval, with the kernel's numbers for parties.
#[derive(Debug, Default)]
pub(super) struct Closed {
    pub accounts: Vec<Account>,
    pub charges: Vec<Charge>,
    pub open_blocks: Vec<OpenBlock>,
    /// Threads that ended, by party.
    pub ended: HashMap<u32, u64>,
}

#[derive(Debug, Default)]
pub(super) struct Books {
    told: HashMap<u32, Told>,
    folded: HashMap<u32, Folded>,
    /// Told of threads whose sums were not yet with their party.
    owed: HashMap<u32, Sums>,
    /// With the number of intervals since it was last in the kernel's table.
    identities: HashMap<u32, (Identity, u32)>,
}

impl Books {
    pub fn identity(&self, party: u32) -> Option<&Identity> {
        self.identities.get(&party).map(|(identity, _)| identity)
    }

    /// `paused`: nothing is seen after this snapshot, until a new epoch.
    pub fn close(&mut self, snapshot: &Snapshot, untouched: &[Untouched], paused: bool) -> Closed {
        let (from, to) = (snapshot.from.0, snapshot.to.0);
        let watched = to.saturating_sub(from);
        let mut closed = Closed::default();
        let mut charges: BTreeMap<(u32, u32, u32, u32), u64> = BTreeMap::new();
        for (key, ns) in &snapshot.charges {
            *charges.entry((key.victim, key.tid, key.core, key.runner)).or_default() += *ns;
        }
        let mut open_wait = |key: ChargeKey, since: u64| {
            let mut by = HashMap::new();
            if let Some(core) = snapshot.cores.get(key.core as usize) {
                tables::walk(core, since.max(from), to, &mut by);
            }
            for (runner, ns) in by {
                *charges.entry((key.victim, key.tid, key.core, runner)).or_default() += ns;
            }
        };
        self.note_identities(snapshot, untouched);
        let mut told = HashMap::with_capacity(snapshot.slots.len());
        let mut owed: HashMap<u32, Sums> = HashMap::new();
        for slot in &snapshot.slots {
            let open = open_ns(slot, snapshot);
            let booked = Sums::of(slot);
            let mut all = booked;
            all.add_open(slot.state, open.unwrap_or(0));
            let before = self.told.remove(&slot.tid);
            let same = before.filter(|before| before.born == slot.born);
            // Another thread had this tid.
            if let Some(gone) = before.filter(|before| before.born != slot.born) {
                owe(&mut owed, gone.party, gone.all);
            }
            let base = match same {
                Some(before) if before.party == slot.party => before.all,
                // Its sums are with the party that it was; what was open then is not.
                Some(before) => {
                    owe(&mut owed, before.party, before.booked);
                    before.all.minus(before.booked)
                }
                None => Sums::default(),
            };
            told.insert(
                slot.tid,
                Told { party: slot.party, born: slot.born, booked, all: if paused { booked } else { all } },
            );
            let mut sums = all.minus(base);
            let age = u64::from((to >> 10) as u32).wrapping_sub(u64::from(slot.born)) as u32;
            let is_new = same.is_none() && slot.born != 0;
            let lived = if is_new { watched.min(u64::from(age) << 10) } else { watched };
            sums.limit(lived);
            if sums == Sums::default() {
                continue;
            }
            let waits_for = if slot.state == State::Waiting { open.filter(|ns| *ns > 0) } else { None };
            if waits_for.is_some() {
                let key = ChargeKey {
                    tid: if slot.short_lived { 0 } else { slot.tid },
                    victim: slot.party,
                    runner: 0,
                    core: slot.core,
                };
                open_wait(key, slot.since);
            }
            let of_turn = if slot.turn == snapshot.turn as u8 { slot.longest_wait_ns } else { 0 };
            let mut account = account(slot.party, Some(slot.tid), sums, lived);
            account.longest_wait_ns = of_turn.max(waits_for.unwrap_or(0));
            account.open_wait_ns = waits_for.unwrap_or(0);
            account.waits += u64::from(waits_for.is_some());
            closed.accounts.push(account);
            if slot.state == State::Blocked
                && let Some(ns) = open
            {
                let (tid, party, since) = (slot.tid, slot.party, slot.since);
                closed.open_blocks.push(OpenBlock { tid, party, since, ns: ns.min(watched) });
            }
        }
        for thread in untouched {
            if told.contains_key(&thread.tid) {
                continue;
            }
            let (tid, party, since) = (thread.tid, thread.party.id(), snapshot.epoch_start.0);
            let mut all = Sums::default();
            all.add_open(thread.state, to.saturating_sub(since));
            self.told.remove(&tid);
            let mut sums = Sums::default();
            sums.add_open(thread.state, watched);
            let mut account = account(party, Some(tid), sums, watched);
            match thread.state {
                State::Waiting => {
                    open_wait(ChargeKey { tid, victim: party, runner: 0, core: thread.core }, since);
                    (account.waits, account.open_wait_ns) = (1, to.saturating_sub(since));
                    account.longest_wait_ns = account.open_wait_ns;
                }
                State::Blocked => closed.open_blocks.push(OpenBlock { tid, party, since, ns: watched }),
                _ => {}
            }
            closed.accounts.push(account);
            let all = if paused { Sums::default() } else { all };
            told.insert(tid, Told { party, born: 0, booked: Sums::default(), all });
        }
        // Those that are gone.
        for gone in self.told.values() {
            owe(&mut owed, gone.party, gone.all);
        }
        self.told = told;
        self.close_folded(snapshot, owed, &mut closed);
        closed.charges = charges
            .into_iter()
            .map(|((victim, tid, core, runner), ns)| self.charge(victim, tid, core, runner, ns))
            .collect();
        closed
    }

    fn charge(&self, victim: u32, tid: u32, core: u32, runner: u32, ns: u64) -> Charge {
        let to = match runner {
            tables::IDLE => Runner::Idle,
            tables::OTHERS => Runner::Others,
            party if self.identities.contains_key(&party) => Runner::Party(party),
            _ => Runner::Unknown,
        };
        Charge { victim, tid: (tid != 0).then_some(tid), to, core, ns }
    }

    fn note_identities(&mut self, snapshot: &Snapshot, untouched: &[Untouched]) {
        for (_, age) in self.identities.values_mut() {
            *age += 1;
        }
        for thread in untouched {
            self.identities.entry(thread.party.id()).or_insert((thread.party.clone(), 0)).1 = 0;
        }
        for (id, (identity, _)) in &snapshot.parties {
            match self.identities.get_mut(id) {
                Some((_, age)) => *age = 0,
                None => drop(self.identities.insert(*id, (identity.clone(), 0))),
            }
        }
        self.identities.retain(|_, (_, age)| *age <= KEPT);
    }

    /// The parties' threads that ended.
    fn close_folded(&mut self, snapshot: &Snapshot, mut owed: HashMap<u32, Sums>, closed: &mut Closed) {
        let mut still_owed = HashMap::new();
        for (party, (_, folded)) in &snapshot.parties {
            let before = self.folded.get(party).copied().unwrap_or_default();
            // The kernel's entry may be a new one.
            let before =
                if before.ran > folded.ran || before.ended > folded.ended { Folded::default() } else { before };
            let sums = Sums::folded(folded).minus(Sums::folded(&before));
            let gone = owed.remove(party).unwrap_or_default();
            let told = gone.plus(self.owed.remove(party).unwrap_or_default());
            let rest = sums.minus(told);
            // For one more interval: then it will not come.
            let open = told.minus(sums).with(gone, u64::min);
            if open != Sums::default() {
                still_owed.insert(*party, open);
            }
            let ended = u64::from(folded.ended.wrapping_sub(before.ended));
            if ended > 0 {
                closed.ended.insert(*party, ended);
            }
            if rest != Sums::default() {
                closed.accounts.push(account(*party, None, rest, 0));
            }
        }
        self.owed = still_owed;
        self.folded = snapshot.parties.iter().map(|(id, (_, folded))| (*id, *folded)).collect();
    }
}

fn owe(owed: &mut HashMap<u32, Sums>, party: u32, sums: Sums) {
    let entry = owed.entry(party).or_default();
    *entry = entry.plus(sums);
}

/// How long its state has lasted; `None` if it is not known to be in it.
fn open_ns(slot: &Slot, snapshot: &Snapshot) -> Option<u64> {
    if slot.epoch != snapshot.epoch {
        return None;
    }
    // A tid can change hands (execve by a thread): then its slot says running, and another runs.
    let runs_elsewhere = |core: &Core| core.tid != slot.tid;
    if slot.state == State::Running && snapshot.cores.get(slot.core as usize).is_none_or(runs_elsewhere) {
        return None;
    }
    Some(snapshot.to.0.saturating_sub(slot.since))
}

fn account(party: u32, tid: Option<u32>, sums: Sums, lived: u64) -> Account {
    Account {
        party,
        tid,
        ran_ns: sums.ran,
        waited_ns: sums.waited,
        throttled_ns: sums.throttled,
        blocked_ns: sums.blocked,
        slept_ns: lived.saturating_sub(sums.time()),
        longest_wait_ns: 0,
        runs: sums.runs,
        waits: sums.waits,
        open_wait_ns: 0,
    }
}
