//! The kinds of steps, one file each.
//!
//! Each prepares (reads the previous state, or refuses if a guard says no), acts, and undoes. The previous state is written to the
//! journal before it acts, so it is plain data.

pub mod delete_files;
pub mod disable_unit;
pub mod free_zombies;
mod harm;
pub mod isolate_unit;
pub mod lower_priority;
pub mod mask_unit;
pub mod move_interrupt;
pub mod move_thread;
pub mod pause_process;
pub mod remove_cgroups;
pub mod threads;
pub mod unit_links;

use crate::tree::{Links, Tree};
use coroner_diagnosis::agents::Catalogue;
use coroner_probes::Root;
use coroner_probes::units::{Manager, ManagerError};
use coroner_report::named;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

pub use delete_files::DeleteFiles;
pub use disable_unit::DisableUnit;
pub use free_zombies::FreeZombies;
pub use isolate_unit::IsolateUnit;
pub use lower_priority::LowerPriority;
pub use mask_unit::MaskUnit;
pub use move_interrupt::MoveInterrupt;
pub use move_thread::MoveThread;
pub use pause_process::PauseProcess;
pub use remove_cgroups::RemoveCgroups;

/// `steps!(KIND = NAME, …)`: every kind of step, once. KIND is also the type that does it.
macro_rules! steps {
    ($($kind:ident = $name:literal,)*) => {
        named! {
            pub enum StepKind {
                $($kind = $name,)*
            }
        }

        /// What to do, with everything needed to do it.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "do", rename_all = "kebab-case")]
        pub enum Action {
            $($kind($kind),)*
        }

        impl Action {
            pub fn kind(&self) -> StepKind {
                match self {
                    $(Action::$kind(_) => StepKind::$kind,)*
                }
            }

            /// The previous state, for undo; or why it must not be done. Changes nothing.
            pub fn prepare(&self, hands: &mut Hands<'_>) -> Result<Value, StepError> {
                if self.is_about_unit() {
                    hands.must_be_that_machine()?;
                }
                match self {
                    $(Action::$kind(step) => as_value(&step.prepare(hands)?),)*
                }
            }

            pub fn act(&self, before: &Value, hands: &mut Hands<'_>) -> Result<Done, StepError> {
                match self {
                    $(Action::$kind(step) => step.act(&of_value(before)?, hands),)*
                }
            }

            /// Restores the previous state. Idempotent. With `force`, also what somebody changed since.
            pub fn undo(&self, before: &Value, hands: &mut Hands<'_>, force: bool) -> Result<Undone, StepError> {
                if self.is_about_unit() {
                    hands.must_be_that_machine()?;
                }
                match self {
                    $(Action::$kind(step) => step.undo(&of_value(before)?, hands, force),)*
                }
            }
        }
    };
}

steps! {
    DisableUnit = "disable-unit",
    MaskUnit = "mask-unit",
    IsolateUnit = "isolate-unit",
    FreeZombies = "free-zombies",
    DeleteFiles = "delete-files",
    RemoveCgroups = "remove-cgroups",
    MoveThread = "move-thread",
    MoveInterrupt = "move-interrupt",
    LowerPriority = "lower-priority",
    PauseProcess = "pause-process",
}

/// Why a step was not done, or not completely.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// A guard says no; nothing was changed.
    #[error("refused: {0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

impl StepError {
    pub fn refused(words: impl Into<String>) -> StepError {
        StepError::Refused(words.into())
    }

    pub fn failed(words: impl Into<String>) -> StepError {
        StepError::Failed(words.into())
    }

    pub fn io(what: &Path, error: impl std::fmt::Display) -> StepError {
        StepError::Failed(format!("{}: {error}", what.display()))
    }
}

impl From<ManagerError> for StepError {
    fn from(error: ManagerError) -> StepError {
        StepError::Failed(error.to_string())
    }
}

/// What was done, for people and for programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Done {
    pub words: String,
    pub after: Value,
    /// Why it had no effect, if the step itself knows that; effects that must be measured are not judged here.
    pub in_vain: Option<String>,
}

