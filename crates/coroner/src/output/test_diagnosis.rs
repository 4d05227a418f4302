//! Diagnoses for tests.

use coroner_diagnosis::verdict::{Certainty, Conclusion, Link, Moment, Proof, Proofs, TimeSpan, Unexplained, Verdict};
use coroner_diagnosis::{Code, Diagnosis, Fact, FactKey, Finding, RuledOut, Severity, Subject, SubjectKind};
use coroner_evidence::{Node, Unseen, Wall};

pub fn finding(code: Code, severity: Severity, kind: SubjectKind, name: &str, title: &str) -> Finding {
    Finding {
        code,
        severity,
        subject: Subject::new(kind, name),
        title: title.to_owned(),
        detail: format!("Detail of {code}."),
        evidence: vec![Fact::new(FactKey::Waited, 42, "/proc/stat").of(format!("fact of {code}"))],
        remedy: format!("Remedy of {code}."),
        ties: Default::default(),
    }
}

pub fn shown() -> Proofs {
    Proofs {
        identity: Proof::shown("the same core"),
        order: Proof::shown("it came first"),
        size: Proof::shown("6.6 s"),
    }
}

pub fn link(from: &Finding, to: &Finding, because: &str, proofs: Proofs) -> Link {
    Link {
        from: from.reference(),
        to: to.reference(),
        because: because.to_owned(),
        certainty: proofs.certainty(),
        proofs,
        evidence: vec![Fact::new(FactKey::IdleAgent, 7, "/proc/cgroups").of("fact of the link")],
    }
}

pub fn verdict(root: &Finding, chain: Vec<Link>) -> Verdict {
    let certainty = chain.iter().map(|link| link.certainty).fold(Certainty::Proven, Certainty::min);
    Verdict {
        key: root.key(),
        root_cause: root.reference(),
        certainty,
        severity: Severity::Critical,
        story: String::new(),
        story_path: Vec::new(),
        story_also: Vec::new(),
        chain,
        context: Vec::new(),
        because: format!("{} ends and is started again and again", root.subject.name),
        proofs: Proofs { size: Proof::shown(root.title.clone()), ..shown() },
        time: TimeSpan::default(),
        over: None,
        timeline: Vec::new(),
        remedy: String::new(),
        first_aid: None,
        fix: "Switch it off: `systemctl disable --now ecs.service`, then reboot".to_owned(),
        not_fixed: "Disabling alone frees nothing".to_owned(),
        risk: None,
    }
}

pub fn diagnosis(findings: Vec<Finding>, conclusion: Conclusion) -> Diagnosis {
    Diagnosis {
        node: Node { host: Some("gpu-17".to_owned()), cores: Some(96), ..Node::default() },
        window: Some((Wall(1_700_000_000_000_000_000), Wall(1_700_000_005_000_000_000))),
        findings,
        ruled_out: vec![
            RuledOut { code: Code::OomKill, why: "no kill since boot".to_owned() },
            RuledOut { code: Code::HugePages, why: "0.1 % of the kernel's time".to_owned() },
        ],
        unseen: vec![Unseen {
            about: None,
            probe: "gpu".to_owned(),
            what: "whether there is gpu-xid".to_owned(),
            why: "the log is closed to us".to_owned(),
            how_to_see: "run as root".to_owned(),
        }],
        cost: None,
        conclusion,
    }
}

/// An unused unit leaks cgroups, kubelet walks them, the core is full, and the NIC that it serves is reset.
pub fn the_incident() -> Diagnosis {
    use Severity::{Critical, Warning};
    let reset =
        finding(Code::NicReset, Critical, SubjectKind::Nic, "eth0", "eth0 was reset: queue 5 was paused for 6.6 s");
    let core = finding(Code::CoreSaturated, Critical, SubjectKind::Core, "39", "core 39 was 100 % busy for 6.6 s");
    let walk = finding(
        Code::MemcgWalk,
        Warning,
        SubjectKind::Process,
        "kubelet[812]",
        "kubelet[812] walked memory cgroups for 6.5 s",
    );
    let dead = finding(Code::ZombieMemcgs, Warning, SubjectKind::Node, "gpu-17", "68,440 dead memory cgroups");
    let unit = finding(
        Code::UnitCrashloop,
        Warning,
        SubjectKind::Unit,
        "ecs.service",
        "ecs.service crashloops: 4.0 restarts per minute",
    );
    let unused = finding(Code::AgentUnused, Warning, SubjectKind::Unit, "ecs.service", "ecs.service has no work here");
    let off = Proofs { order: Proof::not_seen("the log's clock may be off by 2.0 s"), ..shown() };
    let chain = vec![
        link(&unit, &dead, "each start leaves one", shown()),
        link(&dead, &walk, "the kernel goes through all of them", shown()),
        link(&walk, &core, "98 % of its kernel time was this", shown()),
        link(&core, &reset, "the driver waited for a poll that could not run", off),
    ];
    let mut verdict = verdict(&unit, chain);
    verdict.context = vec![unused.reference()];
    verdict.risk = Some("It happens again with the next read of statistics.".to_owned());
    let moment = |secs: u64, uncertainty_ms: u64, finding: &Finding| Moment {
        at: Wall((1_700_000_000 + secs) * 1_000_000_000),
        uncertainty_ms,
        already: false,
        what: finding.title.clone(),
    };
    verdict.timeline = vec![moment(0, 0, &core), moment(6, 2000, &reset)];
    diagnosis(
        vec![reset, core, walk, dead, unit, unused],
        Conclusion { verdicts: vec![verdict], unexplained: Vec::new() },
    )
}

/// A problem without a known cause.
pub fn unexplained() -> Diagnosis {
    let reset = finding(Code::NicReset, Severity::Critical, SubjectKind::Nic, "eth0", "eth0 was reset");
    let unexplained = Unexplained {
        finding: reset.reference(),
        needs: "what ran on the core that serves the queue".to_owned(),
        command: "coroner record --dir DIR".to_owned(),
        then: "then look at its incidents".to_owned(),
    };
    diagnosis(vec![reset], Conclusion { verdicts: Vec::new(), unexplained: vec![unexplained] })
}
