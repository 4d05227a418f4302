use super::*;
use proptest::prelude::*;

/// Folds paths; returns parent, pattern and count of each class.
fn folded(paths: &[String]) -> Vec<(String, String, u64)> {
    let folding = fold(paths.iter().map(|path| item(path)));
    folding.classes.into_iter().map(|c| (c.parent, c.pattern, c.count)).collect()
}

fn item(path: &str) -> Item<'_> {
    let (parent, name) = split(path);
    Item { parent, name, count: 1, bytes: 4096 }
}

fn many(n: usize, path: impl Fn(usize) -> String) -> Vec<String> {
    (0..n).map(path).collect()
}

fn class(parent: &str, pattern: &str, count: u64) -> (String, String, u64) {
    (parent.to_owned(), pattern.to_owned(), count)
}

/// Meaningless letters, the same on each run.
fn letters(seed: usize, n: usize, alphabet: &[u8]) -> String {
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..n)
        .map(|_| {
            state ^= state >> 27;
            state = state.wrapping_mul(0x3C79_AC49_2BA7_B653);
            state ^= state >> 33;
            char::from(alphabet[(state % alphabet.len() as u64) as usize])
        })
        .collect()
}

fn uid(i: usize) -> String {
    format!("{i:08x}-1111-2222-3333-{:012x}", i * 7919)
}

fn container(i: usize) -> String {
    format!("{:064x}", (i as u128 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835))
}

const LOWER: &[u8] = b"abcdefghijklmnopqrstuvwxyz";
const MKTEMP: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const BASE36: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const HEX: &[u8] = b"0123456789abcdef";

#[test]
fn random_names_below_one_parent_are_one_line() {
    for (alphabet, n) in
        [(LOWER, 5), (LOWER, 8), (MKTEMP, 6), (MKTEMP, 10), (BASE36, 8), (HEX, 4), (HEX, 6), (HEX, 8), (HEX, 12)]
    {
        for prefix in ["", "tmp.", "job-", "zombie_test_"] {
            for seed in 0..20 {
                let paths = many(300, |i| format!("/q{seed}x/{prefix}{}", letters(i + 1000 * seed, n, alphabet)));
                let classes = folded(&paths);
                assert_eq!(classes, [class(&format!("/q{seed}x"), &format!("{prefix}*"), 300)], "{paths:?}");
            }
        }
    }
}

#[test]
fn a_parent_with_many_keeps_its_name_beside_others_like_it() {
    let mut paths = many(300, |i| format!("/lab-8f3a1/z{i}"));
    paths.extend(many(40, |i| format!("/lab-{i}/z{i}")));
    assert_eq!(folded(&paths), [class("/lab-8f3a1", "z*", 300), class("/lab-*", "z*", 40)]);
    paths.extend(many(60_000, |i| format!("/lab-77777/z{i}")));
    assert_eq!(folded(&paths)[1], class("/lab-8f3a1", "z*", 300));
}

#[test]
fn dead_pods_and_their_containers_are_two_lines() {
    let mut paths = Vec::new();
    for pod in 0..800 {
        let pod_path = format!("/kubepods/burstable/pod{}", uid(pod));
        paths.extend(many(3, |i| format!("{pod_path}/{}", container(pod * 3 + i))));
        paths.push(pod_path);
    }
    let expected = [class("/kubepods/burstable/pod*", "*", 2_400), class("/kubepods/burstable", "pod*", 800)];
    assert_eq!(folded(&paths), expected);
    // One pod whose container keeps crashing stands out.
    let crashing = format!("/kubepods/burstable/pod{}", uid(9_999));
    paths.extend(many(700, |i| format!("{crashing}/{}", container(50_000 + i))));
    assert_eq!(folded(&paths)[2], class(&crashing, "*", 700));
}

#[test]
fn a_unit_that_kept_dying_stands_out_from_what_booting_left() {
    let mut paths = many(500, |_| "/system.slice/ecs.service".to_owned());
    paths.extend(many(30, |i| format!("/system.slice/{}.service", letters(i, 7, LOWER))));
    paths.extend(many(4, |i| format!("/system.slice/{}.mount", letters(i, 7, LOWER))));
    paths.extend(many(200, |i| format!("/system.slice/run-u{i}.service")));
    let expected = [
        class("/system.slice", "ecs.service", 500),
        class("/system.slice", "run-u*.service", 200),
        class("/system.slice", "*.service", 30),
        class("/system.slice", "*.mount", 4),
    ];
    assert_eq!(folded(&paths), expected);
}

