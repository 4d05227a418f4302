//! How full the connection tracking table is (/proc/sys/net/netfilter).

use coroner_evidence::{Evidence, Source, Time, probe};

use crate::counter_file::{CounterFile, Moved, Words, how_to_read};
use crate::root::{ParseError, Root};

const NAMES: [&str; 2] = ["nf_conntrack_count", "nf_conntrack_max"];

/// Reads count and limit. Without these files connection tracking is not loaded and its table cannot be full: nothing is noted.
///
/// The count is that of our own network namespace; the limit is shared by all namespaces.
#[derive(Debug)]
pub struct ConntrackReader {
    files: [CounterFile; 2],
    moved: Moved,
}

impl ConntrackReader {
    pub fn new(root: &Root) -> ConntrackReader {
        ConntrackReader {
            files: NAMES.map(|name| CounterFile::new(root, format!("/proc/sys/net/netfilter/{name}"))),
            moved: Moved::new(Source::Conntrack),
        }
    }

    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        self.moved.begin();
        for (name, file) in NAMES.iter().zip(&mut self.files) {
            let absolute = file.absolute().to_owned();
            let (why, how) = match file.read().map(parse) {
                Ok(Ok(value)) => {
                    self.moved.note("", name, at, value, evidence);
                    continue;
                }
                Err(error) if error.is_not_found() => continue,
                Ok(Err(error)) => (format!("{absolute}: {error}"), "please report this file"),
                Err(error) => (error.to_string(), how_to_read(&error)),
            };
            evidence.unseen(probe::CONNTRACK, "how full the connection tracking table is", why, how);
        }
    }
}

/// A single number.
pub fn parse(text: &[u8]) -> Result<u64, ParseError> {
    Words(text.trim_ascii()).number().ok_or_else(|| ParseError::new(1, "a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_tree::seen;
    use proptest::prelude::*;

    #[test]
    fn reads_count_and_limit_and_notes_nothing_without_the_module() {
        let dir = tempfile::tempdir().unwrap();
        let mut reader = ConntrackReader::new(&Root::at(dir.path()));
        let mut evidence = Evidence::default();
        reader.look(Time(1), &mut evidence);
        assert_eq!(evidence, Evidence::default());

        // The module is loaded while we watch.
        let netfilter = dir.path().join("proc/sys/net/netfilter");
        std::fs::create_dir_all(&netfilter).unwrap();
        std::fs::write(netfilter.join("nf_conntrack_count"), "261000\n").unwrap();
        std::fs::write(netfilter.join("nf_conntrack_max"), "262144\n").unwrap();
        reader.look(Time(2), &mut evidence);
        assert_eq!(evidence.counters.last(Source::Conntrack, "", "nf_conntrack_count"), Some(261_000));
        assert_eq!(evidence.counters.last(Source::Conntrack, "", "nf_conntrack_max"), Some(262_144));
        std::fs::write(netfilter.join("nf_conntrack_count"), "262144\n").unwrap();
        reader.look(Time(3), &mut evidence);
        assert_eq!(evidence.counters.moved(Source::Conntrack, "", "nf_conntrack_count"), Some(1144));
        assert_eq!(evidence.counters.points(Source::Conntrack, "", "nf_conntrack_max").len(), 1);
    }

    #[test]
    fn a_malformed_file_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let netfilter = dir.path().join("proc/sys/net/netfilter");
        std::fs::create_dir_all(&netfilter).unwrap();
        std::fs::write(netfilter.join("nf_conntrack_count"), "full\n").unwrap();
        let evidence = seen(dir.path(), |root, evidence| ConntrackReader::new(root).look(Time(1), evidence));
        assert!(evidence.counters.is_empty());
        assert!(evidence.unseen[0].why.ends_with("nf_conntrack_count: line 1: expected a number"));
    }

    #[test]
    fn agrees_with_this_machine() {
        let max = std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").ok();
        let mut evidence = Evidence::default();
        ConntrackReader::new(&Root::live()).look(Time(1), &mut evidence);
        let seen = evidence.counters.last(Source::Conntrack, "", "nf_conntrack_max");
        assert_eq!(seen, max.map(|text| text.trim().parse::<u64>().unwrap()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = parse(&bytes);
        }
    }
}