impl Done {
    pub fn new(words: impl Into<String>, after: Value) -> Done {
        Done { words: words.into(), after, in_vain: None }
    }
}

/// How a step was undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undone {
    Restored(String),
    /// Nothing to do: the state is as before.
    AlreadySo(String),
    /// It cannot be undone.
    CannotBe(String),
    /// Somebody changed it since: left alone.
    ChangedSince(String),
}

impl Undone {
    pub fn word(&self) -> &'static str {
        match self {
            Undone::Restored(_) => "restored",
            Undone::AlreadySo(_) => "already-so",
            Undone::CannotBe(_) => "cannot-be-undone",
            Undone::ChangedSince(_) => "changed-since",
        }
    }

    pub fn words(&self) -> &str {
        let (Undone::Restored(words)
        | Undone::AlreadySo(words)
        | Undone::CannotBe(words)
        | Undone::ChangedSince(words)) = self;
        words
    }
}

/// What a step works with: the node's systemd, its files, and a stop flag.
pub struct Hands<'h> {
    bus_address: Option<String>,
    /// The root directory of the systemd behind the bus, if known.
    pub root: Option<PathBuf>,
    manager: Option<Manager>,
    stop: &'h AtomicBool,
    say: &'h dyn Fn(&str),
    /// Known agents, including those that users added: some of them are the only way in.
    catalogue: Catalogue,
    /// For undo: the machine on which it was done.
    expected_machine: Option<String>,
}

impl<'h> Hands<'h> {
    pub fn new(bus: Option<&str>, root: Option<PathBuf>, stop: &'h AtomicBool, say: &'h dyn Fn(&str)) -> Hands<'h> {
        let catalogue = Catalogue::built_in();
        Hands { bus_address: bus.map(str::to_owned), root, manager: None, stop, say, catalogue, expected_machine: None }
    }

    /// Accept only this machine's systemd.
    pub fn expecting(mut self, machine: Option<String>) -> Hands<'h> {
        self.expected_machine = machine;
        self
    }

    pub fn with_catalogue(mut self, catalogue: Catalogue) -> Hands<'h> {
        self.catalogue = catalogue;
        self
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// systemd; connects again if the connection was lost.
    pub fn manager(&mut self) -> Result<&mut Manager, StepError> {
        let manager = match self.manager.take() {
            Some(manager) => manager,
            None => {
                let (address, _held) = match &self.bus_address {
                    Some(address) => {
                        let (address, held) = address_within(address, self.root.as_deref())?;
                        (Some(address), held)
                    }
                    None => (None, None),
                };
                Manager::connect(&Root::live(), address.as_deref())?
            }
        };
        Ok(self.manager.insert(manager))
    }

    /// The connection was lost: the next caller connects again.
    pub fn forget_manager(&mut self) {
        self.manager = None;
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Shows a line of progress.
    pub fn say(&self, words: &str) {
        (self.say)(words);
    }

    /// The machine id that the systemd behind the bus reports.
    pub fn machine_of_bus(&mut self) -> Result<String, StepError> {
        Ok(self.manager()?.machine_id()?.trim().to_owned())
    }

    /// The node's files. They must belong to the systemd behind the bus, or we would write to another node.
    pub fn checked_root(&mut self) -> Result<Tree, StepError> {
        let Some(root) = self.root.clone() else {
            return Err(StepError::refused(
                "the root directory of the systemd behind --bus is unknown: pass it with --root (e.g. /proc/PID/root of its PID \
                 1)",
            ));
        };
        let tree = Tree::open(&root).map_err(|e| StepError::io(&root, e))?;
        let file = "/etc/machine-id";
        let here = tree.read_to_string(file).map_err(|e| StepError::io(&tree.shown(file), e))?;
        let told = self.machine_of_bus()?;
        match here.trim() == told {
            true => Ok(tree),
            false => Err(StepError::refused(format!(
                "{} belongs to machine {}, but the bus to machine {told}",
                root.display(),
                here.trim(),
            ))),
        }
    }

    /// The systemd behind the bus must be that of the observed node, or of the root that was named: a bus forwarded from another
    /// machine has units of the same names.
    fn must_be_that_machine(&mut self) -> Result<(), StepError> {
        let told = self.machine_of_bus()?;
        if let Some(expected) = self.expected_machine.as_ref().filter(|expected| **expected != told) {
            return Err(StepError::refused(format!(
                "this was done on machine {expected}, but the bus belongs to machine {told}: pass the right --bus and --root"
            )));
        }
        if self.root.is_some() {
            return self.checked_root().map(drop);
        }
        let own = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
        match own.trim() == told {
            true => Ok(()),
            false => Err(StepError::refused(format!(
                "the bus belongs to machine {told}, but this is machine {}: pass that machine's root directory with --root (e.g. \
                 /proc/PID/root of its PID 1), or run this there",
                if own.trim().is_empty() { "unknown" } else { own.trim() }
            ))),
        }
    }
}

