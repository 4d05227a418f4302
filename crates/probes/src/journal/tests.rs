use super::*;
use crate::Root;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const MACHINE: &str = "0123456789abcdef0123456789abcdef";

/// A tree with a journal, and a fake journalctl that logs its arguments and prints what it is told to.
struct JournalTree {
    dir: tempfile::TempDir,
}

impl JournalTree {
    fn new(script: &str) -> JournalTree {
        let dir = tempfile::tempdir().unwrap();
        let journal = dir.path().join("var/log/journal").join(MACHINE);
        fs::create_dir_all(&journal).unwrap();
        for name in ["system.journal", "system@0-1-2.journal", "user-1000.journal", "notes.txt"] {
            fs::write(journal.join(name), "LPKSHHRH").unwrap();
        }
        let program = dir.path().join("journalctl");
        let arguments = dir.path().join("arguments");
        fs::write(&program, format!("#!/bin/sh\necho \"$@\" >> {}\n{script}\n", arguments.display())).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        JournalTree { dir }
    }

    fn reader(&self) -> JournalReader {
        let program = Some(self.dir.path().join("journalctl"));
        JournalReader { program, limit: Duration::from_secs(60), told: HashMap::new() }
    }

    fn look(&self, reader: &mut JournalReader, units: &[(&str, bool)]) -> Evidence {
        let units: Vec<WantedUnit> =
            units.iter().map(|(unit, loops)| WantedUnit { unit: (*unit).to_owned(), loops: *loops }).collect();
        let mut evidence = Evidence::default();
        reader.look(&Tree::open(&Root::at(self.dir.path())).unwrap(), &units, &mut evidence);
        evidence
    }

    fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("arguments")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

const ONE_OF_EACH: &str = r#"
case "$*" in
*MESSAGE_ID=*)
  echo '{"__REALTIME_TIMESTAMP":"1700000002000000","_PID":"1","UNIT":"ecs.service","N_RESTARTS":"8","MESSAGE":"Scheduled restart job","MESSAGE_ID":"5eb03494b6584870a536b337290809b3"}'
  echo '{"__REALTIME_TIMESTAMP":"1700000000000000","_PID":"1","UNIT":"ecs.service","N_RESTARTS":"7","MESSAGE":"Scheduled restart job","MESSAGE_ID":"5eb03494b6584870a536b337290809b3"}';;
*)
  echo 'what is this'
  echo '{"__REALTIME_TIMESTAMP":"1700000001000000","_PID":"5","_SYSTEMD_UNIT":"ecs.service","MESSAGE":"token=abc refused"}'
  echo '{"__REALTIME_TIMESTAMP":"1700000000500000","_PID":"6","_SYSTEMD_UNIT":"other.service","MESSAGE":"not asked for"}';;
esac"#;

#[test]
fn messages_and_restarts_are_reported_once_and_in_order() {
    let node = JournalTree::new(ONE_OF_EACH);
    let mut reader = node.reader();
    let evidence = node.look(&mut reader, &[("ecs.service", true)]);
    assert_eq!(evidence.unseen, []);
    let told: Vec<(&str, Option<u32>)> = evidence.unit_log.iter().map(|l| (l.text.as_str(), l.restart)).collect();
    let restart = |n| ("Scheduled restart job", Some(n));
    assert_eq!(told, [restart(7), ("token=*** refused", None), restart(8)]);

    let calls = node.calls();
    assert_eq!(calls.len(), 2);
    for call in &calls {
        assert!(call.contains(&format!("{MACHINE}/system.journal")) && call.contains("system@0-1-2"), "{call}");
        assert!(!call.contains("user-1000") && !call.contains("notes"), "{call}");
    }
    assert!(calls[0].contains("--lines=200") && calls[0].ends_with("-- _SYSTEMD_UNIT=ecs.service"), "{}", calls[0]);
    assert!(calls[1].ends_with("_PID=1 UNIT=ecs.service"), "{}", calls[1]);

    assert_eq!(node.look(&mut reader, &[("ecs.service", true)]).unit_log, []);
}

