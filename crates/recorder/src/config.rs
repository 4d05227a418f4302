//! How the recorder is told what to do: a TOML file, and arguments that take precedence.

mod file;

pub use file::{parse_listen, parse_size};

use std::path::PathBuf;
use std::time::Duration;

/// Every key has a default; deploy/coroner.toml documents them.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub dir: PathBuf,
    /// All segments together, in bytes. Incidents have a limit of their own.
    pub max_size: u64,
    /// Stack samples a second of each core; 0: none.
    pub rate: u32,
    pub incidents: IncidentConfig,
    pub triggers: TriggerConfig,
    pub diagnosis: DiagnosisConfig,
    pub metrics: MetricsConfig,
}

#[derive(Debug, Clone, PartialEq)]
pub struct IncidentConfig {
    /// What is kept from before the trigger and after it.
    pub before: Duration,
    pub after: Duration,
    /// All incident files together, in bytes; the oldest go first.
    pub max_size: u64,
    /// The suspected core is sampled so often, for so long, and so long in an hour at most.
    pub escalate_rate: u32,
    pub escalate_for: Duration,
    pub escalate_per_hour: Duration,
    /// Run for each incident when it is complete, with its facts in the environment; at most once in `hook_every`.
    pub hook: Vec<String>,
    pub hook_every: Duration,
    /// An incident of the same code and subject within this time after the last one is counted there, not frozen anew.
    pub quiet: Duration,
}

/// When an incident begins.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerConfig {
    /// A core that is in system, interrupt or softirq mode for so long without a pause. Zero: never.
    pub core_saturated: Duration,
    /// Packets that a core dropped within ten seconds. 0: never.
    pub softnet_drops: u64,
    /// Restarts of a unit within ten minutes. 0: never.
    pub unit_restarts: u64,
    /// Dead memory cgroups that came within ten minutes. 0: never.
    pub zombie_growth: u64,
    /// Lines of the kernel log: NIC reset or watchdog, soft lockup and other stalls, OOM kills.
    pub nic_reset: bool,
    pub kernel_stall: bool,
    pub oom_kill: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct DiagnosisConfig {
    /// How often the recorder diagnoses its node. Zero: never.
    pub every: Duration,
    /// What all diagnoses together may take, in percent of one core; a longer pause keeps it.
    pub max_cpu: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct MetricsConfig {
    /// Where /metrics is served; `None`: nowhere.
    pub listen: Option<std::net::SocketAddr>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dir: PathBuf::from("/var/lib/coroner"),
            max_size: 2 << 30,
            rate: 49,
            incidents: IncidentConfig::default(),
            triggers: TriggerConfig::default(),
            diagnosis: DiagnosisConfig { every: Duration::from_secs(180), max_cpu: 0.2 },
            metrics: MetricsConfig { listen: Some(([127, 0, 0, 1], 9478).into()) },
        }
    }
}

impl Default for IncidentConfig {
    fn default() -> IncidentConfig {
        IncidentConfig {
            before: Duration::from_secs(120),
            after: Duration::from_secs(30),
            max_size: 512 << 20,
            escalate_rate: 999,
            escalate_for: Duration::from_secs(10),
            escalate_per_hour: Duration::from_secs(60),
            hook: Vec::new(),
            hook_every: Duration::from_secs(60),
            quiet: Duration::from_secs(600),
        }
    }
}

impl Default for TriggerConfig {
    fn default() -> TriggerConfig {
        TriggerConfig {
            core_saturated: Duration::from_secs(1),
            softnet_drops: 100,
            unit_restarts: 5,
            zombie_growth: 1000,
            nic_reset: true,
            kernel_stall: true,
            oom_kill: true,
        }
    }
}
