//! Reads names on a node that must not notice it: within time and memory limits, keeping no files open or cached.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::{Duration, Instant};

use super::elf::{FileId, NamedFile};
use super::{Answer, Function, RecordedKernel, vdso};
use crate::model::Seeded;

/// The largest symbol table read, in bytes of the file: a third of a million functions. About two thirds of the bytes are kept
/// in memory.
const MOST_OF_ONE: u64 = 8 << 20;
/// All tables together, in memory. The least recently used go first and are not reread for a while: if more is needed than fits,
/// reading would never end.
const MOST_OF_ALL: usize = 16 << 20;
const READ_AGAIN_AFTER: Duration = Duration::from_secs(120);
/// Known files, with or without a table.
const MAX_FILES: usize = 4096;
/// Bytes of remembered functions with their names.
const MOST_NAMES: usize = 3 << 20;

/// Time budget for reading files: per second on average, and at once after a pause.
const EACH_SECOND: Duration = Duration::from_millis(4);
const AT_ONCE: Duration = Duration::from_millis(200);
/// Wall time passes even while we are kept from running: a long delay is not charged in full.
const MOST_OVERDRAWN_NS: i64 = 1_000_000_000;

pub(super) struct Sparing {
    budget: Budget,
    /// By the caller's number.
    files: HashMap<u32, Kept, Seeded>,
    bytes: usize,
    /// Lookup counter, to find the least recently used table.
    looks: u64,
    /// Number of tables read.
    pub read: u64,
    /// Functions named before, by file. Looking one up again would cost a read.
    functions: HashMap<u32, Functions, Seeded>,
    functions_bytes: usize,
}

/// Ends and names by start.
type Functions = BTreeMap<u64, (u64, Box<str>)>;

struct Kept {
    table: State,
    bytes: usize,
    looked: u64,
    /// Names were read since the page cache was last dropped.
    is_cached: bool,
}

enum State {
    Read(Box<NamedFile>),
    /// No symbols, or too many.
    Nothing,
    /// Evicted for lack of room.
    Dropped(Instant),
}

impl Sparing {
    pub fn new() -> Sparing {
        Sparing {
            budget: Budget::new(EACH_SECOND, AT_ONCE),
            files: HashMap::default(),
            bytes: 0,
            looks: 0,
            read: 0,
            functions: HashMap::default(),
            functions_bytes: 0,
        }
    }

    pub fn user(
        &mut self,
        root: &Path,
        wanted: &FileId<'_>,
        number: u32,
        offset: u64,
        kernel: &RecordedKernel,
    ) -> Answer {
        let known = self.functions.get(&number).and_then(|functions| functions.range(..=offset).next_back());
        if let Some((start, (end, name))) = known.filter(|(_, (end, _))| offset < *end) {
            return Answer::Function(Function { name: name.to_string(), offsets: *start..*end });
        }
        if let Some(Kept { table: State::Nothing, .. }) = self.files.get(&number) {
            return Answer::NotRead;
        }
        if !self.budget.is_left() {
            return Answer::Later;
        }
        let began = Instant::now();
        let answer = self.look(root, wanted, number, offset, kernel);
        self.budget.spent(began);
        if let Answer::Function(function) = &answer {
            self.remember(number, function);
        }
        answer
    }

    fn look(&mut self, root: &Path, wanted: &FileId<'_>, number: u32, offset: u64, kernel: &RecordedKernel) -> Answer {
        self.looks += 1;
        match self.files.get(&number).map(|kept| &kept.table) {
            Some(State::Dropped(when)) if when.elapsed() < READ_AGAIN_AFTER => return Answer::Later,
            Some(State::Read(_)) => {}
            _ => {
                let file = match wanted.path {
                    "[vdso]" => vdso(root, wanted.build_id, kernel),
                    _ => NamedFile::open_small(root, wanted, MOST_OF_ONE, &mut |_| {}).and_then(NamedFile::closed),
                };
                self.keep(number, file);
            }
        }
        let Some(kept) = self.files.get_mut(&number) else { return Answer::Later };
        (kept.looked, kept.is_cached) = (self.looks, true);
        match &mut kept.table {
            State::Read(file) => match file.find(offset) {
                Some((offsets, name)) => Answer::Function(Function { name, offsets }),
                None => Answer::Unnamed(None),
            },
            _ => Answer::NotRead,
        }
    }

