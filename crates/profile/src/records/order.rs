//! Sorts records by time.
//!
//! perf reads one core's ring after the other and marks the end of each round (`PERF_RECORD_FINISHED_ROUND`). Everything older
//! than the newest record of the round before the last can then be passed on: nothing older can follow.

/// Larger buffers are not kept for reuse.
const MOST_SPARE: usize = 4 << 20;

struct Held {
    time: u64,
    start: usize,
    length: usize,
    /// The record's offset in the file.
    place: u64,
}

pub(crate) struct Order {
    /// If no round is ever finished, this much is held before the older half is passed on anyway.
    most: usize,
    bytes: Vec<u8>,
    /// The previous `bytes` buffer: reusing memory is cheaper than allocating.
    spare: Vec<u8>,
    held: Vec<Held>,
    newest: u64,
    /// Time of the newest record of the previous round.
    limit: u64,
}

impl Order {
    pub fn new(most: usize) -> Order {
        Order { most, bytes: Vec::new(), spare: Vec::new(), held: Vec::new(), newest: 0, limit: 0 }
    }

    /// Holds a record back. Returns whether [`Order::relieve`] must be called because too much is held.
    pub fn hold(&mut self, time: u64, record: &[u8], place: u64) -> bool {
        self.newest = self.newest.max(time);
        self.held.push(Held { time, start: self.bytes.len(), length: record.len(), place });
        self.bytes.extend_from_slice(record);
        self.bytes.len() + self.held.len() * size_of::<Held>() > self.most
    }

    pub fn finish_round(&mut self, pass: &mut dyn FnMut(&[u8], u64)) {
        self.flush(self.limit, pass);
        self.limit = self.newest;
    }

    /// Passes records up to `time` on: every core's have arrived.
    pub fn pass_until(&mut self, time: u64, pass: &mut dyn FnMut(&[u8], u64)) {
        self.flush(time, pass);
    }

    pub fn relieve(&mut self, pass: &mut dyn FnMut(&[u8], u64)) {
        let mut times: Vec<u64> = self.held.iter().map(|held| held.time).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        self.flush(median, pass);
    }

    pub fn finish(&mut self, pass: &mut dyn FnMut(&[u8], u64)) {
        self.flush(u64::MAX, pass);
    }

    fn flush(&mut self, limit: u64, pass: &mut dyn FnMut(&[u8], u64)) {
        // Stable: records with equal times stay in file order.
        self.held.sort_by_key(|held| held.time);
        let ready = self.held.partition_point(|held| held.time <= limit);
        for held in self.held.drain(..ready) {
            pass(&self.bytes[held.start..held.start + held.length], held.place);
        }
        let mut kept = std::mem::take(&mut self.spare);
        kept.clear();
        for held in &mut self.held {
            let start = kept.len();
            kept.extend_from_slice(&self.bytes[held.start..held.start + held.length]);
            held.start = start;
        }
        self.spare = std::mem::replace(&mut self.bytes, kept);
        // Frees the memory after a burst.
        if self.spare.capacity() > MOST_SPARE {
            self.spare = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 64 << 20;

    #[test]
    fn a_round_passes_on_what_cannot_be_overtaken() {
        let mut order = Order::new(MOST);
        let mut passed: Vec<u8> = Vec::new();
        for time in [10, 30, 20] {
            order.hold(time, &[time as u8], 0);
        }
        order.finish_round(&mut |record, _| passed.push(record[0]));
        assert!(passed.is_empty());
        for time in [25, 40, 35] {
            order.hold(time, &[time as u8], 0);
        }
        order.finish_round(&mut |record, _| passed.push(record[0]));
        assert_eq!(passed, [10, 20, 25, 30]);
        order.finish(&mut |record, _| passed.push(record[0]));
        assert_eq!(passed, [10, 20, 25, 30, 35, 40]);
    }

    #[test]
    fn memory_is_bounded_without_rounds() {
        let mut order = Order::new(MOST);
        let mut passed = 0u64;
        for time in 0..200_000 {
            if order.hold(time, &[0; 1000], 0) {
                order.relieve(&mut |_, _| passed += 1);
            }
            assert!(order.bytes.len() <= MOST + 1000);
        }
        assert!(passed > 100_000);
    }
}
