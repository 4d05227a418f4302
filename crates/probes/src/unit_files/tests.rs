use super::*;
use crate::test_tree::{link, write as put};
use coroner_evidence::Preset;
use std::fs;
use std::path::Path;

fn units(dir: &Path) -> BTreeMap<String, UnitFile> {
    read(&Root::at(dir)).unwrap().units.into_iter().map(|u| (u.name.clone(), u)).collect()
}

#[test]
fn an_agent_with_drop_ins_on_three_levels() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    put(
        d,
        "usr/lib/systemd/system/amazon-ecs.service",
        "[Unit]\nDescription=ECS\nConditionPathExists=!/etc/ecs/off\nConditionPathExists=/run/x\nStartLimitBurst=3\n\
         [Service]\nType=simple\nRestart=on-failure\nRestartSec=10s\nExecStart=/usr/libexec/amazon-ecs-init \\\n start %n\n\
         EnvironmentFile=-/etc/ecs/ecs.config\n[Install]\nWantedBy=multi-user.target\n",
    );
    link(
        d,
        "etc/systemd/system/multi-user.target.wants/amazon-ecs.service",
        "/usr/lib/systemd/system/amazon-ecs.service",
    );
    put(d, "usr/lib/systemd/system/service.d/10-all.conf", "[Service]\nRestartSec=1\n");
    put(d, "etc/systemd/system/amazon-.service.d/20-prefix.conf", "[Service]\nRestartSec=100ms\n");
    put(d, "etc/systemd/system/amazon-ecs.service.d/15-own.conf", "[Service]\nExecStart=\nExecStart=/bin/other\n");
    put(d, "run/systemd/system/amazon-ecs.service.d/15-own.conf", "[Service]\nExecStart=/bin/hidden\n");
    put(d, "usr/lib/systemd/system/amazon-ecs.service.d/README", "[Service]\nRestart=no\n");
    let units = units(d);
    let ecs = &units["amazon-ecs.service"];
    assert_eq!(ecs.enablement, Enablement::Enabled);
    assert_eq!(ecs.preset, Some(Preset::Enabled));
    assert_eq!(ecs.exec_start, ["/bin/other"]);
    assert_eq!(ecs.restart_delay_us, Some(100_000));
    assert_eq!(ecs.restart.as_deref(), Some("on-failure"));
    assert_eq!(ecs.start_limit_burst, Some(3));
    assert_eq!(ecs.environment_files, ["-/etc/ecs/ecs.config"]);
    assert_eq!(
        ecs.drop_ins,
        [
            "/usr/lib/systemd/system/service.d/10-all.conf",
            "/etc/systemd/system/amazon-ecs.service.d/15-own.conf",
            "/etc/systemd/system/amazon-.service.d/20-prefix.conf",
        ]
    );
    assert_eq!(ecs.pulled_in_by[0].by, "multi-user.target");
    assert_eq!(ecs.install_wanted_by, ["multi-user.target"]);
    // The negated path does not exist; /run cannot be judged from an image.
    assert_eq!(ecs.conditions.iter().map(|c| c.holds).collect::<Vec<_>>(), [Some(true), None]);
    let before = ecs.content_hash.clone().unwrap();
    assert_eq!(before.len(), 64);
    put(d, "etc/systemd/system/amazon-ecs.service.d/15-own.conf", "[Service]\nExecStart=\nExecStart=/bin/third\n");
    assert_ne!(self::units(d)["amazon-ecs.service"].content_hash.clone().unwrap(), before);
}

