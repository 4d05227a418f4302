use super::*;
use proptest::prelude::*;

fn load(text: &str) -> Result<Catalogue, CatalogueError> {
    Catalogue::load(&[TextFile { path: "mine.toml".to_owned(), text: text.to_owned() }])
}

const MINE: &str = r#"schema = "coroner.catalogue/1"

[[agent]]
name = "mine"
units = ["mine*.service"]
what = "our own"
role = "observer"
safe_step = "systemctl disable --now {unit}"
does_not_fix = "nothing else"
"#;

#[test]
fn ours_can_be_read_and_covers_the_known_agents() {
    let catalogue = Catalogue::load(&[]).unwrap();
    assert!(catalogue.agents().count() >= 70, "{}", catalogue.agents().count());
    for (unit, agent) in [
        ("ecs.service", "amazon-ecs"),
        ("amazon-ecs-volume-plugin.service", "amazon-ecs"),
        ("amazon-ssm-agent.service", "amazon-ssm-agent"),
        ("snap.amazon-ssm-agent.amazon-ssm-agent.service", "amazon-ssm-agent"),
        ("google-osconfig-agent.service", "google-osconfig-agent"),
        ("google-guest-agent.service", "google-guest-agent"),
        ("unattended-upgrades.service", "apt-automatic"),
        ("apt-daily-upgrade.timer", "apt-automatic"),
        ("nvidia-dcgm.service", "nvidia-dcgm"),
        ("cadvisor.service", "cadvisor"),
        ("snapd.service", "snapd"),
        ("amazon-cloudwatch-agent.service", "amazon-cloudwatch-agent"),
        ("walinuxagent.service", "azure-linux-agent"),
        ("multipathd.service", "multipathd"),
        ("ModemManager.service", "modemmanager"),
        ("apport.service", "crash-reporters"),
        ("fwupd.service", "fwupd"),
        ("docker.service", "docker"),
        ("docker.socket", "docker"),
        ("kubelet.service", "kubelet"),
        ("snap.kubelet-eks.daemon.service", "kubelet"),
        ("serial-getty@ttyS0.service", "consoles"),
        ("sshd.service", "sshd"),
        ("cloud-init.service", "cloud-init"),
    ] {
        assert_eq!(catalogue.agent_of(unit).map(|a| a.name.as_str()), Some(agent), "{unit}");
    }
    assert!(catalogue.agent_of("systemd-journald.service").is_none());
}

#[test]
fn a_way_in_is_never_to_be_removed() {
    for agent in Catalogue::built_in().agents() {
        assert!(!agent.safe_step.is_empty() && !agent.does_not_fix.is_empty(), "{}", agent.name);
        if agent.role == Role::Access {
            assert!(agent.only_way_in, "{} lets people in", agent.name);
        }
        assert!(!(agent.only_way_in && recommends_removal(&agent.safe_step)), "{}", agent.name);
    }
}

#[test]
fn users_add_and_override_by_name() {
    let catalogue = load(MINE).unwrap();
    assert_eq!(catalogue.agent_of("mine-too.service").unwrap().source, "mine.toml:3");
    let overriding = MINE.replace("\"mine\"", "\"docker\"").replace("mine*.service", "docker.service");
    let catalogue = load(&overriding).unwrap();
    assert_eq!(catalogue.get("docker").unwrap().what, "our own");
    assert!(catalogue.agent_of("docker.socket").is_none());
}

#[test]
fn errors_name_file_line_and_key() {
    let wrong = |from: &str, to: &str| load(&MINE.replace(from, to)).unwrap_err().to_string();
    for (from, to, line, says) in [
        ("name =", "nmae =", 4, "nmae"),
        ("\"observer\"", "\"observr\"", 7, "observr"),
        ("coroner.catalogue/1", "coroner.catalogue/9", 1, "schema"),
        ("[\"mine*.service\"]", "[\"*\"]", 5, "\"*\" is not a pattern"),
        ("[\"mine*.service\"]", "[]", 5, "units"),
        ("[\"mine*.service\"]", "\"mine.service\"", 5, "expected a sequence"),
        ("\"our own\"", "\"our own", 6, ""),
        ("role =", "only_way_in = true\nrole =", 9, "only way in"),
        ("role =", "log_unregistered = [\"a(\"]\nrole =", 7, "log_unregistered"),
        ("role =", "conflicts_with = [\"nobody\"]\nrole =", 7, "there is no agent \"nobody\""),
    ] {
        let error = wrong(from, to);
        assert!(error.starts_with(&format!("mine.toml:{line}: ")) && error.contains(says), "{to}: {error}");
    }
    let twice = format!("{MINE}{}", &MINE[MINE.find("[[agent").unwrap()..]);
    assert!(load(&twice).unwrap_err().to_string().contains("stands here twice"));
    let need = "[[agent.needs]]\nkind = \"config\"\npaths = [\"etc/x\"]\nwhat = \"x\"\n";
    assert!(
        load(&format!("{MINE}{need}"))
            .unwrap_err()
            .to_string()
            .contains("mine.toml:12: paths: \"etc/x\" is not absolute")
    );
}

proptest! {
    #[test]
    fn any_text(text in "(schema = \"coroner.catalogue/1\"\n)?(\\[\\[agent\\]\\]|name|units| = |\"|[a-z\n\\[\\]]){0,60}") {
        let _ = load(&text);
    }
}
