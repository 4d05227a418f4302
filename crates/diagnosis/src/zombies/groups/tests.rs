use crate::rules::test_evidence::{END, start, watched};
use crate::zombies::test_scan::{born, file, pin, scan, zombie};
use crate::zombies::{Group, OtherwiseKind, ZombieReport, report};
use coroner_evidence::{Charged, DeadBelow, Evidence, ZombieMethod, ZombieScan};

fn with(scan: ZombieScan) -> Evidence {
    Evidence { zombie_scans: vec![scan], ..watched(5) }
}

fn of(evidence: &Evidence) -> ZombieReport<'_> {
    report(evidence).expect("there is a scan")
}

fn names(groups: &[Group<'_>]) -> Vec<(String, String, Option<u64>)> {
    groups.iter().map(|g| (g.parent.clone(), g.pattern.clone(), g.dead)).collect()
}

#[test]
fn a_unit_that_kept_dying_is_named() {
    let evidence = with(scan((0..500).map(|_| "/system.slice/ecs.service")));
    let report = of(&evidence);
    let [group] = &report.groups[..] else { panic!("{:?}", names(&report.groups)) };
    assert_eq!((group.parent.as_str(), group.pattern.as_str()), ("/system.slice", "ecs.service"));
    assert_eq!(group.unit.as_deref(), Some("ecs.service"));
    assert_eq!((group.dead, group.held.file, group.held.total()), (Some(500), 500 * 4096, 500 * 4096));
    assert_eq!(report.held, group.held);
    assert_eq!(group.example, "/system.slice/ecs.service");
    // A number that is the same in every name is not folded.
    let evidence = with(scan((0..40).map(|_| "/user.slice/user@1000.service")));
    let group = &of(&evidence).groups[0];
    assert_eq!((group.pattern.as_str(), group.unit.as_deref()), ("user@1000.service", Some("user@1000.service")));
}

#[test]
fn an_owner_is_named_only_if_all_share_it() {
    let below = with(scan((0..30).map(|i| format!("/system.slice/ecs.service/task-{i}"))));
    assert_eq!(of(&below).groups[0].unit.as_deref(), Some("ecs.service"));
    let each = with(scan((0..30).map(|i| format!("/system.slice/run-u{i}.service"))));
    assert_eq!(of(&each).groups[0].unit, None);
    let uid = "6f9b1c7e-1111-2222-3333-444455556666";
    let pod = with(scan((0..30).map(|i| format!("/kubepods/burstable/pod{uid}/{i:064x}"))));
    let group = &of(&pod).groups[0];
    assert_eq!((group.pod_uid.as_deref(), group.container_id.as_deref()), (Some(uid), None));
    assert_eq!(group.parent, format!("/kubepods/burstable/pod{uid}"));
    let one_container = with(scan((0..30).map(|_| format!("/docker/{:064x}/payload", 77))));
    assert_eq!(of(&one_container).groups[0].container_id, Some(format!("{:064x}", 77)));
}

#[test]
fn files_are_listed_biggest_first_and_by_directory() {
    let mut scan = scan((0..300).map(|i| format!("/random-{}/z{i}", "x7k")));
    for zombie in &mut scan.zombies[..200] {
        zombie.held = Charged { swap_backed: 8192, shmem: Some(8192), anonymous: Some(0), ..Charged::default() };
    }
    pin(&mut scan, file(Some("/var/big"), "ext4"), 200..300, 4096);
    for i in 0..200 {
        pin(&mut scan, file(Some(&format!("/dev/shm/left-{i}")), "tmpfs"), i..i + 1, 8192);
    }
    let evidence = with(scan);
    let report = of(&evidence);
    let [group] = &report.groups[..] else { panic!("{:?}", names(&report.groups)) };
    assert_eq!(group.pinned_by.len(), 201);
    assert_eq!(group.pinned_by[0].file.path.as_deref(), Some("/var/big"));
    assert_eq!((group.pinned_by[0].bytes, group.pinned_by[0].zombies), (100 * 4096, 100));
    assert_eq!((group.pinned_by[1].bytes, group.pinned_by[1].zombies), (8192, 1));
    let places: Vec<_> = group.pinned_in.iter().map(|p| (p.pattern.as_str(), p.files, p.bytes, p.zombies)).collect();
    assert_eq!(places, [("/dev/shm/left-*", 200, 200 * 8192, 200), ("/var/big", 1, 100 * 4096, 100)]);
    assert_eq!(group.pinned_in[0].example, "/dev/shm/left-0");
    assert_eq!(group.pinned_otherwise, []);
}

#[test]
fn a_zombie_kept_by_many_files_counts_once() {
    let mut scan = scan((0..3).map(|i| format!("/p/z{i}")));
    for i in 0..50 {
        pin(&mut scan, file(Some(&format!("/lib/f{i}")), "ext4"), 0..2, 64);
    }
    let evidence = with(scan);
    let place = &of(&evidence).groups[0].pinned_in[0];
    assert_eq!((place.pattern.as_str(), place.files, place.zombies), ("/lib/f*", 50, 2));
}

#[test]
fn files_of_many_directories_keep_their_file_system() {
    let mut scan = scan((0..100).map(|i| format!("/p/z{i}")));
    for i in 0..100 {
        let filesystem = if i % 2 == 0 { "ext4" } else { "tmpfs" };
        let word = |n: usize| char::from(b'a' + n as u8);
        let path = format!("/{0}{1}x/{1}{0}y/z/{0}", word(i % 10), word(i / 10));
        pin(&mut scan, file(Some(&path), filesystem), i..i + 1, 4096);
    }
    let evidence = with(scan);
    let places = &of(&evidence).groups[0].pinned_in;
    assert_eq!(places.iter().map(|p| p.files).sum::<u64>(), 100);
    for (filesystem, files) in [("ext4", 50), ("tmpfs", 50)] {
        let of = places.iter().filter(|p| p.filesystem == filesystem);
        assert_eq!(of.map(|p| p.files).sum::<u64>(), files, "{places:#?}");
    }
    assert!(places.iter().any(|p| p.pattern == "other files below /"), "{places:#?}");
}

#[test]
fn memory_that_no_file_explains_is_listed_by_kind() {
    let mut scan = scan((0..7).map(|i| format!("/p/z{i}")));
    let held = |i: usize| match i {
        0 => Charged { kernel: Some(8192), ..Charged::default() },
        1 => Charged { swap: Some(4096), ..Charged::default() },
        2 => Charged { swap_backed: 12_288, anonymous: Some(12_288), shmem: Some(0), ..Charged::default() },
        3 => Charged { swap_backed: 4096, ..Charged::default() },
        4 => Charged { file: 16_384, ..Charged::default() },
        5 => Charged { unevictable: 4096, ..Charged::default() },
        _ => Charged::default(),
    };
    for (i, zombie) in scan.zombies.iter_mut().enumerate() {
        zombie.held = held(i);
    }
    // Half of this one's page cache is explained.
    pin(&mut scan, file(None, "ext4"), 4..5, 8192);
    let evidence = with(scan.clone());
    let report = of(&evidence);
    let told = |kind| report.groups[0].pinned_otherwise.iter().find(|o| o.kind == kind).map(|o| (o.bytes, o.zombies));
    assert_eq!(told(OtherwiseKind::Kernel), Some((Some(8192), Some(1))));
    assert_eq!(told(OtherwiseKind::Swap), Some((Some(4096), Some(1))));
    assert_eq!(told(OtherwiseKind::Anonymous), Some((Some(12_288), Some(1))));
    assert_eq!(told(OtherwiseKind::SwapBacked), Some((Some(4096), Some(1))));
    assert_eq!(told(OtherwiseKind::File), Some((Some(8192), Some(1))));
    assert_eq!(told(OtherwiseKind::Unevictable), Some((Some(4096), Some(1))));
    assert_eq!(told(OtherwiseKind::Unknown), Some((None, Some(1))), "it holds nothing known");
    assert_eq!(told(OtherwiseKind::Children), None);
    assert_eq!(report.groups[0].pinned_in[0].pattern, "files on ext4 8:1 whose names are gone");
    // A parent that holds nothing is kept by its dead child.
    scan.zombies.push(zombie(99, "/p/z6/child".to_owned()));
    let evidence = with(scan);
    let report = of(&evidence);
    assert!(report.groups[0].pinned_otherwise.iter().any(|o| o.kind == OtherwiseKind::Children));
}

#[test]
fn oldest_and_newest_come_from_births() {
    let mut scan = scan((0..3).map(|i| format!("/p/z{i}")));
    scan.zombies[0].born = born(start(500), true);
    scan.zombies[2].born = born(start(20), true);
    let evidence = with(scan);
    let group = &of(&evidence).groups[0];
    assert_eq!((group.oldest, group.newest), (born(start(500), true), born(start(20), true)));
    assert_eq!((group.first_death, group.last_death), (None, None), "nobody watched");
}

#[test]
fn without_names_the_parents_are_the_groups() {
    let below = |parent: &str, dead, file| DeadBelow {
        parent: parent.to_owned(),
        dead,
        held: Some(Charged { file, ..Charged::default() }),
    };
    let mut scan =
        ZombieScan { method: ZombieMethod::CgroupStat, version: 2, dead: Some(530), ..scan([] as [&str; 0]) };
    scan.below = vec![below("/system.slice/ecs.service", Some(500), 1 << 20), below("/kubepods", Some(30), 4096)];
    let evidence = with(scan.clone());
    let report = of(&evidence);
    let group = &report.groups[0];
    assert_eq!((group.parent.as_str(), group.pattern.as_str()), ("/system.slice/ecs.service", "*"));
    assert_eq!((group.dead, group.unit.as_deref()), (Some(500), Some("ecs.service")));
    assert_eq!(group.pinned_otherwise[0].kind, OtherwiseKind::File);
    assert_eq!(group.pinned_otherwise[0].zombies, None);
    assert_eq!(report.groups[1].dead, Some(30));
    // v1 arithmetic: bytes, but no counts.
    scan.below = vec![below("/a", None, 4096), below("/b", None, 1 << 20)];
    let evidence = with(scan.clone());
    let groups = of(&evidence).groups;
    assert_eq!(names(&groups), [("/b".into(), "*".into(), None), ("/a".into(), "*".into(), None)]);
    scan.below.clear();
    assert_eq!(names(&of(&with(scan)).groups), []);
}

#[test]
fn the_newest_scan_is_reported() {
    let old = ZombieScan { at: start(300), ..scan(["/old"]) };
    let evidence = Evidence { zombie_scans: vec![scan(["/new"]), old], ..watched(5) };
    assert_eq!(of(&evidence).scan.at, END);
    assert!(report(&watched(5)).is_none());
}

#[test]
fn a_hold_with_a_bad_index_is_ignored() {
    let mut scan = scan(["/p/z1"]);
    pin(&mut scan, file(Some("/f"), "ext4"), 0..1, 4096);
    for (zombie, file) in [(0, 7), (9, 0), (u32::MAX, u32::MAX)] {
        scan.holds.push(coroner_evidence::Hold { zombie, file, bytes: u64::MAX });
    }
    assert_eq!(of(&with(scan)).groups[0].pinned_by.len(), 1);
}

#[test]
fn sixty_thousand_with_files_are_grouped() {
    let mut scan = scan((0..60_000).map(|i| format!("/system.slice/ecs.service/ecs-agent-{i:08x}")));
    for i in 0..60_000 {
        scan.files.push(file(Some(&format!("/dev/shm/left-{i:08x}")), "tmpfs"));
        scan.holds.push(coroner_evidence::Hold { zombie: i, file: i, bytes: 4096 });
    }
    assert_eq!(of(&with(scan)).groups.len(), 1);
}