#[test]
fn masks_aliases_instances_and_triggers() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path();
    let vendor = "usr/lib/systemd/system";
    put(d, format!("{vendor}/real.service"), "[Service]\nExecStart=/bin/real\n");
    link(d, "etc/systemd/system/nick.service", "/usr/lib/systemd/system/real.service");
    put(d, format!("{vendor}/gone.service"), "[Service]\nExecStart=/bin/gone\n");
    link(d, "etc/systemd/system/gone.service", "/dev/null");
    put(d, format!("{vendor}/hollow.service"), "");
    put(
        d,
        format!("{vendor}/getty@.service"),
        "[Service]\nExecStart=/sbin/agetty %I\n[Install]\nDefaultInstance=tty1\n",
    );
    link(d, "etc/systemd/system/getty.target.wants/getty@ttyS0.service", "/usr/lib/systemd/system/getty@.service");
    put(d, format!("{vendor}/daily.timer"), "[Timer]\nOnCalendar=daily\n[Install]\nWantedBy=timers.target\n");
    put(d, format!("{vendor}/daily.service"), "[Service]\nType=oneshot\n");
    put(d, format!("{vendor}/a.socket"), "[Socket]\nListenStream=1\nService=real.service\n");
    put(d, format!("{vendor}/shell.socket"), "[Socket]\nAccept=yes\n");
    put(d, format!("{vendor}/shell@.service"), "[Service]\nExecStart=-/bin/sh\n");
    let units = units(d);
    assert_eq!(units["gone.service"].enablement, Enablement::Masked);
    assert_eq!(units["hollow.service"].enablement, Enablement::Masked);
    assert_eq!(units["nick.service"].alias_of.as_deref(), Some("real.service"));
    assert_eq!(units["real.service"].aliases, ["nick.service"]);
    assert_eq!(units["real.service"].triggered_by, ["a.socket"]);
    assert_eq!(units["daily.timer"].triggers, ["daily.service"]);
    assert_eq!(units["daily.service"].triggered_by, ["daily.timer"]);
    assert_eq!(units["shell@.service"].triggered_by, ["shell.socket"]);
    let serial = &units["getty@ttyS0.service"];
    assert_eq!((serial.enablement, serial.instance_of.as_deref()), (Enablement::Enabled, Some("getty@.service")));
    assert_eq!(serial.exec_start, ["/sbin/agetty %I"]);
}

#[test]
fn hostile_trees_are_reported_and_never_left() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    put(dir.path(), "host.service", "[Service]\nExecStart=/bin/of-the-host\n");
    let vendor = "usr/lib/systemd/system";
    link(&image, &format!("{vendor}/out.service"), "../../../../../../host.service");
    link(&image, &format!("{vendor}/loop.service"), "loop2.service");
    link(&image, &format!("{vendor}/loop2.service"), "loop.service");
    link(&image, &format!("{vendor}/self.service"), "self.service");
    link(&image, "etc/systemd/system/linked.service", "/opt/linked.service");
    link(&image, "opt/linked.service", "/../../host.service");
    link(&image, &format!("{vendor}/odd.service.d"), "../../../../../../..");
    put(&image, format!("{vendor}/binary.service"), "\u{1}\u{2}\n[Service\n\0\0");
    fs::write(image.join(vendor).join("raw.service"), [0xff, 0xfe, b'[', 0, b'\\']).unwrap();
    link(&image, "etc/systemd/system-preset", "/etc/systemd/system-preset");
    let read = read(&Root::at(&image)).unwrap();
    assert!(read.units.iter().all(|u| u.exec_start.is_empty()), "{:#?}", read.units);
    for name in ["out.service", "loop.service", "self.service", "binary.service"] {
        let unit = read.units.iter().find(|u| u.name == name).unwrap();
        assert_eq!(unit.enablement, Enablement::Bad, "{name}");
        assert!(unit.bad.is_some(), "{name}");
    }
    assert!(read.unseen.iter().any(|u| u.what.contains("system-preset")), "{:#?}", read.unseen);
}

#[test]
fn a_tree_without_systemd_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let seen = read(&Root::at(dir.path())).unwrap();
    assert!(seen.units.is_empty());
    assert!(seen.unseen[0].why.contains("no systemd unit directory"));
    assert!(read(&Root::at(dir.path().join("none"))).unwrap_err().to_string().contains("none"));
}
