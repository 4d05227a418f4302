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
        let mut excess = self.time().saturating_sub(most);
        let mut times = [&mut self.ran, &mut self.waited, &mut self.throttled, &mut self.blocked];
        times.sort_unstable_by(|a, b| b.cmp(a));
        for time in times {
            let less = excess.min(*time);
            *time -= less;
            excess -= less;
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

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::Time;
    use proptest::prelude::*;

    const JOB: u32 = 40;
    const HOG: u32 = 41;
    const START: u64 = 1_000_000;

    fn slot(tid: u32, party: u32, state: State, since: u64) -> Slot {
        Slot { tid, party, state, since, epoch: 1, core: 0, ..Slot::default() }
    }

    /// From `from` to `to`, on one core that HOG has had since the beginning.
    fn snapshot(from: u64, to: u64, slots: Vec<Slot>) -> Snapshot {
        let parties = [JOB, HOG].map(|id| (id, (Identity { pid: id, ..Identity::default() }, Folded::default())));
        let core = Core { start: START, party: HOG, tid: HOG, epoch: 1, ..Core::default() };
        Snapshot {
            epoch_start: Time(START),
            epoch: 1,
            from: Time(from),
            to: Time(to),
            slots,
            cores: vec![core],
            parties: parties.into(),
            ..Snapshot::default()
        }
    }

    fn account_of(closed: &Closed, tid: Option<u32>) -> &Account {
        closed.accounts.iter().find(|account| account.tid == tid).expect("an account")
    }

    #[test]
    fn a_long_wait_is_in_each_interval_once() {
        let mut books = Books::default();
        let waiting = slot(7, JOB, State::Waiting, START + 100);
        let first = books.close(&snapshot(START, START + 1000, vec![waiting]), &[], false);
        let told = account_of(&first, Some(7));
        assert_eq!((told.waited_ns, told.slept_ns, told.waits, told.open_wait_ns), (900, 100, 1, 900));
        let charge = Charge { victim: JOB, tid: Some(7), to: Runner::Party(HOG), core: 0, ns: 900 };
        assert_eq!(first.charges, [charge]);
        // It ends in the second interval: the kernel has booked all of it, and charged what was in this interval.
        let ran = Slot { waited: 1400, waits: 1, runs: 1, ran: 200, ..slot(7, JOB, State::Sleeping, START + 1700) };
        let mut second = snapshot(START + 1000, START + 2000, vec![ran]);
        let key = ChargeKey { tid: 7, victim: JOB, runner: HOG, core: 0 };
        second.charges = vec![(key, 500)];
        let second = books.close(&second, &[], false);
        let told = account_of(&second, Some(7));
        assert_eq!((told.waited_ns, told.ran_ns, told.slept_ns, told.open_wait_ns), (500, 200, 300, 0));
        assert_eq!(second.charges.iter().map(|charge| charge.ns).sum::<u64>(), 500);
    }

    #[test]
    fn what_a_thread_did_before_its_end_is_its_partys() {
        let mut books = Books::default();
        let before = Slot { ran: 300, ..slot(7, JOB, State::Sleeping, START + 300) };
        books.close(&snapshot(START, START + 1000, vec![before]), &[], false);
        let mut ended = snapshot(START + 1000, START + 2000, vec![]);
        let folded = Folded { ended: 1, ran: 450, ..Folded::default() };
        ended.parties.get_mut(&JOB).unwrap().1 = folded;
        let closed = books.close(&ended, &[], false);
        assert_eq!(account_of(&closed, None).ran_ns, 150, "300 were told before");
        assert_eq!(closed.ended, HashMap::from([(JOB, 1)]));
        let mut later = snapshot(START + 2000, START + 3000, vec![]);
        later.parties.get_mut(&JOB).unwrap().1 = folded;
        assert_eq!(books.close(&later, &[], false).accounts, []);
    }

    #[test]
    fn a_thread_that_nothing_happens_to_waits_all_the_time() {
        let mut books = Books::default();
        let party = Identity { pid: 9, comm: "starved".into(), ..Identity::default() };
        let starved = Untouched { tid: 9, party: party.clone(), core: 0, state: State::Waiting };
        for from in [START, START + 1000] {
            let closed = books.close(&snapshot(from, from + 1000, vec![]), std::slice::from_ref(&starved), false);
            let told = account_of(&closed, Some(9));
            assert_eq!((told.waited_ns, told.slept_ns), (1000, 0));
            assert_eq!((closed.charges[0].to, closed.charges[0].ns), (Runner::Party(HOG), 1000));
        }
        // Then it runs: the kernel books the wait since it began to look.
        let ran = Slot { waited: 2100, ran: 50, waits: 1, ..slot(9, party.id(), State::Sleeping, START + 2150) };
        let closed = books.close(&snapshot(START + 2000, START + 3000, vec![ran]), &[], false);
        let told = account_of(&closed, Some(9));
        assert_eq!((told.waited_ns, told.ran_ns, told.slept_ns), (100, 50, 850));
    }

    #[test]
    fn a_slot_that_says_running_while_another_runs_is_not_believed() {
        let closed = Books::default().close(
            &snapshot(START, START + 1000, vec![slot(7, JOB, State::Running, START)]),
            &[],
            false,
        );
        assert_eq!(closed.accounts, []);
    }

    #[test]
    fn after_a_pause_nothing_of_it_is_counted() {
        let mut books = Books::default();
        let waiting = slot(7, JOB, State::Waiting, START);
        books.close(&snapshot(START, START + 1000, vec![waiting]), &[], true);
        let mut next = snapshot(START + 9000, START + 10_000, vec![Slot { waited: 400, epoch: 2, ..waiting }]);
        (next.epoch, next.slots[0].state) = (2, State::Sleeping);
        assert_eq!(account_of(&books.close(&next, &[], false), Some(7)).waited_ns, 400);
    }

    proptest! {
        #[test]
        fn books_balance(steps in proptest::collection::vec((0u8..6, 0u64..3000, 0u64..3000, 0u32..3, any::<bool>()), 1..12)) {
            let mut books = Books::default();
            let mut from = START;
            for (state, ran, waited, tid, changes) in steps {
                let state = [State::None, State::Running, State::Waiting, State::Sleeping, State::Blocked, State::Throttled][usize::from(state)];
                let party = if changes { JOB } else { HOG };
                let slots = vec![Slot { ran, waited, ..slot(40 + tid, party, state, from + ran % 900) }];
                let closed = books.close(&snapshot(from, from + 1000, slots), &[], false);
                for account in closed.accounts.iter().filter(|account| account.tid.is_some()) {
                    let sum = account.ran_ns + account.waited_ns + account.throttled_ns + account.blocked_ns + account.slept_ns;
                    prop_assert_eq!(sum, 1000);
                }
                from += 1000;
            }
        }
    }
}