/// Resolves a socket below the root inside it, because a link there could lead to our own bus. Keep the returned fd open while connecting.
fn address_within(address: &str, root: Option<&Path>) -> Result<(String, Option<OwnedFd>), StepError> {
    let path = address.strip_prefix("unix:path=").filter(|path| !path.contains([',', ';']));
    let within = path.zip(root).and_then(|(path, root)| Path::new(path).strip_prefix(root).ok()?.to_str());
    // In our own root, every link is ours.
    let (Some(within), Some(root)) = (within, root.filter(|root| *root != Path::new("/"))) else {
        return Ok((address.to_owned(), None));
    };
    let socket = Tree::open(root)
        .and_then(|tree| tree.open_file(within, OFlags::PATH, Links::Follow))
        .map_err(|e| StepError::failed(format!("cannot reach systemd: {address}: {e}")))?;
    Ok((format!("unix:path=/proc/self/fd/{}", socket.as_raw_fd()), Some(socket)))
}

impl Action {
    /// Done through systemd.
    pub fn is_about_unit(&self) -> bool {
        matches!(self, Action::DisableUnit(_) | Action::MaskUnit(_) | Action::IsolateUnit(_))
    }

    /// A reboot undoes it.
    pub fn ends_with_boot(&self) -> bool {
        match self {
            Action::IsolateUnit(step) => !step.persistent,
            Action::MoveThread(_) | Action::MoveInterrupt(_) | Action::LowerPriority(_) | Action::PauseProcess(_) => {
                true
            }
            _ => false,
        }
    }
}

fn as_value<T: Serialize>(state: &T) -> Result<Value, StepError> {
    serde_json::to_value(state).map_err(|e| StepError::failed(format!("cannot store the previous state: {e}")))
}

fn of_value<T: serde::de::DeserializeOwned>(state: &Value) -> Result<T, StepError> {
    serde_json::from_value(state.clone())
        .map_err(|e| StepError::failed(format!("cannot parse the previous state in the journal: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn a_link_out_of_the_root_does_not_lead_to_a_bus() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
        std::fs::create_dir_all(inside.join("run")).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        let _theirs = UnixListener::bind(inside.join("run/own")).unwrap();
        let _ours = UnixListener::bind(outside.join("ours")).unwrap();
        symlink(outside.join("ours"), inside.join("run/bus")).unwrap();
        symlink("/run", inside.join("var-run")).unwrap();
        let address = |name: &str| format!("unix:path={}/{name}", inside.display());
        let led_out = address_within(&address("run/bus"), Some(&inside));
        assert!(matches!(&led_out, Err(StepError::Failed(why)) if why.contains("run/bus")), "{led_out:?}");
        for name in ["run/own", "var-run/own"] {
            let (held_at, held) = address_within(&address(name), Some(&inside)).unwrap();
            assert!(
                held.is_some() && UnixStream::connect(held_at.strip_prefix("unix:path=").unwrap()).is_ok(),
                "{name}"
            );
        }
        // Without a root, and for other addresses, the user's word counts.
        for (text, root) in [(address("run/bus"), None), ("unix:abstract=x".to_owned(), Some(inside.as_path()))] {
            assert_eq!(address_within(&text, root).unwrap().0, text);
        }
    }
}
