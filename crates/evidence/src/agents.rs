//! What is installed to run: unit files, the packages that brought them, and the files that an agent needs.
//!
//! The same shapes are filled from a live node and from an image on disk that never booted.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One unit as its files describe it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFile {
    pub name: String,
    /// The file that describes it, without links: `/usr/lib/systemd/system/ecs.service`. Of a mask it is the link or the empty
    /// file itself.
    pub path: Option<String>,
    /// What changes it, in the order in which it is applied.
    pub drop_ins: Vec<String>,
    pub enablement: Enablement,
    /// What the distribution wants; `None` where it has no say (aliases, static and generated units).
    pub preset: Option<Preset>,
    /// The unit that this is only another name of.
    pub alias_of: Option<String>,
    /// Other names of this unit.
    pub aliases: Vec<String>,
    /// The template that describes this instance.
    pub instance_of: Option<String>,
    pub description: Option<String>,
    /// `Type=` of a service: `simple`, `oneshot`, `notify` …
    pub service_type: Option<String>,
    /// Command lines as written, with their prefixes and `%` specifiers.
    pub exec_start: Vec<String>,
    /// `Restart=`: `no`, `always`, `on-failure` …
    pub restart: Option<String>,
    /// Microseconds; `u64::MAX` is never.
    pub restart_delay_us: Option<u64>,
    pub start_limit_interval_us: Option<u64>,
    pub start_limit_burst: Option<u32>,
    pub environment_files: Vec<String>,
    pub conditions: Vec<Condition>,
    /// What `systemctl enable` would make: `WantedBy=`, `RequiredBy=` and `UpheldBy=` of [Install].
    pub install_wanted_by: Vec<String>,
    /// What pulls it in as the links stand.
    pub pulled_in_by: Vec<PullIn>,
    /// Timers, sockets and paths that start it.
    pub triggered_by: Vec<String>,
    /// What this timer, socket or path starts.
    pub triggers: Vec<String>,
    pub package: Option<Package>,
    /// SHA-256 of the file and its drop-ins, in hex.
    pub content_hash: Option<String>,
    /// Why the file could not be understood, if so.
    pub bad: Option<String>,
}

/// As `systemctl is-enabled` says it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enablement {
    Enabled,
    EnabledRuntime,
    Linked,
    LinkedRuntime,
    Alias,
    Masked,
    MaskedRuntime,
    Static,
    Disabled,
    Indirect,
    Generated,
    Transient,
    #[default]
    Bad,
}

impl Enablement {
    pub const ALL: [Enablement; 13] = [
        Enablement::Enabled,
        Enablement::EnabledRuntime,
        Enablement::Linked,
        Enablement::LinkedRuntime,
        Enablement::Alias,
        Enablement::Masked,
        Enablement::MaskedRuntime,
        Enablement::Static,
        Enablement::Disabled,
        Enablement::Indirect,
        Enablement::Generated,
        Enablement::Transient,
        Enablement::Bad,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Enablement::Enabled => "enabled",
            Enablement::EnabledRuntime => "enabled-runtime",
            Enablement::Linked => "linked",
            Enablement::LinkedRuntime => "linked-runtime",
            Enablement::Alias => "alias",
            Enablement::Masked => "masked",
            Enablement::MaskedRuntime => "masked-runtime",
            Enablement::Static => "static",
            Enablement::Disabled => "disabled",
            Enablement::Indirect => "indirect",
            Enablement::Generated => "generated",
            Enablement::Transient => "transient",
            Enablement::Bad => "bad",
        }
    }

    /// The word that systemd says, over D-Bus or on the command line.
    pub fn of_word(word: &str) -> Option<Enablement> {
        Enablement::ALL.into_iter().find(|e| e.as_str() == word)
    }
}

impl fmt::Display for Enablement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    Enabled,
    Disabled,
    Ignored,
}

impl Preset {
    pub fn as_str(self) -> &'static str {
        match self {
            Preset::Enabled => "enabled",
            Preset::Disabled => "disabled",
            Preset::Ignored => "ignored",
        }
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

/// `ConditionPathExists=!/etc/…` and its like; an `Assert…` too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    pub key: String,
    /// As written, with `!` and `|`.
    pub value: String,
    /// Whether it holds for the files as they are; `None` if that cannot be told from them.
    pub holds: Option<bool>,
}

/// Who brought a file.
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
    /// May hold `*` in its components.
    pub path: String,
    pub format: FileFormat,
    pub keys: Vec<String>,
}

/// How keys are found in a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileFormat {
    /// Only whether it is there and not empty.
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
    /// There, but without content other than comments.
    Empty {
        path: String,
    },
    /// There. Which of the keys have a value; the values are nobody's business, they may be secrets.
    Present {
        path: String,
        keys_set: Vec<String>,
    },
    /// It may be there, but could not be read.
    Unseen {
        why: String,
    },
}

/// A file that was read as a whole, to be understood later: an addition to the catalogue of agents, a baseline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextFile {
    pub path: String,
    pub text: String,
}
