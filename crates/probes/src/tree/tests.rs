use super::*;
use crate::test_tree::write as put;
use proptest::prelude::*;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn tree(dir: &Path) -> Tree {
    Tree::open(&Root::at(dir)).unwrap()
}

#[test]
fn absolute_links_stay_inside() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "usr/lib/systemd/system/a.service", "inside");
    put(dir.path(), "etc/hostname", "the image");
    symlink("/usr/lib", dir.path().join("lib")).unwrap();
    symlink("/etc/hostname", dir.path().join("usr/lib/name")).unwrap();
    let tree = tree(dir.path());
    let place = tree.find("/lib/systemd/system/a.service").unwrap();
    assert_eq!((place.path.as_str(), place.kind), ("/usr/lib/systemd/system/a.service", FileKind::File));
    assert_eq!(tree.read("/lib/name", 100).unwrap(), b"the image");
}

#[test]
fn hostile_links_do_not_escape() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    put(dir.path(), "secret", "of the host");
    put(&image, "secret", "of the image");
    fs::create_dir_all(image.join("a/b")).unwrap();
    for (name, target) in [("up", "../../../../../../../../secret"), ("abs", "/../../secret"), ("dir", "/../../..")] {
        symlink(target, image.join("a/b").join(name)).unwrap();
    }
    let tree = tree(&image);
    assert_eq!(tree.read("/a/b/up", 100).unwrap(), b"of the image");
    assert_eq!(tree.read("/a/b/abs", 100).unwrap(), b"of the image");
    assert_eq!(tree.read("/../../secret", 100).unwrap(), b"of the image");
    assert_eq!(tree.find("/a/b/dir").unwrap().path, "/");
    assert_eq!(tree.read("/a/b/dir/secret", 100).unwrap(), b"of the image");
    assert!(tree.list("/a/b/dir").unwrap().iter().any(|e| e.name == "a"));
}

#[test]
fn loops_end() {
    let dir = tempfile::tempdir().unwrap();
    symlink("b", dir.path().join("a")).unwrap();
    symlink("/a", dir.path().join("b")).unwrap();
    symlink("self/self", dir.path().join("self")).unwrap();
    let tree = tree(dir.path());
    for path in ["/a", "/b/c", "/self"] {
        assert_eq!(tree.find(path).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()), "{path}");
    }
    assert_eq!(tree.find_link("/a").unwrap().kind, FileKind::Link);
    assert_eq!(tree.link_target("/a").unwrap(), "b");
}

#[test]
fn only_regular_files_of_a_bounded_size_are_read() {
    let dir = tempfile::tempdir().unwrap();
    assert!(std::process::Command::new("mkfifo").arg(dir.path().join("pipe")).status().unwrap().success());
    put(dir.path(), "big", "x".repeat(101));
    let tree = tree(dir.path());
    assert!(tree.read("/pipe", 100).unwrap_err().to_string().contains("not a regular file"));
    assert!(tree.read("/", 100).unwrap_err().to_string().contains("not a regular file"));
    assert!(tree.read("/big", 100).unwrap_err().to_string().contains("larger than 100 bytes"));
    assert_eq!(tree.read("/big", 101).unwrap().len(), 101);
    assert!(is_absent(&tree.read("/big/more", 100).unwrap_err()));
    assert!(!tree.exists("/none").unwrap());
}

#[test]
fn the_null_device_of_the_image_is_recognised() {
    let tree = Tree::open(&Root::live()).unwrap();
    assert_eq!(tree.find("/dev/null").unwrap().kind, FileKind::NullDevice);
    assert_eq!(tree.find("/dev/zero").unwrap().kind, FileKind::Other);
}

#[test]
fn paths_are_simplified_like_in_systemd() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "usr/lib/systemd/system/a.service", "");
    symlink("usr/lib", dir.path().join("lib")).unwrap();
    symlink("a.service", dir.path().join("usr/lib/systemd/system/b.service")).unwrap();
    let tree = tree(dir.path());
    assert_eq!(tree.simplified("/lib/systemd/system/b.service").unwrap(), "/usr/lib/systemd/system/b.service");
    assert_eq!(tree.simplified("/lib/systemd/system/../x/none").unwrap(), "/usr/lib/systemd/x/none".to_owned());
    assert_eq!(tree.simplified("/dev/null").unwrap(), "/dev/null");
    assert_eq!(tree.simplified("/none").unwrap(), "/none");
}

proptest! {
    /// Whatever links an image holds, nothing outside is ever read.
    #[test]
    fn no_path_leads_out(
        targets in prop::collection::vec("(/|\\.\\./|\\./|a/|b/|c/|l0|l1|l2|secret){1,6}", 3),
        path in "(/|\\.\\./|a/|b/|l0/|l1/|l2/|secret){1,6}",
    ) {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        put(dir.path(), "secret", "of the host");
        fs::create_dir_all(image.join("a/b/c")).unwrap();
        for (i, target) in targets.iter().enumerate() {
            symlink(target, image.join(["", "a", "a/b"][i]).join(format!("l{i}"))).unwrap();
        }
        let tree = tree(&image);
        prop_assert!(tree.read(&path, 100).is_err());
        let _ = tree.simplified(&path);
        if let Ok(entries) = tree.list(&path) {
            prop_assert!(entries.iter().all(|e| e.name != "secret" && e.name != "image"));
        }
    }
}

#[test]
fn a_cached_directory_gives_the_same_result() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("a/b/c")).unwrap();
    symlink("/a/b", dir.path().join("l")).unwrap();
    symlink("../../l/c", dir.path().join("a/b/m")).unwrap();
    for name in ["f", "a/f", "a/b/f", "a/b/c/f"] {
        fs::write(dir.path().join(name), name).unwrap();
    }
    let root = Root::at(dir.path());
    let used = Tree::open(&root).unwrap();
    let paths = [
        "/a/b/f",
        "/l/f",
        "/l/..",
        "/l/../f",
        "/a/b/.",
        "/a/b",
        "/a/b/..",
        "/a/b/../f",
        "/l/m/f",
        "/l/m/../f",
        "/l/m/.",
        "a/b/f",
        "/a/b/c/../../f",
        "//a//b//f",
        "/l",
        "/l/",
        "/l/./f",
        "/nothing/f",
        "/a/b/none",
    ];
    for _ in 0..2 {
        for path in paths {
            let told = |tree: &Tree| tree.find(path).map(|p| (p.path, p.kind)).map_err(|e| e.kind());
            assert_eq!(told(&used), told(&Tree::open(&root).unwrap()), "{path}");
        }
    }
}
