use super::*;
use crate::Root;
use crate::test_tree::write as put;
use std::fs;
use std::path::Path;
use std::process::Command;

fn tree(dir: &Path) -> Tree {
    Tree::open(&Root::at(dir)).unwrap()
}

const UNIT: &str = "/usr/lib/systemd/system/agent.service";

fn package(name: &str, version: &str, manager: &str) -> Package {
    Package { name: name.into(), version: Some(version.into()), manager: manager.into() }
}

#[test]
fn dpkg_with_and_without_merged_usr_and_distroless() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "var/lib/dpkg/info/agent:amd64.list", "/.\n/lib\n/lib/systemd/system/agent.service\n");
    put(
        dir.path(),
        "var/lib/dpkg/status",
        "Package: agent\nStatus: install ok installed\nVersion: 1.2-3\n\nPackage: x\nVersion: 9\n",
    );
    let owners = find(&tree(dir.path()), &[UNIT.to_owned()]);
    assert_eq!(owners.by_path[UNIT], package("agent", "1.2-3", "dpkg"));
    assert_eq!((owners.databases.as_slice(), owners.unseen.len()), (&["dpkg"][..], 0));
    // An unreadable list is reported; the others still count.
    fs::create_dir(dir.path().join("var/lib/dpkg/info/broken.list")).unwrap();
    let owners = find(&tree(dir.path()), &[UNIT.to_owned()]);
    assert_eq!(owners.by_path[UNIT].name, "agent");
    assert!(owners.unseen[0].why.contains("broken.list"), "{:?}", owners.unseen);

    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "var/lib/dpkg/status.d/agent", "Package: agent\nVersion: 4\n");
    put(
        dir.path(),
        "var/lib/dpkg/status.d/agent.md5sums",
        "d41d8cd98f00b204e9800998ecf8427e  usr/lib/systemd/system/agent.service\n",
    );
    assert_eq!(find(&tree(dir.path()), &[UNIT.to_owned()]).by_path[UNIT], package("agent", "4", "dpkg"));
}

#[test]
fn rpm_in_sqlite() {
    for index in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("usr/lib/sysimage/rpm/rpmdb.sqlite");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let database = rusqlite::Connection::open(&file).unwrap();
        database
            .execute_batch("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)")
            .unwrap();
        if index {
            database
                .execute_batch(
                    "CREATE TABLE Basenames (key TEXT NOT NULL, hnum INTEGER NOT NULL, idx INTEGER NOT NULL)",
                )
                .unwrap();
        }
        for (i, (name, path)) in [("other", "/opt/agent.service"), ("agent", UNIT)].iter().enumerate() {
            let blob = rpm_header::tests::header(name, "2", "1.el9", &[path]);
            database.execute("INSERT INTO Packages VALUES (?1, ?2)", (i as i64 + 1, blob)).unwrap();
            if index {
                database.execute("INSERT INTO Basenames VALUES ('agent.service', ?1, 0)", [i as i64 + 1]).unwrap();
            }
        }
        drop(database);
        let owners = find(&tree(dir.path()), &[UNIT.to_owned()]);
        assert_eq!(owners.unseen, []);
        assert_eq!(owners.by_path[UNIT], package("agent", "2-1.el9", "rpm"));
        let beside = fs::read_dir(file.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1, "nothing was written next to the database");
    }
}

#[test]
fn damaged_databases_are_unseen() {
    for path in ["var/lib/rpm/rpmdb.sqlite", "var/lib/rpm/Packages.db", "var/lib/rpm/Packages"] {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), path, [0x5a; 9000]);
        let owners = find(&tree(dir.path()), &[UNIT.to_owned()]);
        assert!(owners.by_path.is_empty());
        assert!(owners.unseen[0].why.contains(&format!("/{path}")), "{:?}", owners.unseen);
        assert!(owners.unseen[0].how_to_see.contains("rpm --root"));
    }
    let dir = tempfile::tempdir().unwrap();
    assert!(find(&tree(dir.path()), &[]).unseen[0].why.contains("no dpkg, rpm or apk database"));
}

#[test]
fn units_of_snaps_get_their_snap() {
    let dir = tempfile::tempdir().unwrap();
    let name = "snap.amazon-ssm-agent.amazon-ssm-agent.service";
    put(dir.path(), format!("etc/systemd/system/{name}"), "[Service]\nExecStart=/usr/bin/snap run x\n");
    fs::create_dir_all(dir.path().join("snap/amazon-ssm-agent")).unwrap();
    std::os::unix::fs::symlink("7993", dir.path().join("snap/amazon-ssm-agent/current")).unwrap();
    let tree = tree(dir.path());
    let mut units = crate::unit_files::read_tree(&tree).units;
    name_packages(&tree, &mut units);
    assert_eq!(units[0].package, Some(package("amazon-ssm-agent", "revision 7993", "snap")));
}

#[test]
fn agrees_with_dpkg_on_a_debian_image() {
    let root = coroner_lab::scenarios::systemd_root::location().unwrap();
    if !root.join("var/lib/dpkg/status").exists() {
        return coroner_lab::skip("no root file system; make it with coroner-lab root");
    }
    let tree = tree(&root);
    let mut units = crate::unit_files::read_tree(&tree).units;
    assert_eq!(name_packages(&tree, &mut units), []);
    let mut asked = 0;
    for unit in units.iter().filter(|u| u.instance_of.is_none()).step_by(7) {
        let Some(path) = &unit.path else { continue };
        let spellings = [path.clone(), path.replacen("/usr/lib/", "/lib/", 1)];
        let truth = spellings.iter().find_map(|path| {
            let output = Command::new("dpkg-query")
                .arg(format!("--admindir={}/var/lib/dpkg", root.display()))
                .args(["-S", path])
                .output()
                .ok()?;
            output
                .status
                .success()
                .then(|| String::from_utf8_lossy(&output.stdout).split(':').next().unwrap_or("").to_owned())
        });
        assert_eq!(unit.package.as_ref().map(|p| p.name.clone()), truth, "{path}");
        asked += 1;
    }
    assert!(asked > 10);
    let systemd = units.iter().find(|u| u.name == "systemd-journald.service").unwrap().package.clone().unwrap();
    assert!(systemd.version.unwrap().starts_with("252"));
}