    fn keep(&mut self, number: u32, file: Option<NamedFile>) {
        if self.files.len() >= MAX_FILES {
            self.forget();
        }
        let bytes = file.as_ref().map_or(0, NamedFile::held_bytes);
        while self.bytes > 0 && self.bytes + bytes > MOST_OF_ALL {
            let with_table = self.files.values_mut().filter(|kept| kept.bytes > 0);
            let Some(oldest) = with_table.min_by_key(|kept| kept.looked) else { break };
            oldest.uncache();
            self.bytes -= oldest.bytes;
            (oldest.table, oldest.bytes) = (State::Dropped(Instant::now()), 0);
        }
        self.read += 1;
        self.bytes += bytes;
        let table = file.map_or(State::Nothing, |file| State::Read(Box::new(file)));
        self.files.insert(number, Kept { table, bytes, looked: self.looks, is_cached: false });
    }

    fn remember(&mut self, number: u32, function: &Function) {
        if self.functions_bytes > MOST_NAMES {
            self.functions.clear();
            self.functions_bytes = 0;
        }
        self.functions_bytes += function.name.len() + 64;
        let end_and_name = (function.offsets.end, function.name.as_str().into());
        self.functions.entry(number).or_default().insert(function.offsets.start, end_and_name);
    }

    /// Drops what reading names left in the page cache: it is charged to us and would keep our memory cgroup alive after we exit.
    pub fn uncache(&mut self) {
        self.files.values_mut().for_each(Kept::uncache);
    }

    pub fn forget(&mut self) {
        self.uncache();
        self.files.clear();
        self.functions.clear();
        (self.bytes, self.functions_bytes) = (0, 0);
    }
}

impl Drop for Sparing {
    fn drop(&mut self) {
        self.uncache();
    }
}

impl Kept {
    fn uncache(&mut self) {
        if let State::Read(file) = &self.table
            && std::mem::take(&mut self.is_cached)
        {
            file.uncache();
        }
    }
}

/// A time budget. Overdrafts are paid back before the next use.
pub(crate) struct Budget {
    each_second: Duration,
    at_once: Duration,
    left_ns: i64,
    filled: Instant,
}

impl Budget {
    pub fn new(each_second: Duration, at_once: Duration) -> Budget {
        Budget { each_second, at_once, left_ns: at_once.as_nanos() as i64, filled: Instant::now() }
    }

    pub fn is_left(&mut self) -> bool {
        self.fill(Instant::now());
        self.left_ns > 0
    }

    /// Charges the time since `began`.
    pub fn spent(&mut self, began: Instant) {
        let spent = i64::try_from(began.elapsed().as_nanos()).unwrap_or(i64::MAX);
        self.left_ns = self.left_ns.saturating_sub(spent).max(-MOST_OVERDRAWN_NS);
    }

    fn fill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        let earned = (passed * self.each_second.as_nanos() as f64) as i64;
        // Not for less than this, or the gain would be rounded away.
        if earned > 1000 {
            self.left_ns = self.left_ns.saturating_add(earned).min(self.at_once.as_nanos() as i64);
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overdraft_is_paid_back() {
        let mut budget = Budget::new(Duration::from_millis(20), Duration::from_millis(100));
        assert!(budget.is_left());
        budget.left_ns -= 140_000_000;
        let now = budget.filled;
        budget.fill(now + Duration::from_secs(1));
        assert!(budget.left_ns < 0, "{}", budget.left_ns);
        budget.fill(now + Duration::from_secs(3));
        assert!(budget.left_ns > 0);
        budget.fill(now + Duration::from_secs(3600));
        assert_eq!(budget.left_ns, 100_000_000);
    }
}