#[test]
fn a_chatty_unit_does_not_hide_the_others() {
    let node = JournalTree::new(
        r#"
case "$*" in
*MESSAGE_ID=*) ;;
*loud.service*) for i in $(seq 600); do
  echo '{"__REALTIME_TIMESTAMP":"1700000001000000","_SYSTEMD_UNIT":"loud.service","MESSAGE":"me"}'; done;;
*_SYSTEMD_UNIT=quiet.service) echo '{"__REALTIME_TIMESTAMP":"1600000000000000","_SYSTEMD_UNIT":"quiet.service","MESSAGE":"and me"}';;
esac"#,
    );
    let evidence =
        node.look(&mut node.reader(), &[("loud.service", true), ("quiet.service", false), ("mute.service", false)]);
    let of = |unit: &str| evidence.unit_log.iter().filter(|l| l.unit == unit).count();
    assert_eq!((of("loud.service"), of("quiet.service"), of("mute.service")), (MAX_MESSAGES, 1, 0));
}

#[test]
fn the_start_of_a_long_loop_is_reported_with_its_latest_restarts() {
    let node = JournalTree::new(
        r#"
entry() {
  echo '{"__REALTIME_TIMESTAMP":"'$((1700000000000000 + $1))'","_PID":"1","UNIT":"ecs.service","N_RESTARTS":"'$1'","MESSAGE":"again","MESSAGE_ID":"5eb03494b6584870a536b337290809b3"}'
}
case "$*" in
*--reverse*MESSAGE_ID=*) for i in $(seq 2000 -1 1501); do entry $i; done;;
*MESSAGE_ID=*) for i in $(seq 3 2000); do entry $i; done;;
esac"#,
    );
    let mut reader = node.reader();
    let evidence = node.look(&mut reader, &[("ecs.service", true)]);
    let told: Vec<u32> = evidence.unit_log.iter().filter_map(|l| l.restart).collect();
    assert_eq!((told[0], told[1], told[told.len() - 1], told.len()), (3, 1501, 2000, MAX_RESTARTS + 1));
    assert_eq!(evidence.unseen, []);
}

#[test]
fn an_unreadable_journal_is_reported() {
    let why = |evidence: Evidence| {
        assert_eq!((evidence.unit_log.len(), evidence.unseen.len()), (0, 1), "{evidence:?}");
        assert_eq!(evidence.unseen[0].probe, probe::JOURNAL);
        evidence.unseen[0].why.clone()
    };
    let node = JournalTree::new("echo 'Failed to open files: Protocol not supported' >&2; exit 1");
    let ask = [("ecs.service", false)];
    assert!(why(node.look(&mut node.reader(), &ask)).contains("Protocol not supported"));
    let mut without = JournalReader { program: None, ..node.reader() };
    assert!(why(node.look(&mut without, &ask)).contains("not installed"));
    let slow = JournalTree::new("exec sleep 60");
    let mut reader = JournalReader { limit: Duration::from_millis(200), ..slow.reader() };
    assert!(why(slow.look(&mut reader, &ask)).contains("time limit reached"));
    fs::remove_dir_all(node.dir.path().join("var/log")).unwrap();
    assert!(why(node.look(&mut node.reader(), &ask)).contains("/run/log/journal"));
    assert_eq!(node.look(&mut node.reader(), &[]), Evidence::default(), "nothing wanted, nothing reported");
}

#[test]
fn a_journal_that_is_a_link_out_of_the_tree_is_not_followed() {
    let outside = JournalTree::new("");
    let node = JournalTree::new(ONE_OF_EACH);
    fs::remove_dir_all(node.dir.path().join("var/log/journal")).unwrap();
    let target = outside.dir.path().join("var/log/journal");
    std::os::unix::fs::symlink(target, node.dir.path().join("var/log/journal")).unwrap();
    let evidence = node.look(&mut node.reader(), &[("ecs.service", true)]);
    assert_eq!((evidence.unit_log.len(), node.calls().len()), (0, 0), "{evidence:?}");
}
