//! docker: `/var/lib/docker/containers/ID/config.v2.json`, written at each start and exit (moby's `container.go` and `state.go`).
//!
//! RestartCount counts restarts by the restart policy and is reset when the container is started by hand.

use coroner_evidence::{Container, Time, Wall};
use serde::Deserialize;

use super::Budget;
use crate::tree::{FileKind, Tree, is_absent};

const DOCKER: &str = "/var/lib/docker";
const DAEMON: &str = "/etc/docker/daemon.json";
const MAX_CONFIG: u64 = 4 << 20;
/// More than a container could reach in a century.
const MAX_RESTARTS: u64 = 1_000_000_000;

pub fn look(tree: &Tree, at: Time, budget: &mut Budget, containers: &mut Vec<Container>) {
    let top = format!("{}/containers", data_root(tree));
    let ids = match tree.list(&top) {
        Ok(ids) => ids,
        Err(e) if is_absent(&e) => return,
        Err(e) => return budget.unread.push(format!("{top}: {e}")),
    };
    for id in ids.iter().filter(|e| e.kind == FileKind::Directory) {
        if !budget.take() {
            return;
        }
        let path = format!("{top}/{}/config.v2.json", id.name);
        match tree.read(&path, MAX_CONFIG) {
            Ok(bytes) => match parse(&bytes) {
                // A container that is neither running nor restarting does not loop.
                Some(config) if !config.state.running && !config.state.restarting => {}
                Some(config) => containers.push(config.into_container(at, &id.name)),
                None => budget.unread.push(format!("{path}: not a valid docker config")),
            },
            Err(e) if is_absent(&e) => {}
            Err(e) => budget.unread.push(format!("{path}: {e}")),
        }
    }
}

/// docker's data directory; old versions call the setting `graph`.
fn data_root(tree: &Tree) -> String {
    let set = || {
        let bytes = tree.read(DAEMON, MAX_CONFIG).ok()?;
        let json: serde_json::Value = serde_json::from_slice(&bytes).ok()?;
        let path = json.get("data-root").or_else(|| json.get("graph"))?.as_str()?;
        path.starts_with('/').then(|| path.trim_end_matches('/').to_owned())
    };
    set().unwrap_or_else(|| DOCKER.to_owned())
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Config {
    #[serde(rename = "ID")]
    id: Option<String>,
    name: Option<String>,
    created: Option<String>,
    #[serde(default)]
    restart_count: u64,
    #[serde(default)]
    state: State,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct State {
    running: bool,
    restarting: bool,
    exit_code: Option<i64>,
    started_at: Option<String>,
}

fn parse(bytes: &[u8]) -> Option<Config> {
    serde_json::from_slice(bytes).ok()
}

impl Config {
    fn into_container(self, at: Time, directory: &str) -> Container {
        let moment = |text: &Option<String>| text.as_deref().and_then(Wall::parse);
        let started = moment(&self.state.started_at);
        // While it runs, the exit code is 0 and meaningless. A container waiting to be restarted counts as running.
        let ended = started.is_some() && (!self.state.running || self.state.restarting);
        Container {
            at,
            runtime: "docker".to_owned(),
            name: self.name.as_deref().unwrap_or(directory).trim_start_matches('/').to_owned(),
            id: Some(self.id.unwrap_or_else(|| directory.to_owned())),
            restarts: self.restart_count.min(MAX_RESTARTS),
            started,
            first_started: started.and_then(|s| Some(moment(&self.created)?.min(s))).or(started),
            exit_code: self.state.exit_code.filter(|_| ended).and_then(|code| i32::try_from(code).ok()),
            ..Container::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_config_is_survived(bytes in prop::collection::vec(any::<u8>(), 0..200), text in any::<String>(),
                code in any::<i64>(), restarts in any::<u64>()) {
            let _ = parse(&bytes);
            let json = serde_json::json!({"Name": text, "Created": text, "RestartCount": restarts,
                "State": {"ExitCode": code, "StartedAt": text}});
            let told = parse(json.to_string().as_bytes()).unwrap().into_container(Time::from_secs(1), "id");
            prop_assert_eq!(told.restarts, restarts.min(MAX_RESTARTS));
        }
    }
}
