//! Is the connection tracking table full?
//!
//! If it is, the kernel drops the first packet of every new connection: DNS and health checks fail, and nothing else looks
//! wrong.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events::{self, Event, Family};
use crate::ties::Ties;
use crate::words::{count, percent, plural};
use coroner_evidence::Source;

/// A table this full has no room for a burst: at 1,000 new connections a second the last 5 % of the usual 262,144 are gone in
/// 13 s.
const NEARLY_FULL: f64 = 0.95;

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let log = log_events::recent(evidence, Family::Conntrack);
    // The fullest moment of the watch.
    let used = evidence.counters.points(Source::Conntrack, "", "nf_conntrack_count").iter().map(|p| p.value).max();
    let max = evidence.counters.last(Source::Conntrack, "", "nf_conntrack_max").filter(|m| *m > 0);
    let table = used.zip(max);
    let share = table.map(|(used, max)| used as f64 / max as f64);

    let events = log.as_ref().map(|l| l.events.as_slice()).unwrap_or_default();
    let nearly_full = share.is_some_and(|s| s >= NEARLY_FULL);
    let mut facts = Vec::new();
    if let (Some(first), Some(last)) = (events.first(), events.last()) {
        facts.push(Fact::new(FactKey::DropLines, events.len() as u64, "kernel log"));
        facts.push(Fact::new(FactKey::First, first.age_words(), "kernel log"));
        facts.push(Fact::new(FactKey::Last, last.age_words(), "kernel log"));
        let namespaces: Vec<&str> = events
            .iter()
            .filter_map(|e| match &e.event {
                Event::ConntrackFull { netns } => netns.as_deref(),
                _ => None,
            })
            .collect();
        if let Some(netns) = namespaces.last() {
            facts.push(Fact::new(FactKey::Netns, *netns, "kernel log"));
        }
    }
    if let Some((used, max)) = table {
        facts.push(Fact::new(FactKey::Connections, used, COUNT));
        facts.push(Fact::new(FactKey::ConnectionsMax, max, MAX));
    }
    let now =
        table.zip(share).map(|((used, max), share)| format!("{} of {} ({})", count(used), count(max), percent(share)));

    if let Some(last) = events.last() {
        let still = match &now {
            Some(now) if nearly_full => format!(" While watched, it was full or nearly full: {now}."),
            Some(now) => format!(" While watched, it held at most {now}."),
            None => String::new(),
        };
        return found(
            Severity::Critical,
            format!("The connection table overflowed: packets were dropped, last {}", last.age_words()),
            format!(
                "The kernel tracks every connection (nf_conntrack) and had no room for new ones, so it dropped their packets. It logged {} \
                 about it; as logging is rate-limited, more packets than that were lost.{still}",
                plural(events.len() as u64, "line", "lines"),
            ),
            facts,
        );
    }
    if nearly_full && let Some(now) = now {
        return found(
            Severity::Warning,
            format!("The connection table is nearly full: {now}"),
            "The kernel tracks every connection (nf_conntrack). When the table is full, it drops the packets of new connections.".to_owned(),
            facts,
        );
    }
    match (now, log) {
        (Some(now), Ok(log)) => {
            Answer::Fine(format!("{now} connections tracked; no overflow in {}", log.reach_words()))
        }
        (Some(now), Err(unseen)) => unseen.only_watched(evidence, &format!("{now} connections tracked")),
        // Without the module there is no table, and no file.
        (None, Ok(log)) => Answer::Fine(format!("no overflow in {}; no connection table was seen", log.reach_words())),
        (None, Err(unseen)) => Answer::CannotTell {
            because: format!("{}, and no connection table was seen ({COUNT})", unseen.because),
            how_to_see: unseen.how_to_see,
        },
    }
}

fn found(severity: Severity, title: String, detail: String, evidence: Vec<Fact>) -> Answer {
    Answer::Findings(vec![Finding {
        code: Code::ConntrackFull,
        ties: Ties::default(),
        severity,
        subject: Subject::new(SubjectKind::Node, "connection table"),
        title,
        detail,
        evidence,
        remedy: "Enlarge it: `sysctl -w net.netfilter.nf_conntrack_max=NUMBER` (about 400 bytes of memory per connection; kube-proxy sets it from \
                 conntrack.maxPerCore and may reset it). Then find out who opens so many: `conntrack -L | awk '{print $5}' | sort | uniq -c | \
                 sort -n | tail`, or per process with `ss -s` and `ss -tanp`."
            .to_owned(),
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::test_evidence::{END, cannot_tell, fact, fine, log, one, start, watched};
    use coroner_evidence::Evidence;

    fn table(used: u64, max: u64) -> Evidence {
        let mut evidence = watched(5);
        evidence.log = log(&[]);
        evidence.counters.push(Source::Conntrack, "", "nf_conntrack_count", start(5), used / 2);
        evidence.counters.push(Source::Conntrack, "", "nf_conntrack_count", END, used);
        evidence.counters.push(Source::Conntrack, "", "nf_conntrack_max", start(5), max);
        evidence
    }

    #[test]
    fn nearly_full_starts_at_95_percent() {
        let f = one(examine(&Case::of(&table(95_000, 100_000))));
        assert_eq!(f.severity, Severity::Warning);
        assert_eq!(fact(&f, FactKey::Connections), 95_000);
        assert!(fine(examine(&Case::of(&table(94_999, 100_000)))).contains("94,999 of 100,000 (95 %)"));
    }

    #[test]
    fn dropped_packets_are_critical_even_if_there_is_room_now() {
        let mut evidence = table(10, 262_144);
        evidence.log = log(&[
            (7200, "nf_conntrack: nf_conntrack: table full in netns 4026531840, dropping packet"),
            (7190, "nf_conntrack: nf_conntrack: table full, dropping packet"),
        ]);
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.severity, Severity::Critical);
        assert!(f.title.contains("last 1 h") || f.title.contains("last 2 h"), "{}", f.title);
        assert!(f.detail.contains("10 of 262,144"));
        assert_eq!(fact(&f, FactKey::Netns), "4026531840");
    }

    #[test]
    fn without_a_table_the_log_decides_and_without_both_nothing_does() {
        let mut evidence = watched(5);
        cannot_tell(examine(&Case::of(&evidence)));
        evidence.log = log(&[]);
        assert!(fine(examine(&Case::of(&evidence))).contains("no connection table"));
        let (because, _) = cannot_tell(examine(&Case::of(&Evidence { log: Vec::new(), ..table(10, 100) })));
        assert!(because.contains("watched only 5.0 s: 10 of 100"), "{because}");
        // A maximum of zero is no table.
        assert!(fine(examine(&Case::of(&table(10, 0)))).contains("no connection table"));
    }
}
