//! The status in Prometheus' text formats.
//!
//! What could not be seen has no series. Names follow <https://prometheus.io/docs/practices/naming/>: base units, `_total` for
//! counters. [`crate::meter`] bounds the number of series.

use crate::status::Status;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeMetric, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;
use std::fmt;

/// The format the client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, which Prometheus asks for.
    OpenMetrics,
    /// The older text format, for people and everything else.
    Plain,
}

impl Format {
    pub fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

pub fn metrics(status: Status, format: Format) -> String {
    let mut registry = Registry::with_prefix("coroner");
    registry.register_collector(Box::new(Metrics(status)));
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, &registry);
    match format {
        Format::OpenMetrics => text,
        Format::Plain => plain(&text),
    }
}

/// In OpenMetrics a counter's family lacks the `_total` of its samples, and there are infos; the older format has neither.
fn plain(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len() + 1024);
    let mut help: Option<(&str, &str)> = None;
    for line in open_metrics.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                _ => ("", kind),
            };
            if let Some((_, words)) = help.take() {
                text.push_str(&format!("# HELP {name}{suffix} {words}\n"));
            }
            text.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[derive(Debug)]
struct Metrics(Status);

impl Collector for Metrics {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Out(encoder);
        self.node(&mut out)?;
        self.own(&mut out)
    }
}

impl Metrics {
    fn node(&self, out: &mut Out<'_>) -> fmt::Result {
        let node = &self.0.node;
        if let Some(zombies) = &node.zombies {
            let states = [("tracked", zombies.tracked), ("live", zombies.live), ("dead", zombies.dead)];
            let states = states.into_iter().filter_map(|(state, count)| Some((state, count?)));
            let help =
                "Memory cgroups: tracked by the kernel, live (with a directory), and dead (removed but not freed).";
            out.gauges("memcgs", help, "state", states)?;
            let help = "Dead memory cgroups (removed but not freed) by parent; ids in paths are folded to *.";
            out.gauges("zombie_memcgs", help, "parent", zombies.by_parent.iter().map(|(p, n)| (p.as_str(), *n)))?;
        }
        let help = "Time in which nothing else could use the core for a second or longer: it was full of kernel work, or a \
        real-time thread had it.";
        out.counters("core_saturated_seconds", help, "core", &node.saturated_seconds)?;
        if let Some((core, busy)) = node.worst_core {
            out.gauge("worst_core", "The busiest core in the last ten seconds.", core)?;
            out.gauge("worst_core_busy_ratio", "Share of the last ten seconds that this core was busy.", busy)?;
        }
        if let Some(queues) = node.starved_queues {
            let help = "NIC queues whose only core was full of other kernel work or taken by a real-time thread within the last \
            minute.";
            out.gauge("starved_nic_queues", help, queues)?;
        }
        let help = "Resets and timeouts of network devices, from the kernel log and driver counters.";
        out.counters("nic_resets", help, "nic", &node.nic_resets)?;
        out.counters("unit_restarts", "Automatic restarts by systemd.", "unit", &node.unit_restarts)?;
        if let Some(drops) = node.softnet_drops {
            out.counter("softnet_dropped_packets", "Packets dropped because a core's backlog was full.", drops)?;
        }
        if let Some(kills) = node.oom_kills {
            out.counter("oom_kills", "Processes that the kernel killed because memory ran out.", kills)?;
        }
        Ok(())
    }

