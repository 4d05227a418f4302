//! Is the connection tracking table full?
//!
//! If it is, the kernel drops the first packet of every new connection: DNS and health checks fail, and nothing else looks
//! wrong.

use crate::case::Case;
use crate::code::Code;
use crate::finding::{Answer, Fact, FactKey, Finding, Severity, Subject, SubjectKind};
use crate::log_events::{self, Event, Family};
use crate::ties::{Ties, When};
use crate::times;
use crate::words::{count, percent, plural};
use coroner_evidence::{Evidence, Source, Window};
use std::time::Duration;

/// A table this full has no room for a burst: at 1,000 new connections a second the last 5 % of the usual 262,144 are gone in
/// 13 s.
const NEARLY_FULL: f64 = 0.95;

const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";

/// An overflow older than this is only worth knowing: there is room again, and nothing is lost any more.
const RECENT: Duration = Duration::from_secs(3600);

/// The table's fullest moment while watched, and its last one.
struct Table {
    most: u64,
    now: u64,
    max: u64,
}

impl Table {
    fn of(evidence: &Evidence) -> Option<Table> {
        let points = evidence.counters.points(Source::Conntrack, "", "nf_conntrack_count");
        let max = evidence.counters.last(Source::Conntrack, "", "nf_conntrack_max").filter(|max| *max > 0)?;
        Some(Table { most: points.iter().map(|p| p.value).max()?, now: points.last()?.value, max })
    }

    /// `10 of 262,144 (0.0 %)`
    fn words(&self, used: u64) -> String {
        format!("{} of {} ({})", count(used), count(self.max), percent(used as f64 / self.max as f64))
    }

    fn is_nearly_full(&self, used: u64) -> bool {
        used as f64 / self.max as f64 >= NEARLY_FULL
    }
}

pub fn examine(case: &Case<'_>) -> Answer {
    let evidence = case.evidence;
    let log = log_events::recent(evidence, Family::Conntrack);
    let table = Table::of(evidence);
    let events = log.as_ref().map(|l| l.events.as_slice()).unwrap_or_default();
    let is_full = table.as_ref().is_some_and(|table| table.is_nearly_full(table.now));
    let ties = |when: Option<When>| Ties {
        when,
        // A full table is a state, whatever the age of the lines about it.
        until: evidence.window().filter(|_| is_full).map(|window| window.to),
        ..Ties::default()
    };
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
    if let Some(table) = &table {
        facts.push(Fact::new(FactKey::Connections, table.most, COUNT));
        facts.push(Fact::new(FactKey::ConnectionsMax, table.max, MAX));
    }

    if let Some(last) = events.last() {
        let ties = ties(log_events::incidents(events).last().and_then(When::of_log));
        let is_past = times::was_before(evidence, &ties);
        let now = match &table {
            Some(table) if is_full => format!(" It is full or nearly full: {}.", table.words(table.now)),
            Some(table) => format!(" While watched, the node's table held at most {}.", table.words(table.most)),
            None => String::new(),
        };
        let whose = match (&last.event, is_past) {
            (Event::ConntrackFull { netns: Some(netns) }, true) => format!(
                " The last line is about network namespace {netns}, which may be gone; each namespace has its own table."
            ),
            _ => String::new(),
        };
        let severity = match is_past {
            false => Severity::Critical,
            true if last.age <= RECENT => Severity::Warning,
            true => Severity::Info,
        };
        return found(
            severity,
            format!("The connection table overflowed: packets were dropped, last {}", last.age_words()),
            format!(
                "The kernel tracks every connection (nf_conntrack) and had no room for new ones, so it dropped their packets. It logged {} \
                 about it; as logging is rate-limited, more packets than that were lost.{now}{whose}",
                plural(events.len() as u64, "line", "lines"),
            ),
            facts,
            ties,
        );
    }
    if let Some(table) = table.as_ref().filter(|table| table.is_nearly_full(table.most)) {
        let points = evidence.counters.points(Source::Conntrack, "", "nf_conntrack_count");
        let full: Vec<_> = points.iter().filter(|point| table.is_nearly_full(point.value)).collect();
        let when = full.first().zip(full.last()).map(|(first, last)| Window { from: first.at, to: last.at }.into());
        return found(
            Severity::Warning,
            match is_full {
                true => format!("The connection table is nearly full: {}", table.words(table.now)),
                false => format!("The connection table was nearly full: {}", table.words(table.most)),
            },
            "The kernel tracks every connection (nf_conntrack). When the table is full, it drops the packets of new connections.".to_owned(),
            facts,
            ties(when),
        );
    }
    match (table.map(|table| table.words(table.most)), log) {
        (Some(now), Ok(log)) => {
            Answer::Fine(format!("{now} connections tracked at most; no overflow in {}", log.reach_words()))
        }
        (Some(now), Err(unseen)) => unseen.only_watched(evidence, &format!("{now} connections tracked")),
        // Without the module there is no table, and no file.
        (None, Ok(log)) => log.nothing(|reach| format!("no overflow in {reach}; no connection table was seen")),
        (None, Err(unseen)) => Answer::CannotTell {
            because: format!("{}, and no connection table was seen ({COUNT})", unseen.because),
            how_to_see: unseen.how_to_see,
        },
    }
}

