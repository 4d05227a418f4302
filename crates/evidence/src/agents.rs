//! What is installed to run: unit files, the packages that installed them, and the files that agents need.
//!
//! The same types serve a live node and an image on disk that never booted.

use coroner_report::named;
use serde::{Deserialize, Serialize};
use std::fmt;

/// One unit as its files describe it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFile {
    pub name: String,
    /// Its file, with links resolved: `/usr/lib/systemd/system/ecs.service`. For a masked unit, the link or the empty file itself.
    pub path: Option<String>,
    /// In the order in which they are applied.
    pub drop_ins: Vec<String>,
    pub enablement: Enablement,
    /// The distribution's default; `None` if there is none (aliases, static and generated units).
    pub preset: Option<Preset>,
    /// The unit that this is an alias of.
    pub alias_of: Option<String>,
    /// Other names of this unit.
    pub aliases: Vec<String>,
    /// The template of this instance.
    pub instance_of: Option<String>,
    pub description: Option<String>,
    /// `Type=` of a service: `simple`, `oneshot`, `notify` …
    pub service_type: Option<String>,
    /// Command lines as written, with their prefixes and `%` specifiers.
    pub exec_start: Vec<String>,
    /// `Restart=`: `no`, `always`, `on-failure` …
    pub restart: Option<String>,
    /// Microseconds; `u64::MAX`: never.
    pub restart_delay_us: Option<u64>,
    pub start_limit_interval_us: Option<u64>,
    pub start_limit_burst: Option<u32>,
    pub environment_files: Vec<String>,
    pub conditions: Vec<Condition>,
    /// What `systemctl enable` would link it to: `WantedBy=`, `RequiredBy=` and `UpheldBy=` of [Install].
    pub install_wanted_by: Vec<String>,
    /// What pulls it in by existing links.
    pub pulled_in_by: Vec<PullIn>,
    /// Timers, sockets and paths that start it.
    pub triggered_by: Vec<String>,
    /// What this timer, socket or path starts.
    pub triggers: Vec<String>,
    pub package: Option<Package>,
    /// SHA-256 of the file and its drop-ins, in hex.
    pub content_hash: Option<String>,
    /// Why the file could not be parsed, if so.
    pub bad: Option<String>,
}

named! {
    /// As printed by `systemctl is-enabled`.
    #[derive(Default)]
    pub enum Enablement {
        Enabled = "enabled",
        EnabledRuntime = "enabled-runtime",
        Linked = "linked",
        LinkedRuntime = "linked-runtime",
        Alias = "alias",
        Masked = "masked",
        MaskedRuntime = "masked-runtime",
        Static = "static",
        Disabled = "disabled",
        Indirect = "indirect",
        Generated = "generated",
        Transient = "transient",
        #[default]
        Bad = "bad",
    }
}

impl Enablement {
    /// Parses systemd's word, from D-Bus or the command line.
    pub fn of_word(word: &str) -> Option<Enablement> {
        Enablement::parse(word)
    }
}

impl fmt::Display for Enablement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

named! {
    pub enum Preset {
        Enabled = "enabled",
        Disabled = "disabled",
        Ignored = "ignored",
    }
}

/// A link that starts one unit with another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PullIn {
    /// `multi-user.target`
    pub by: String,
    /// `wants`, `requires`, `upholds`
    pub how: String,
    /// The link.
    pub link: String,
}

/// `ConditionPathExists=!/etc/…` and the like, also `Assert…`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub key: String,
    /// As written, with `!` and `|`.
    pub value: String,
    /// Whether it holds for the files as they are; `None` if files do not decide it.
    pub holds: Option<bool>,
}

/// The package that installed a file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: Option<String>,
    /// `dpkg`, `rpm`, `apk`, `snap`
    pub manager: String,
}

/// A question about a file that an agent needs: is it there, are these keys set in it?
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileQuestion {
    /// Its components may contain `*`.
    pub path: String,
    pub format: FileFormat,
    pub keys: Vec<String>,
}

/// How keys are found in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// Only whether it exists and is not empty.
    #[default]
    Any,
    /// `KEY=value`, `KEY: value` or `KEY value` on a line of its own; `#` and `;` begin comments. Fits environment files, ini
    /// files and flat YAML.
    Lines,
    /// A JSON object; a key is a path like `a.b`.
    Json,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAnswer {
    pub question: FileQuestion,
    pub state: FileState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileState {
    Missing,
    /// Exists, but has nothing but comments.
    Empty {
        path: String,
    },
    /// Exists. Which of the keys have a value; the values are not recorded, as they may be secrets.
    Present {
        path: String,
        keys_set: Vec<String>,
    },
    /// Could not be read, so it may or may not exist.
    Unseen {
        why: String,
    },
}

/// A file read as a whole, to be parsed later: an addition to the catalogue of agents, or a baseline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextFile {
    pub path: String,
    pub text: String,
}
