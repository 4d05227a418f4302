//! `/tmp/perf-PID.map`, which JIT runtimes write for perf: `START SIZE NAME`, numbers in hexadecimal.

pub struct PerfMap {
    /// Start, end, name; by start. Of overlapping entries the later line wins, as memory is reused.
    entries: Vec<(u64, u64, String)>,
}

impl PerfMap {
    pub fn parse(text: &[u8]) -> PerfMap {
        let mut entries = Vec::new();
        for line in text.split(|byte| *byte == b'\n') {
            let line = String::from_utf8_lossy(line);
            let mut words = line.trim_end().splitn(3, ' ');
            let (Some(start), Some(size), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
            let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
            let (Some(start), Some(size)) = (hex(start), hex(size)) else { continue };
            entries.push((start, start.saturating_add(size), name.to_owned()));
        }
        // Stable, so among equal starts the last line is last.
        entries.sort_by_key(|(start, _, _)| *start);
        PerfMap { entries }
    }

    pub fn find(&self, address: u64) -> Option<&str> {
        let at = self.entries.partition_point(|(start, _, _)| *start <= address);
        self.entries[..at].last().filter(|(_, end, _)| address < *end).map(|(_, _, name)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_may_have_spaces_and_the_last_line_wins() {
        let map = PerfMap::parse(b"7f00 10 old\n7f00 20 LazyCompile:~foo bar.js:1\nnonsense\n8000 8 b\n");
        assert_eq!(map.find(0x7f1f), Some("LazyCompile:~foo bar.js:1"));
        assert_eq!(map.find(0x7f20), None);
        assert_eq!(map.find(0x8007), Some("b"));
        assert_eq!(map.find(0), None);
    }

    proptest! {
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..500), address: u64) {
            PerfMap::parse(&bytes).find(address);
        }
    }
}
