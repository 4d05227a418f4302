//! Makes ledgers for tests: a test says who ran and waited in each second, and who had the core.

use coroner_evidence::tasks::SchedulingClass;
use coroner_evidence::{
    Account, Block, Charge, Clocks, CoreSet, CoreTicks, CoreTimes, Evidence, LedgerMethod, Party, Runner, Thread,
    ThreadKey, Time, WaitLedger, Wall,
};

const START: Time = Time(1_000_000_000_000);
const SECOND_NS: u64 = 1_000_000_000;
const MS: u64 = 1_000_000;

#[derive(Debug, Clone)]
pub struct Seat {
    pub party: Party,
    affinity: Option<CoreSet>,
}

impl Seat {
    pub fn in_cgroup(mut self, path: &str) -> Seat {
        self.party.cgroup = Some(path.to_owned());
        self
    }

    pub fn pinned(mut self, core: u32) -> Seat {
        self.affinity = Some(CoreSet::new([core]));
        self
    }

    pub fn class(mut self, class: SchedulingClass, rt_priority: u8) -> Seat {
        (self.party.class, self.party.rt_priority) = (class, rt_priority);
        self
    }

    pub fn nice(mut self, nice: i8) -> Seat {
        self.party.nice = nice;
        self
    }
}

pub struct Book {
    cores: u32,
    seconds: u64,
    next_id: u32,
    one: WaitLedger,
    threads: Vec<Thread>,
}

impl Book {
    pub fn new(cores: u32, seconds: u64) -> Book {
        let one = WaitLedger { method: LedgerMethod::Bpf, watched_ns: SECOND_NS, ..WaitLedger::default() };
        Book { cores, seconds, next_id: 4, one, threads: Vec::new() }
    }

    fn seat(&mut self, party: Party) -> Seat {
        self.next_id += 1;
        let party = Party { id: self.next_id, cgroup: Some("/".to_owned()), ..party };
        Seat { party, affinity: Some(CoreSet::new(0..self.cores)) }
    }

    pub fn process(&mut self, pid: u32, comm: &str) -> Seat {
        self.seat(Party { pid: Some(pid), comm: comm.to_owned(), ..Party::default() })
    }

    pub fn short_lived(&mut self, parent: u32, parent_comm: &str, comm: &str) -> Seat {
        self.seat(Party {
            parent_pid: Some(parent),
            parent_comm: Some(parent_comm.to_owned()),
            comm: comm.to_owned(),
            ..Party::default()
        })
    }

    pub fn each_second(&mut self, seat: &Seat, ran_ms: u64, waited_ms: u64) -> &mut Book {
        let tid = seat.party.pid;
        self.one.parties.push(seat.party.clone());
        self.one.accounts.push(Account {
            party: seat.party.id,
            tid,
            ran_ns: ran_ms * MS,
            waited_ns: waited_ms * MS,
            slept_ns: SECOND_NS.saturating_sub((ran_ms + waited_ms) * MS),
            ..Account::default()
        });
        if let Some(tid) = tid {
            self.threads.push(Thread {
                at: START,
                key: ThreadKey { tid, started: 1 },
                pid: tid,
                comm: seat.party.comm.clone(),
                affinity: seat.affinity.clone(),
                ..Thread::default()
            });
        }
        self
    }

    pub fn charge(&mut self, victim: &Seat, to: &Seat, core: u32, ms: u64) -> &mut Book {
        let to = Runner::Party(to.party.id);
        self.one.charges.push(Charge { victim: victim.party.id, tid: victim.party.pid, to, core, ns: ms * MS });
        self
    }

    pub fn ended(&mut self, seat: &Seat, each_second: u64) -> &mut Book {
        for party in self.one.parties.iter_mut().filter(|party| party.id == seat.party.id) {
            party.ended = each_second;
        }
        self
    }

    pub fn block(&mut self, seat: &Seat, ms: u64, stack: &[&str], goes_on: bool) -> &mut Book {
        self.one.blocks.push(Block {
            party: seat.party.id,
            tid: seat.party.pid,
            ns: ms * MS,
            longest_ns: ms * MS,
            times: 1,
            since: goes_on.then_some(START),
            stack: stack.iter().map(|function| (*function).to_owned()).collect(),
            ..Block::default()
        });
        self
    }

    /// The last core is full, the others this busy.
    pub fn evidence(self, others_busy: f64) -> Evidence {
        let at = |second: u64| Time(START.0 + second * SECOND_NS);
        let look = |tenth: u64| CoreTimes {
            at: Time(START.0 + tenth * SECOND_NS / 10),
            cores: (0..self.cores)
                .map(|core| {
                    let busy = if core + 1 == self.cores { 1.0 } else { others_busy };
                    let user = (tenth as f64 * 10.0 * busy) as u64;
                    CoreTicks { core, user, idle: tenth * 10 - user, ..CoreTicks::default() }
                })
                .collect(),
        };
        Evidence {
            core_times: (0..=self.seconds * 10).map(look).collect(),
            clocks: vec![Clocks { at: at(self.seconds), wall: Wall(1_750_000_000_000_000_000), boot_ns: at(0).0 }],
            waits: (0..self.seconds)
                .map(|second| WaitLedger { from: at(second), to: at(second + 1), ..self.one.clone() })
                .collect(),
            threads: self.threads,
            ..Evidence::default()
        }
    }
}
