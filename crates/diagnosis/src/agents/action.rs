//! What may safely be done about an agent, and the command for it.

use super::catalogue::Agent;
use crate::units::paths::{operand, shell_word};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Stop it, now and at boot.
    Disable,
    /// The same, and nothing can start it again.
    Mask,
    /// Tell it, and leave the agent alone: it may be the only way in, or what the node is for.
    Report,
    /// Somebody has to do something that is no systemctl command.
    Manual,
}

impl Action {
    pub fn removes(self) -> bool {
        matches!(self, Action::Disable | Action::Mask)
    }

    /// On a running node; `None` if the action is no command.
    pub fn command(self, unit: &str) -> Option<String> {
        let unit = operand(unit);
        match self {
            Action::Disable => Some(format!("systemctl disable --now {unit}")),
            Action::Mask => Some(format!("systemctl disable --now {unit} && systemctl mask {unit}")),
            Action::Report | Action::Manual => None,
        }
    }

    /// In an image an agent is always masked, too: the upgrade of a package would enable it again.
    pub fn command_in_image(self, unit: &str, root: &str) -> Option<String> {
        let (unit, root) = (operand(unit), shell_word(root));
        self.removes().then(|| format!("systemctl --root={root} disable {unit} && systemctl --root={root} mask {unit}"))
    }
}

/// The step in words: the command after its condition, or what somebody has to do.
pub fn words(agent: &Agent, command: Option<&str>, in_image: bool) -> String {
    let way_in = agent.only_way_in.then_some("it may be the only way into this node");
    let advice = agent.advice.as_deref();
    match command {
        Some(command) => {
            let place = in_image.then_some("in the image build");
            let parts: Vec<&str> = place.into_iter().chain(advice).collect();
            if parts.is_empty() { command.to_owned() } else { format!("{}: {command}", parts.join(", ")) }
        }
        None if agent.action == Action::Report => {
            let parts: Vec<&str> = way_in.into_iter().chain(advice).collect();
            format!("report only: {}", parts.join("; "))
        }
        None => advice.unwrap_or_default().to_owned(),
    }
}
