//! The recorder's configuration: a TOML file, overridden by command line arguments.

mod file;

pub use file::{parse_listen, parse_size};

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Every key has a default; deploy/coroner.toml documents them.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub dir: PathBuf,
    /// Limit for all segments together, in bytes. Incidents have their own limit.
    #[serde(deserialize_with = "file::size")]
    pub max_size: u64,
    /// Stack samples per second and core; 0: none.
    pub rate: u32,
    pub incidents: IncidentConfig,
    pub triggers: TriggerConfig,
    pub diagnosis: DiagnosisConfig,
    pub metrics: MetricsConfig,
    pub report: ReportConfig,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct IncidentConfig {
    /// Time to keep before and after the trigger.
    #[serde(deserialize_with = "file::time")]
    pub before: Duration,
    #[serde(deserialize_with = "file::time")]
    pub after: Duration,
    /// Limit for all incident files together, in bytes; the oldest are removed first.
    #[serde(deserialize_with = "file::size")]
    pub max_size: u64,
    /// The suspected core is sampled at this rate, for this long, and at most this long per hour.
    pub escalate_rate: u32,
    #[serde(deserialize_with = "file::time")]
    pub escalate_for: Duration,
    #[serde(deserialize_with = "file::time")]
    pub escalate_per_hour: Duration,
    /// Run for each complete incident, described by environment variables; at most once per `hook_every`.
    pub hook: Vec<String>,
    #[serde(deserialize_with = "file::time")]
    pub hook_every: Duration,
    /// A repeat with the same code and subject within this time is counted in the existing incident; no new one is frozen.
    #[serde(deserialize_with = "file::time")]
    pub quiet: Duration,
}

/// What triggers an incident.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TriggerConfig {
    /// A core spends this long in system, interrupt or softirq mode without a pause. Zero: never.
    #[serde(deserialize_with = "file::time")]
    pub core_saturated: Duration,
    /// Packets dropped by one core within ten seconds. 0: never.
    pub softnet_drops: u64,
    /// Restarts of one unit within ten minutes. 0: never.
    pub unit_restarts: u64,
    /// New dead memory cgroups within ten minutes. 0: never.
    pub zombie_growth: u64,
    /// Somebody waited this long of ten seconds for a core and lost most of what it asked for, other than by turns on full cores. Zero: never.
    #[serde(deserialize_with = "file::time")]
    pub starved: Duration,
    /// Kernel log lines: NIC resets and watchdog timeouts; soft lockups and other stalls; OOM kills.
    pub nic_reset: bool,
    pub kernel_stall: bool,
    pub oom_kill: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DiagnosisConfig {
    /// How often the recorder diagnoses its node. Zero: never.
    #[serde(deserialize_with = "file::time")]
    pub every: Duration,
    /// CPU limit for all diagnoses together, in percent of one core; the pause between them is stretched to keep it.
    pub max_cpu: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MetricsConfig {
    /// Address of /metrics; `None`: not served.
    #[serde(deserialize_with = "file::listen")]
    pub listen: Option<std::net::SocketAddr>,
}

/// Where the node reports to, and as what.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReportConfig {
    /// The collector's URL. `None`: nothing is ever sent.
    #[serde(deserialize_with = "file::optional")]
    pub to: Option<String>,
    /// Sent as a bearer token; read again for each request.
    #[serde(deserialize_with = "file::optional")]
    pub token_file: Option<PathBuf>,
    /// Certificates of authorities that may vouch for the collector, instead of the public ones.
    #[serde(deserialize_with = "file::optional")]
    pub ca_file: Option<PathBuf>,
    #[serde(deserialize_with = "file::optional")]
    pub cluster: Option<String>,
    /// The node's name in the fleet, instead of its machine id.
    #[serde(deserialize_with = "file::optional")]
    pub node: Option<String>,
    pub labels: BTreeMap<String, String>,
    /// Whether the collector may have the recording of an incident that somebody asks for.
    pub files: bool,
    #[serde(deserialize_with = "file::time")]
    pub every: Duration,
    /// How often to report the heaviest stacks. Zero: never.
    #[serde(deserialize_with = "file::time")]
    pub stacks_every: Duration,
    /// Limit for what waits to be sent, in bytes.
    #[serde(deserialize_with = "file::size")]
    pub max_size: u64,
}

impl Default for ReportConfig {
    fn default() -> ReportConfig {
        ReportConfig {
            to: None,
            token_file: None,
            ca_file: None,
            cluster: None,
            node: None,
            labels: BTreeMap::new(),
            files: true,
            every: Duration::from_secs(60),
            stacks_every: Duration::from_secs(600),
            max_size: 64 << 20,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dir: PathBuf::from("/var/lib/coroner"),
            max_size: 2 << 30,
            rate: 49,
            incidents: IncidentConfig::default(),
            triggers: TriggerConfig::default(),
            diagnosis: DiagnosisConfig::default(),
            metrics: MetricsConfig::default(),
            report: ReportConfig::default(),
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
            starved: Duration::from_secs(2),
            nic_reset: true,
            kernel_stall: true,
            oom_kill: true,
        }
    }
}

impl Default for DiagnosisConfig {
    fn default() -> DiagnosisConfig {
        DiagnosisConfig { every: Duration::from_secs(180), max_cpu: 0.2 }
    }
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig { listen: Some(([127, 0, 0, 1], 9478).into()) }
    }
}
