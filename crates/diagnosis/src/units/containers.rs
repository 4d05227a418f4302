//! Containers that start, die and start again.

use super::loops::Trend;
use coroner_evidence::{Container, Evidence};
use std::time::Duration;

#[derive(Debug, Clone)]
pub struct ContainerLoop<'e> {
    pub container: &'e Container,
    /// Restarts while it was watched.
    pub in_window: Option<(u64, Duration)>,
    pub per_hour: Option<f64>,
    pub since_real_ns: Option<u64>,
    pub trend: Option<Trend>,
}

impl ContainerLoop<'_> {
    /// `namespace/pod/container`, or the container's name.
    pub fn name(&self) -> String {
        let c = self.container;
        [c.namespace.as_deref(), c.pod.as_deref(), Some(&c.name)].into_iter().flatten().collect::<Vec<_>>().join("/")
    }
}

/// The fastest first.
pub fn container_loops(_evidence: &Evidence) -> Vec<ContainerLoop<'_>> {
    Vec::new()
}
