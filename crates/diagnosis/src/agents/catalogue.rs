//! What is known about agents, as data: `crates/diagnosis/catalogue/*.toml` plus what users add. docs/catalogue.md explains every
//! key.

use super::action::Action;
use super::index::Index;
use super::pattern::Pattern;
use coroner_evidence::{FileFormat, FileQuestion, TextFile};
use serde::Deserialize;
use std::fmt;
use std::sync::{Arc, OnceLock};
use toml::Spanned;

/// In the first line of a catalogue.
pub const SCHEMA: &str = "coroner.catalogue/2";

const BUILT_IN: [(&str, &str); 8] = [
    ("aws.toml", include_str!("../../catalogue/aws.toml")),
    ("google.toml", include_str!("../../catalogue/google.toml")),
    ("azure.toml", include_str!("../../catalogue/azure.toml")),
    ("orchestrators.toml", include_str!("../../catalogue/orchestrators.toml")),
    ("gpu.toml", include_str!("../../catalogue/gpu.toml")),
    ("observers.toml", include_str!("../../catalogue/observers.toml")),
    ("system.toml", include_str!("../../catalogue/system.toml")),
    ("access.toml", include_str!("../../catalogue/access.toml")),
];

/// What an agent does on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Owns the node and places work on it: two of them fight.
    Orchestrator,
    /// Runs containers.
    ContainerRuntime,
    /// Lets people or tools in.
    Access,
    /// Talks to the cloud's control plane.
    Cloud,
    /// Ships metrics, logs or traces.
    Observer,
    Gpu,
    /// Changes software while the node runs.
    Updates,
    /// Drives hardware that a node may lack.
    Hardware,
    Security,
    /// Brings configuration.
    Configuration,
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NeedKind {
    Config,
    Credentials,
    Hardware,
}

/// One of these files must exist (with these keys set), or the agent has nothing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    pub kind: NeedKind,
    /// Any of them will do.
    pub paths: Vec<String>,
    /// All of them, in one file.
    pub keys: Vec<String>,
    pub format: FileFormat,
    /// What it is for: "which cluster to join".
    pub what: String,
}

impl Need {
    pub fn questions(&self) -> impl Iterator<Item = FileQuestion> + '_ {
        self.paths.iter().map(|path| FileQuestion { path: path.clone(), format: self.format, keys: self.keys.clone() })
    }
}

#[derive(Debug, Clone)]
pub struct Agent {
    pub name: String,
    /// Shell patterns.
    pub units: Vec<String>,
    pub what: String,
    pub role: Role,
    /// Clouds it belongs to, as [`coroner_evidence::Node::cloud`] names them; empty: any.
    pub clouds: Vec<String>,
    pub orchestrator: Option<String>,
    /// Names of its programs.
    pub processes: Vec<String>,
    pub needs: Vec<Need>,
    pub log_unregistered: Vec<Pattern>,
    /// Lines it logs when it restarts what it supervises.
    pub log_restarts: Vec<Pattern>,
    /// The runtime whose containers are its work, as [`coroner_evidence::Container::runtime`] names it.
    pub containers: Option<String>,
    /// Has no work in a virtual machine.
    pub bare_metal: bool,
    /// Agents next to which it has nothing to do or does harm.
    pub conflicts_with: Vec<String>,
    pub only_way_in: bool,
    /// Known, but never judged.
    pub ignore: bool,
    pub action: Action,
    /// When to act, or what somebody has to do.
    pub advice: Option<String>,
    pub does_not_fix: String,
    /// File and line it was read from.
    pub source: String,
}

/// Why a catalogue cannot be used: file, line and key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CatalogueError {
    pub file: String,
    pub line: usize,
    pub why: String,
}

impl fmt::Display for CatalogueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.why)
    }
}

impl std::error::Error for CatalogueError {}

