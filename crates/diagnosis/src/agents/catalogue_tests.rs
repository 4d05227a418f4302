use super::*;
use proptest::prelude::*;

fn load(text: &str) -> Result<Catalogue, CatalogueError> {
    Catalogue::load(&[TextFile { path: "mine.toml".to_owned(), text: text.to_owned() }])
}

const MINE: &str = r#"schema = "coroner.catalogue/2"

[[agent]]
name = "mine"
units = ["mine*.service"]
what = "our own"
role = "observer"
action = "disable"
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
fn a_way_in_is_never_removed() {
    for agent in Catalogue::built_in().agents() {
        assert!(!agent.what.is_empty() && !agent.does_not_fix.is_empty(), "{}", agent.name);
        if agent.role == Role::Access {
            assert!(agent.only_way_in, "{} lets people in", agent.name);
        }
        assert!(!agent.only_way_in || agent.action == Action::Report, "{}", agent.name);
    }
}

#[test]
fn no_step_removes_what_the_node_needs() {
    let catalogue = Catalogue::built_in();
    for agent in catalogue.agents().filter(|agent| agent.action.removes()) {
        for unit in &agent.units {
            assert!(!catalogue.agent_of(unit).is_some_and(|a| a.only_way_in), "{}: {unit}", agent.name);
        }
    }
    // The kubelet and what runs containers: docs/principles.md.
    for name in
        ["kubelet", "containerd", "docker", "crio", "cri-dockerd", "sshd", "network-setup", "google-guest-agent"]
    {
        let agent = catalogue.get(name).unwrap();
        assert_eq!(agent.action, Action::Report, "{name}");
    }
}

#[test]
fn every_pattern_compiles_and_knows_what_agents_say() {
    let catalogue = Catalogue::built_in();
    for agent in catalogue.agents() {
        for pattern in agent.log_unregistered.iter().chain(&agent.log_restarts) {
            assert_eq!(pattern.check(), Ok(()), "{}: {}", agent.name, pattern.as_str());
            assert!(!pattern.is_match("") && !pattern.is_match("Started"), "{}: {}", agent.name, pattern.as_str());
        }
    }
    // Quoted from bug reports.
    for (agent, line) in [
        ("amazon-ecs", "level=info time=2023-01-01T00:00:00Z msg=\"Agent exited with code 1\""),
        ("amazon-ecs", "NoCredentialProviders: no valid providers in chain. Deprecated."),
        (
            "amazon-ssm-agent",
            "INFO Agent is in hibernate mode. Reducing logging. Logging will be reduced to one log per backoff period",
        ),
        ("amazon-ssm-agent", "EC2RoleRequestError: no EC2 instance role found"),
        (
            "google-osconfig-agent",
            "OSConfigAgent Error inventory.go:47: postAttribute error: received status code \"403 Forbidden\" for request",
        ),
        (
            "google-osconfig-agent",
            "OSConfigAgent Error main.go:88: code: \"PermissionDenied\", message: \"The caller does not have permission\"",
        ),
        ("amazon-cloudwatch-agent", "No json config files found, please provide config, exit now"),
        ("slurmd", "slurmd: fatal: Could not establish a configuration source"),
        (
            "kubelet",
            "failed to run Kubelet: unable to load bootstrap kubeconfig: stat /etc/kubernetes/bootstrap-kubelet.conf: no such file or directory",
        ),
    ] {
        let agent = catalogue.get(agent).unwrap();
        assert!(agent.log_unregistered.iter().any(|p| p.is_match(line)), "{}: {line}", agent.name);
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
    // Under its own name it takes over a unit of ours.
    let catalogue = load(&MINE.replace("mine*.service", "docker.service")).unwrap();
    assert_eq!(catalogue.agent_of("docker.service").unwrap().name, "mine");
    assert_eq!(catalogue.agent_of("docker.socket").unwrap().name, "docker");
}

#[test]
fn errors_name_file_line_and_key() {
    let wrong = |from: &str, to: &str| load(&MINE.replace(from, to)).unwrap_err().to_string();
    for (from, to, line, says) in [
        ("name =", "nmae =", 4, "nmae"),
        ("\"observer\"", "\"observr\"", 7, "observr"),
        ("coroner.catalogue/2", "coroner.catalogue/9", 1, "schema"),
        ("[\"mine*.service\"]", "[\"*\"]", 5, "\"*\" is not a pattern"),
        ("[\"mine*.service\"]", "[]", 5, "units"),
        ("[\"mine*.service\"]", "\"mine.service\"", 5, "expected a sequence"),
        ("\"our own\"", "\"our own", 6, ""),
        ("role =", "only_way_in = true\nrole =", 9, "only way in: expected \"report\""),
        (
            "\"disable\"",
            "\"disabel\"",
            8,
            "unknown variant `disabel`, expected one of `disable`, `mask`, `report`, `manual`",
        ),
        ("\"disable\"", "\"manual\"", 8, "action: without a command, mine needs an advice"),
        ("action = \"disable\"\n", "", 3, "missing field `action`"),
        ("action = \"disable\"", "safe_step = \"rm\"", 8, "unknown field `safe_step`"),
        ("role =", "log_unregistered = [\"a(\"]\nrole =", 7, "log_unregistered"),
        ("role =", "conflicts_with = [\"nobody\"]\nrole =", 7, "there is no agent \"nobody\""),
    ] {
        let error = wrong(from, to);
        assert!(error.starts_with(&format!("mine.toml:{line}: ")) && error.contains(says), "{to}: {error}");
    }
    let twice = format!("{MINE}{}", &MINE[MINE.find("[[agent").unwrap()..]);
    assert!(load(&twice).unwrap_err().to_string().contains("used twice"));
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
    fn any_text(text in "(schema = \"coroner.catalogue/2\"\n)?(\\[\\[agent\\]\\]|name|units| = |\"|[a-z\n\\[\\]]){0,60}") {
        let _ = load(&text);
    }
}
