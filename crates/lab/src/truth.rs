//! What a diagnosis must find in a scenario, and what it must not.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// Each must be found.
    pub expect: Vec<Expected>,
    /// Codes that must not be found at all.
    pub forbid: Vec<String>,
    /// Processes that did no harm: no finding may blame one, and no verdict.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub innocent: Vec<String>,
    /// Nothing worse than this may be found; absent if a problem is expected.
    pub max_severity: Option<String>,
    /// The expected verdicts; if the list is empty, there must be none. Absent in truths from before there were verdicts: then they
    /// are not judged.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub verdicts: Option<Vec<ExpectedVerdict>>,
    /// What the scenario made: core, pid, comm, cgroup, count, device …
    #[serde(flatten)]
    pub facts: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    pub code: String,
    /// Absent: any subject.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub subject: Option<Subject>,
    pub severity_at_least: String,
    /// The culprit that title, detail or evidence must name: `spin-ab12[4711]`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub culprit: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subject {
    pub kind: String,
    pub name: String,
}

/// One independent problem: its root cause, the culprit, and what followed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ExpectedVerdict {
    /// The code of the root cause.
    pub root_cause: String,
    /// Codes that are equally right.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub or: Vec<String>,
    /// Absent: any subject.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub subject: Option<Subject>,
    /// The culprit that the finding of the root cause must blame.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub culprit: Option<String>,
    /// Codes that must follow from it in its chain, in any order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub chain: Vec<String>,
    /// Depends on names of dead cgroups: not expected without BPF.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub needs_bpf: bool,
}

impl ExpectedVerdict {
    pub fn new(root_cause: &str) -> ExpectedVerdict {
        ExpectedVerdict { root_cause: root_cause.to_owned(), ..ExpectedVerdict::default() }
    }

    /// Whether this is the code of the root cause, or equally right.
    pub fn is(&self, code: &str) -> bool {
        self.root_cause == code || self.or.iter().any(|or| or == code)
    }

    pub fn or(mut self, root_cause: &str) -> ExpectedVerdict {
        self.or.push(root_cause.to_owned());
        self
    }

    pub fn about(self, kind: &str, name: impl Into<String>) -> ExpectedVerdict {
        ExpectedVerdict { subject: Some(Subject { kind: kind.to_owned(), name: name.into() }), ..self }
    }

    pub fn by(self, culprit: impl Into<String>) -> ExpectedVerdict {
        ExpectedVerdict { culprit: Some(culprit.into()), ..self }
    }

    pub fn then(mut self, code: &str) -> ExpectedVerdict {
        self.chain.push(code.to_owned());
        self
    }

    pub fn needs_bpf(self) -> ExpectedVerdict {
        ExpectedVerdict { needs_bpf: true, ..self }
    }
}

impl Expected {
    /// At least a warning.
    pub fn new(code: &str) -> Expected {
        Expected { code: code.to_owned(), subject: None, severity_at_least: "warning".to_owned(), culprit: None }
    }

    pub fn about(self, kind: &str, name: impl Into<String>) -> Expected {
        Expected { subject: Some(Subject { kind: kind.to_owned(), name: name.into() }), ..self }
    }

    pub fn severity(self, at_least: &str) -> Expected {
        Expected { severity_at_least: at_least.to_owned(), ..self }
    }

    pub fn by(self, culprit: impl Into<String>) -> Expected {
        Expected { culprit: Some(culprit.into()), ..self }
    }
}

impl Truth {
    /// `facts` must be a JSON object.
    pub fn new(facts: Value) -> Truth {
        let facts = if let Value::Object(facts) = facts { facts } else { Map::new() };
        Truth { facts, verdicts: Some(Vec::new()), ..Truth::default() }
    }

    pub fn expect(mut self, expected: Expected) -> Truth {
        self.expect.push(expected);
        self
    }

    pub fn forbid(mut self, codes: &[&str]) -> Truth {
        self.forbid.extend(codes.iter().map(|&c| c.to_owned()));
        self
    }

    pub fn innocent(mut self, process: impl Into<String>) -> Truth {
        self.innocent.push(process.into());
        self
    }

    pub fn verdict(mut self, expected: ExpectedVerdict) -> Truth {
        self.verdicts.get_or_insert_default().push(expected);
        self
    }

    pub fn at_most(mut self, severity: &str) -> Truth {
        self.max_severity = Some(severity.to_owned());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn facts_are_flattened_beside_expectations() {
        let truth = Truth::new(json!({"core": 1, "comm": "spin-ab12"}))
            .expect(Expected::new("core-saturated").about("core", "1").by("spin-ab12[7]"))
            .verdict(ExpectedVerdict::new("core-monopolised").by("spin-ab12[7]").then("core-saturated"))
            .forbid(&["oom-kill"]);
        let text = serde_json::to_value(&truth).unwrap();
        let expected = json!({
            "expect": [{"code": "core-saturated", "subject": {"kind": "core", "name": "1"}, "severity_at_least": "warning",
                        "culprit": "spin-ab12[7]"}],
            "forbid": ["oom-kill"], "max_severity": null, "verdicts": [{"root_cause": "core-monopolised", "culprit": "spin-ab12[7]",
            "chain": ["core-saturated"]}], "core": 1, "comm": "spin-ab12"});
        assert_eq!(text, expected);
        assert_eq!(serde_json::from_value::<Truth>(text).unwrap(), truth);
    }
}