/// Cheap to clone: agents are shared.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    /// In the order read; names are unique.
    agents: Vec<Arc<Agent>>,
    index: Index,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    schema: Spanned<String>,
    #[serde(default)]
    agent: Vec<Spanned<AgentForm>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AgentForm {
    name: Spanned<String>,
    units: Spanned<Vec<Spanned<String>>>,
    what: String,
    role: Role,
    #[serde(default)]
    clouds: Vec<String>,
    orchestrator: Option<String>,
    #[serde(default)]
    processes: Vec<String>,
    #[serde(default)]
    needs: Vec<NeedForm>,
    #[serde(default)]
    log_unregistered: Vec<Spanned<String>>,
    #[serde(default)]
    log_restarts: Vec<Spanned<String>>,
    containers: Option<String>,
    #[serde(default)]
    bare_metal: bool,
    #[serde(default)]
    conflicts_with: Vec<Spanned<String>>,
    #[serde(default)]
    only_way_in: bool,
    #[serde(default)]
    ignore: bool,
    action: Spanned<Action>,
    advice: Option<String>,
    does_not_fix: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NeedForm {
    kind: NeedKind,
    paths: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    keys: Vec<Spanned<String>>,
    #[serde(default)]
    format: FileFormat,
    what: String,
}

impl Catalogue {
    /// Ours. Parsed once per process.
    pub fn built_in() -> Catalogue {
        static OURS: OnceLock<Catalogue> = OnceLock::new();
        OURS.get_or_init(|| {
            let mut catalogue = Catalogue::default();
            for (file, text) in BUILT_IN {
                // They are compiled in, and a test reads them.
                catalogue
                    .add(&format!("built-in {file}"), text, Trust::Ours)
                    .expect("the built-in catalogue is well formed");
            }
            catalogue.index = Index::of(&catalogue.agents);
            catalogue
        })
        .clone()
    }

    /// Ours, then these: a later entry replaces an earlier one with the same name.
    pub fn load(added: &[TextFile]) -> Result<Catalogue, CatalogueError> {
        let mut catalogue = Catalogue::built_in();
        let mut references = Vec::new();
        for file in added {
            references.extend(catalogue.add(&file.path, &file.text, Trust::Users)?);
        }
        if let Some((_, error)) = references.into_iter().find(|(name, _)| catalogue.get(name).is_none()) {
            return Err(error);
        }
        if !added.is_empty() {
            catalogue.index = Index::of(&catalogue.agents);
        }
        Ok(catalogue)
    }

    /// Returns the other agents the file names, each with the error to report if it does not exist.
    fn add(&mut self, file: &str, text: &str, trust: Trust) -> Result<Vec<(String, CatalogueError)>, CatalogueError> {
        let mut references = Vec::new();
        let error = |at: usize, why: String| CatalogueError { file: file.to_owned(), line: line_of(text, at), why };
        let form: FileForm =
            toml::from_str(text).map_err(|e| error(e.span().map_or(0, |s| s.start), e.message().trim().to_owned()))?;
        if form.schema.get_ref() != SCHEMA {
            return Err(error(form.schema.span().start, format!("schema: expected \"{SCHEMA}\"")));
        }
        let mut names: Vec<String> = Vec::new();
        for agent in form.agent {
            let at = agent.span().start;
            let agent = agent.into_inner();
            let name = agent.name.get_ref().clone();
            if name.is_empty() || names.contains(&name) {
                return Err(error(agent.name.span().start, format!("name: \"{name}\" is empty or used twice")));
            }
            if agent.units.get_ref().is_empty() {
                return Err(error(agent.units.span().start, format!("units: {name} lists none")));
            }
            for unit in agent.units.get_ref() {
                if unit.get_ref().trim_matches(['*', '?']).is_empty() || !unit.get_ref().contains('.') {
                    let why = format!("units: \"{}\" is not a pattern for unit names", unit.get_ref());
                    return Err(error(unit.span().start, why));
                }
            }
            let action = *agent.action.get_ref();
            if agent.only_way_in && action != Action::Report {
                let why = format!("action: {name} may be the only way in: expected \"report\"");
                return Err(error(agent.action.span().start, why));
            }
            if !action.removes() && !agent.only_way_in && agent.advice.is_none() {
                let why = format!("action: without a command, {name} needs an advice");
                return Err(error(agent.action.span().start, why));
            }
            let mut needs = Vec::new();
            for need in agent.needs {
                if need.paths.get_ref().is_empty() {
                    return Err(error(need.paths.span().start, format!("paths: a need of {name} lists none")));
                }
                if let Some(path) = need.paths.get_ref().iter().find(|p| !p.get_ref().starts_with('/')) {
                    return Err(error(path.span().start, format!("paths: \"{}\" is not absolute", path.get_ref())));
                }
                if let (FileFormat::Any, Some(key)) = (need.format, need.keys.first()) {
                    let why = "keys: require format = \"lines\" or \"json\"".to_owned();
                    return Err(error(key.span().start, why));
                }
                needs.push(Need {
                    kind: need.kind,
                    paths: need.paths.into_inner().into_iter().map(Spanned::into_inner).collect(),
                    keys: need.keys.into_iter().map(Spanned::into_inner).collect(),
                    format: need.format,
                    what: need.what,
                });
            }
            let patterns = |key: &str, texts: Vec<Spanned<String>>| -> Result<Vec<Pattern>, CatalogueError> {
                let pattern = |text: Spanned<String>| {
                    let at = text.span().start;
                    let pattern = Pattern::new(text.into_inner());
                    // A test compiles ours; doing it here would cost more than everything else.
                    if trust == Trust::Users {
                        pattern.check().map_err(|why| error(at, format!("{key}: {why}")))?;
                    }
                    Ok(pattern)
                };
                texts.into_iter().map(pattern).collect()
            };
            let log_unregistered = patterns("log_unregistered", agent.log_unregistered)?;
            let log_restarts = patterns("log_restarts", agent.log_restarts)?;
            for other in &agent.conflicts_with {
                let why = format!("conflicts_with: there is no agent \"{}\"", other.get_ref());
                references.push((other.get_ref().clone(), error(other.span().start, why)));
            }
            names.push(name.clone());
            let entry = Agent {
                name: name.clone(),
                units: agent.units.into_inner().into_iter().map(Spanned::into_inner).collect(),
                what: agent.what,
                role: agent.role,
                clouds: agent.clouds,
                orchestrator: agent.orchestrator,
                processes: agent.processes,
                needs,
                log_unregistered,
                log_restarts,
                containers: agent.containers,
                bare_metal: agent.bare_metal,
                conflicts_with: agent.conflicts_with.into_iter().map(Spanned::into_inner).collect(),
                only_way_in: agent.only_way_in,
                ignore: agent.ignore,
                action,
                advice: agent.advice,
                does_not_fix: agent.does_not_fix,
                source: format!("{file}:{}", line_of(text, at)),
            };
            self.agents.retain(|earlier| earlier.name != name);
            self.agents.push(Arc::new(entry));
        }
        Ok(references)
    }

    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.iter().map(Arc::as_ref)
    }

    pub fn get(&self, name: &str) -> Option<&Agent> {
        self.agents().find(|agent| agent.name == name)
    }

    /// The agent with the most specific pattern for a unit.
    pub fn agent_of(&self, unit: &str) -> Option<&Agent> {
        self.index.of_unit(unit).map(|i| self.agents[i].as_ref())
    }

    /// The agents with a program of this name.
    pub fn agents_of_process(&self, name: &str) -> impl Iterator<Item = &Agent> {
        self.index.of_process(name).map(|i| self.agents[i].as_ref())
    }

    /// All files to check for the agents of these units.
    pub fn questions<'a>(&'a self, units: impl IntoIterator<Item = &'a str>) -> Vec<FileQuestion> {
        questions_of(units.into_iter().filter_map(|unit| self.agent_of(unit)))
    }
}

/// All files to check for these agents.
pub(super) fn questions_of<'a>(agents: impl IntoIterator<Item = &'a Agent>) -> Vec<FileQuestion> {
    let mut questions: Vec<FileQuestion> =
        agents.into_iter().flat_map(|agent| &agent.needs).flat_map(Need::questions).collect();
    questions.sort_unstable();
    questions.dedup();
    questions
}

/// Whose catalogue it is: that of a user is checked in full, whatever the cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trust {
    Ours,
    Users,
}

fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|b| *b == b'\n').count() + 1
}

#[cfg(test)]
#[path = "catalogue_tests.rs"]
mod tests;