    fn own(&self, out: &mut Out<'_>) -> fmt::Result {
        let own = &self.0.own;
        out.counters("incidents", "Incidents, by code.", "code", &self.0.incidents)?;
        if let Some(diagnoses) = &self.0.diagnoses {
            let problems = diagnoses
                .problems
                .iter()
                .map(|((code, severity), count)| ([("code", code.as_str()), ("severity", severity.as_str())], *count));
            out.gauge_family(
                "problems",
                "Problems found by the recorder's last diagnosis, by code and severity.",
                problems,
            )?;
            out.counter("diagnoses", "Diagnoses made by the recorder.", diagnoses.diagnoses)?;
            out.counter("failed_diagnoses", "Diagnoses that failed.", diagnoses.failures)?;
            let help = "CPU time used by the recorder's diagnoses; not part of process_cpu_seconds.";
            out.counter("diagnosis_cpu_seconds", help, diagnoses.cpu_seconds)?;
            let help = "Pause between diagnoses; longer than configured if they would exceed diagnosis.max_cpu.";
            out.gauge("diagnosis_pause_seconds", help, diagnoses.pause_seconds)?;
        }
        if let Some(report) = &self.0.report {
            out.counter("report_batches", "Batches that the fleet's collector acknowledged.", report.sent_batches)?;
            out.counter("report_bytes", "Bytes of those batches, compressed.", report.sent_bytes)?;
            out.counter("report_failures", "Requests to the collector that failed and are repeated.", report.failures)?;
            let help = "Batches that the collector refused for good.";
            out.counter("report_refused_batches", help, report.refused_batches)?;
            let dropped = report.dropped;
            let help = "Rows dropped because the spool was full or the collector refused them.";
            let kinds = [
                ("node", &dropped.nodes),
                ("minute", &dropped.minutes),
                ("diagnosis", &dropped.diagnoses),
                ("incident", &dropped.incidents),
                ("stacks", &dropped.stacks),
            ];
            out.counters("report_dropped_rows", help, "kind", kinds.iter().map(|(kind, count)| (kind, *count)))?;
            out.gauge("report_spool_bytes", "Size of what waits for the collector.", report.spool_bytes)?;
            out.gauge("report_spool_batches", "Batches that wait for the collector.", report.spool_batches)?;
            if let Some(at) = report.last_success {
                let help = "Time since the collector last acknowledged a batch.";
                out.gauge("report_seconds_since_success", help, at.elapsed().as_secs_f64())?;
            }
        }
        out.counter("samples", "Stack samples taken.", own.samples)?;
        let help = "Stack samples lost because a buffer was full.";
        out.counters("lost_samples", help, "core", &own.lost_samples)?;
        let help = "Stack samples missing because the kernel throttled sampling (estimated from how long it did).";
        out.counters("throttled_samples", help, "core", &own.throttled_samples)?;
        out.gauge("segments", "Segments in the recorder's directory.", own.segments)?;
        out.gauge("disk_bytes", "Size of all segments.", own.disk_bytes)?;
        out.gauge("disk_limit_bytes", "Size limit for all segments (max_size).", own.disk_limit_bytes)?;
        out.gauge("incident_disk_bytes", "Size of all incident files.", own.incident_bytes)?;
        out.counter("failed_commits", "Failed attempts to write evidence to disk.", own.failed_commits)?;
        let help = "Seconds of evidence lost because they could not be written.";
        out.counter("lost_seconds", help, own.lost_seconds)?;
        let help = "1 if the last attempt to write to disk failed, otherwise 0.";
        out.gauge("disk_trouble", help, u32::from(own.trouble.is_some()))?;
        out.counter("process_cpu_seconds", "CPU time used by the recorder.", own.cpu_seconds)?;
        out.gauge("process_resident_memory_bytes", "Memory used by the recorder.", own.rss_bytes)?;
        let help = "When the recorder started, in seconds since 1970.";
        out.gauge("process_start_time_seconds", help, own.started.0 as f64 / 1e9)?;
        out.info("build", "The recorder's version.", &[("version", env!("CARGO_PKG_VERSION"))])
    }
}

struct Out<'e>(DescriptorEncoder<'e>);

impl Out<'_> {
    fn gauge(&mut self, name: &str, help: &str, value: impl EncodeGaugeValue) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn counter(&mut self, name: &str, help: &str, value: impl EncodeCounterValue) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, _, u64>(&value, None)
    }

    fn gauges<'l>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        rows: impl Iterator<Item = (&'l str, u64)>,
    ) -> fmt::Result {
        self.gauge_family(name, help, rows.map(|(value, number)| ([(label, value)], number)))
    }

    fn gauge_family<'l, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        rows: impl Iterator<Item = ([(&'static str, &'l str); N], u64)>,
    ) -> fmt::Result {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, number) in rows {
            encoder.encode_family(&labels)?.encode_gauge(&number)?;
        }
        Ok(())
    }

    /// A counter that never rose has no series.
    fn counters<'s, L, N>(
        &mut self,
        name: &str,
        help: &str,
        label: &'static str,
        rows: impl IntoIterator<Item = (&'s L, &'s N)>,
    ) -> fmt::Result
    where
        L: ToString + 's,
        N: EncodeCounterValue + 's,
    {
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (value, number) in rows {
            let labels = [(label, value.to_string())];
            let mut row: MetricEncoder<'_> = encoder.encode_family(&labels)?;
            row.encode_counter::<NoLabelSet, _, u64>(number, None)?;
        }
        Ok(())
    }

    fn info(&mut self, name: &str, help: &str, labels: &[(&'static str, &'static str)]) -> fmt::Result {
        let info = Info::new(labels.to_vec());
        info.encode(self.0.encode_descriptor(name, help, None, MetricType::Info)?)
    }
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
