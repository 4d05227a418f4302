//! Hand-made perf.data files.

/// One event with IP, TID, TIME, CALLCHAIN, CPU and PERIOD; every other record ends with its task, time and core.
const SAMPLE_TYPE: u64 = 1 | 2 | 4 | 1 << 5 | 1 << 7 | 1 << 8;
pub const USER: u64 = -512i64 as u64;
pub const KERNEL: u64 = -128i64 as u64;

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn words32(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

pub fn attr() -> Vec<u8> {
    let mut attr = words32(&[1, 128]);
    attr.extend(words(&[0, 999, SAMPLE_TYPE, 0, 1 << 10 | 1 << 18]));
    attr.resize(128, 0);
    attr
}

/// Records in the order in which they were added.
#[derive(Default)]
pub struct Records(pub Vec<u8>);

impl Records {
    pub fn add(&mut self, kind: u32, misc: u16, body: &[u8]) {
        let size = u16::try_from(body.len() + 8).expect("a record of at most 64 KiB");
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(misc.to_ne_bytes());
        self.0.extend(size.to_ne_bytes());
        self.0.extend(body);
    }

    /// A record with a text and the common trailer.
    fn with_text(&mut self, kind: u32, misc: u16, time: u64, body: &[u8], text: &str) {
        let mut all = body.to_vec();
        all.extend(text.bytes());
        all.resize((all.len() + 1).next_multiple_of(8), 0);
        all.extend(words32(&[1, 1]));
        all.extend(words(&[time, 0]));
        self.add(kind, misc, &all);
    }

    pub fn comm(&mut self, time: u64, pid: u32, name: &str, exec: bool) {
        self.with_text(3, if exec { 1 << 13 } else { 0 }, time, &words32(&[pid, pid]), name);
    }

    pub fn mmap(&mut self, time: u64, pid: u32, start: u64, length: u64, path: &str) {
        let mut body = words32(&[pid, pid]);
        body.extend(words(&[start, length, 0]));
        self.with_text(1, 2, time, &body, path);
    }

    pub fn fork(&mut self, pid: u32, parent: u32) {
        let mut body = words32(&[pid, parent, pid, parent]);
        body.extend(words(&[1, 0, 1, 0]));
        self.add(7, 0, &body);
    }

    pub fn ksymbol(&mut self, start: u64, length: u32) {
        let mut body = words(&[start]);
        body.extend(words32(&[length, 1]));
        self.with_text(17, 0, 1, &body, "bpf_prog");
    }

    pub fn sample(&mut self, time: u64, core: u32, pid: u32, chain: &[u64]) {
        let mut body = words(&[chain.get(1).copied().unwrap_or(0)]);
        body.extend(words32(&[pid, pid]));
        body.extend(words(&[time]));
        body.extend(words32(&[core, 0]));
        body.extend(words(&[1000, chain.len() as u64]));
        body.extend(words(chain));
        self.add(9, 2, &body);
    }

    /// A file with these records and `attrs` (each with the offset and size of its ids).
    pub fn file_with(&self, attrs: &[u8]) -> Vec<u8> {
        let mut file = b"PERFILE2".to_vec();
        let (at, size) = (104 + attrs.len() as u64, self.0.len() as u64);
        file.extend(words(&[104, 144, 104, attrs.len() as u64, at, size, 0, 0, 0, 0, 0, 0]));
        file.extend(attrs);
        file.extend(&self.0);
        file
    }

    pub fn file(&self) -> Vec<u8> {
        let mut attrs = attr();
        attrs.extend(words(&[0, 0]));
        self.file_with(&attrs)
    }
}
