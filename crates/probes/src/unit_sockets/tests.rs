use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n";

fn row(state: &str, number: u64) -> String {
    format!(
        "   0: 0100007F:0035 00000000:0000 {state} 00000000:00000000 00:00000000 00000000   101        0 {number} 1 0 100 0\n"
    )
}

fn process(root: &Path, pid: u32, sockets: &[u64], tcp: &str, udp: &str) {
    let proc = root.join(format!("proc/{pid}"));
    for dir in ["fd", "ns", "net"] {
        fs::create_dir_all(proc.join(dir)).unwrap();
    }
    symlink("net:[4026531840]", proc.join("ns/net")).unwrap();
    symlink("/dev/null", proc.join("fd/0")).unwrap();
    for (fd, number) in sockets.iter().enumerate() {
        symlink(format!("socket:[{number}]"), proc.join(format!("fd/{}", fd + 3))).unwrap();
    }
    fs::write(proc.join("net/tcp"), format!("{HEAD}{tcp}")).unwrap();
    fs::write(proc.join("net/udp"), format!("{HEAD}{udp}")).unwrap();
}

fn node() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let cgroup = dir.path().join("sys/fs/cgroup/system.slice/agent.service");
    fs::create_dir_all(cgroup.join("child")).unwrap();
    fs::write(cgroup.join("cgroup.procs"), "10\n").unwrap();
    fs::write(cgroup.join("child/cgroup.procs"), "11\n12\n").unwrap();
    fs::create_dir_all(dir.path().join("proc/self")).unwrap();
    let mount = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
    fs::write(dir.path().join("proc/self/mountinfo"), mount).unwrap();
    dir
}

fn agent() -> [RunningUnit; 1] {
    [RunningUnit { unit: "agent.service".to_owned(), cgroup: "/system.slice/agent.service".to_owned() }]
}

#[test]
fn sockets_of_a_unit_are_counted_once() {
    let dir = node();
    let tcp = [row("0A", 1), row("01", 2), row("02", 3), row("01", 99)].concat();
    let udp = [row("07", 4), row("01", 5)].concat();
    // 1 is inherited by the child; 3 is still connecting; 77 is a unix socket; 99 belongs to another unit; process 12 is gone.
    process(dir.path(), 10, &[1, 2, 3, 77], &tcp, &udp);
    process(dir.path(), 11, &[1, 4, 5], &tcp, &udp);
    let mut evidence = Evidence::default();
    look(&Root::at(dir.path()), &agent(), Time::from_secs(3), &mut evidence);
    let expected =
        UnitSockets { at: Time::from_secs(3), unit: "agent.service".into(), processes: 2, listening: 2, connected: 2 };
    assert_eq!((evidence.unit_sockets, evidence.unseen), (vec![expected], vec![]));
}

#[test]
fn a_unit_without_processes_has_no_count() {
    let dir = node();
    let mut evidence = Evidence::default();
    look(&Root::at(dir.path()), &agent(), Time::from_secs(3), &mut evidence);
    assert_eq!(evidence, Evidence::default(), "no processes left");
    let climbing = [RunningUnit { unit: "a.service".into(), cgroup: "/../system.slice".into() }];
    look(&Root::at(dir.path()), &climbing, Time::from_secs(3), &mut evidence);
    assert_eq!(evidence, Evidence::default());
}

#[test]
fn too_many_units_are_reported() {
    let dir = node();
    let pids: String = (100..400).map(|pid| format!("{pid}\n")).collect();
    fs::write(dir.path().join("sys/fs/cgroup/system.slice/agent.service/cgroup.procs"), pids).unwrap();
    let mut evidence = Evidence::default();
    look(&Root::at(dir.path()), &agent(), Time::from_secs(3), &mut evidence);
    assert_eq!(evidence.unit_sockets, []);
    assert!(evidence.unseen[0].what.contains("agent.service"), "{:?}", evidence.unseen);
}

#[test]
fn our_own_sockets_are_seen() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let root = Root::live();
    let mut look =
        Look { root: &root, mounts: vec![], tables: HashMap::new(), deadline: Instant::now() + LIMIT, processes: 0 };
    let (namespace, sockets) = look.sockets_of(std::process::id()).unwrap().unwrap();
    let table = look.table(std::process::id(), &namespace).unwrap();
    let does = |wanted: Use| sockets.iter().filter(|number| table.get(number) == Some(&wanted)).count();
    assert!(does(Use::Listening) >= 1 && does(Use::Connected) >= 1);
}

proptest! {
    #[test]
    fn any_table(text in any::<String>(), rows in "([0-9A-F:]{1,9} ){0,14}\n") {
        let _ = parse_table(&text, Tcp).count();
        let _ = parse_table(&format!("{HEAD}{rows}"), Udp).count();
        let _ = socket_number(&text);
    }

    #[test]
    fn a_row_round_trips(number in any::<u64>()) {
        let text = format!("{HEAD}{}", row("0A", number));
        prop_assert_eq!(parse_table(&text, Tcp).collect::<Vec<_>>(), vec![(number, Use::Listening)]);
        prop_assert_eq!(socket_number(&format!("socket:[{number}]")), Some(number));
    }
}