fn found(severity: Severity, title: String, detail: String, evidence: Vec<Fact>, ties: Ties) -> Answer {
    Answer::Findings(vec![Finding {
        code: Code::ConntrackFull,
        ties,
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
    use crate::finding::diagnose;
    use crate::rules::test_evidence::{END, cannot_tell, fact, fine, log, one, start, watched};
    use crate::verdict::Certainty;

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
    fn a_table_that_was_nearly_full_has_an_end() {
        let mut evidence = watched(60);
        evidence.log = log(&[]);
        for (ago, used) in [(60, 10), (40, 99), (30, 99), (20, 10), (0, 10)] {
            evidence.counters.push(Source::Conntrack, "", "nf_conntrack_count", start(ago), used);
        }
        evidence.counters.push(Source::Conntrack, "", "nf_conntrack_max", start(60), 100);
        let f = &diagnose(&evidence).findings[0];
        assert_eq!(f.title, "The connection table was nearly full: 99 of 100 (99 %)");
        assert!(!f.is_ongoing() && f.ties.time.until.is_some());
    }

    #[test]
    fn a_line_of_the_watched_time_is_critical_and_an_older_one_is_past() {
        const LINE: &str = "nf_conntrack: nf_conntrack: table full in netns 4026532999, dropping packet";
        let of = |age| {
            let mut evidence = table(10, 262_144);
            evidence.log = log(&[(age, LINE)]);
            diagnose(&evidence)
        };
        let now = of(3);
        let f = &now.findings[0];
        assert_eq!((f.severity, f.is_ongoing()), (Severity::Critical, true));
        assert_eq!(now.conclusion.verdicts[0].certainty, Certainty::Proven);
        let past = of(180);
        let f = &past.findings[0];
        assert_eq!((f.severity, f.is_ongoing()), (Severity::Warning, false));
        assert!(f.detail.contains("namespace 4026532999, which may be gone"), "{}", f.detail);
        let verdict = &past.conclusion.verdicts[0];
        assert_eq!(verdict.certainty, Certainty::Likely, "nobody saw what filled it");
        assert!(verdict.over.is_some() && !verdict.time.ongoing);
        assert_eq!(of(2 * 3600).findings[0].severity, Severity::Info);
        // A full table goes on, whatever the age of its lines.
        let mut evidence = table(262_000, 262_144);
        evidence.log = log(&[(180, LINE)]);
        let full = diagnose(&evidence);
        assert_eq!((full.findings[0].severity, full.findings[0].is_ongoing()), (Severity::Critical, true));
    }

    #[test]
    fn an_old_overflow_is_only_worth_knowing() {
        let mut evidence = table(10, 262_144);
        evidence.log = log(&[
            (7200, "nf_conntrack: nf_conntrack: table full in netns 4026531840, dropping packet"),
            (7190, "nf_conntrack: nf_conntrack: table full, dropping packet"),
        ]);
        let f = one(examine(&Case::of(&evidence)));
        assert_eq!(f.severity, Severity::Info);
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