#[test]
fn words_without_a_pattern_are_told_apart_by_how_they_begin() {
    let mut paths = many(1000, |i| format!("/jobs/alpha-{}", letters(i, 9, LOWER)));
    paths.extend(many(1000, |i| format!("/jobs/beta-two-{}", letters(i, 9, LOWER))));
    assert_eq!(folded(&paths), [class("/jobs", "alpha-*", 1000), class("/jobs", "beta-two-*", 1000)]);
}

#[test]
fn parents_without_a_pattern_are_one_line() {
    let mut paths = many(400, |i| format!("/jobs/{}/main", letters(i, 9, LOWER)));
    paths.extend(many(500, |_| "/system.slice/ecs.service".to_owned()));
    // A few of them may keep a line of their own.
    assert_eq!(folded(&paths)[0], class("/system.slice", "ecs.service", 500));
    let rest: Vec<_> = folded(&paths).into_iter().filter(|c| c.0 == "/jobs/*").collect();
    assert_eq!(rest.len(), 1);
    assert!(rest[0].2 >= 390, "{rest:?}");
}

#[test]
fn more_than_a_person_reads_becomes_a_rest_that_keeps_the_sums() {
    // 40 places that have nothing in common, each smaller than the one before.
    let place = |i: usize| format!("/{0}/{0}/{0}", letters(i, 6, LOWER));
    let paths: Vec<String> = (0..40).flat_map(|i| many(400 - 10 * i, |_| format!("{}/x", place(i)))).collect();
    let folding = fold(paths.iter().map(|p| item(p)));
    assert_eq!(folding.classes.len(), MOST_LINES);
    let rest = folding.classes.last().unwrap();
    assert_eq!((rest.parent.as_str(), rest.pattern.as_str(), rest.rest_of), ("/", "*", 21));
    assert_eq!(folding.classes.iter().map(|c| c.count).sum::<u64>(), paths.len() as u64);
    // A few that hold much get a line.
    let mut items: Vec<Item<'_>> = paths.iter().map(|p| item(p)).collect();
    items.push(Item { parent: "/greedy", name: "one", count: 1, bytes: 100 << 30 });
    assert!(fold(items.into_iter()).classes.iter().any(|c| c.parent == "/greedy"));
}

#[test]
fn no_paths_give_no_classes() {
    assert_eq!(folded(&[]), []);
    assert_eq!(folded(&["/a".to_owned()]), [class("/", "a", 1)]);
}

proptest! {
    #[test]
    fn every_path_is_in_a_class_that_covers_it(
        paths in prop::collection::vec("(/([a-c]{1,2}|pod[0-9a-f]{8}|[a-z]{3,5}|\\PC{0,3})(\\.service|-[a-z]{2}|[0-9]{1,3})?){1,3}", 0..120)
    ) {
        let folding = fold(paths.iter().map(|p| item(p)));
        prop_assert!(folding.classes.len() <= MOST_LINES);
        prop_assert_eq!(folding.class_of.len(), paths.len());
        let mut counts = vec![0u64; folding.classes.len()];
        for (path, &class) in paths.iter().zip(&folding.class_of) {
            counts[class as usize] += 1;
            let class = &folding.classes[class as usize];
            let (parent, name) = split(path);
            prop_assert!(pattern_covers(&class.pattern, name), "{class:?} {path}");
            if class.rest_of > 0 {
                prop_assert!(crate::cgroup_paths::is_same_or_below(parent, &class.parent), "{class:?} {path}");
            } else {
                let plain = parent.split('/').all(|part| !part.is_empty());
                prop_assert!(!plain || pattern_covers(&class.parent, parent) || parent == "/", "{class:?} {path}");
            }
        }
        for (class, count) in folding.classes.iter().zip(counts) {
            prop_assert_eq!(class.count, count);
            prop_assert_eq!(class.bytes, 4096 * count);
        }
    }
}

#[test]
fn sixty_thousand_are_folded() {
    let kinds: [(&str, Vec<String>); 4] = [
        ("one parent", many(60_000, |i| format!("/system.slice/ecs.service/ecs-agent-{i:08x}"))),
        ("containers", many(60_000, |i| format!("/kubepods/burstable/pod{}/{}", uid(i / 3), container(i)))),
        ("mktemp", many(60_000, |i| format!("/jobs/tmp.{}", letters(i, 10, MKTEMP)))),
        ("lost parents", many(60_000, |i| format!("/jobs/{}/main", letters(i, 10, LOWER)))),
    ];
    for (kind, paths) in &kinds {
        let folding = fold(paths.iter().map(|p| item(p)));
        assert!(folding.classes.len() <= LINES + 1, "{kind}: {:?}", folding.classes);
    }
}
