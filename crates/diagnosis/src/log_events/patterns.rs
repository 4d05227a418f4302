//! The table of lines that mean something.
//!
//! Most lines mean nothing here. So each pattern names words without which it cannot match; one search of the line for all such
//! words of a family decides whether any expression is tried (and compiled) at all.

use super::{Device, Event, NicEvent, NicStep, OomEvent, OomScope, StallEvent, XidEvent};
use regex::{Captures, Regex};
use std::str::FromStr;
use std::sync::LazyLock;
use std::time::Duration;

/// Events that one rule looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    Nic,
    Stall,
    Oom,
    Xid,
    Conntrack,
}

impl Family {
    pub const ALL: &[Family] = &[Family::Nic, Family::Stall, Family::Oom, Family::Xid, Family::Conntrack];

    fn words(self) -> &'static Regex {
        static WORDS: LazyLock<Vec<Regex>> = LazyLock::new(|| Family::ALL.iter().map(|f| any_word_of(*f)).collect());
        &WORDS[self as usize]
    }
}

fn any_word_of(family: Family) -> Regex {
    let words: Vec<String> =
        PATTERNS.iter().filter(|p| p.family == family).flat_map(|p| p.words.iter().map(|w| regex::escape(w))).collect();
    Regex::new(&words.join("|")).expect("escaped words are an expression")
}

pub struct Pattern {
    pub name: &'static str,
    pub family: Family,
    /// A line without any of these cannot match.
    words: &'static [&'static str],
    regex: &'static LazyLock<Regex>,
    read: fn(&Matched) -> Option<Event>,
}

macro_rules! patterns {
    ($($name:literal $family:ident [$($word:literal),+] $regex:literal => $read:expr;)*) => {
        pub static PATTERNS: &[Pattern] = &[$(Pattern {
            name: $name,
            family: Family::$family,
            words: &[$($word),+],
            regex: {
                static REGEX: LazyLock<Regex> =
                    LazyLock::new(|| Regex::new($regex).expect("a constant that a test compiles"));
                &REGEX
            },
            read: $read,
        },)*];
    };
}

patterns! {
    // Amazon ENA, in-tree and out-of-tree (kernel/linux/ena/ena_netdev.c of amzn-drivers): wordings differ by version.
    "ena-tx-paused" Nic ["is paused for too long"]
        r"TX q (?P<queue>\d+) is paused for too long \(threshold \d+\)\. (?:Time since last napi (?P<us>\d+) usec|usecs since napi (?P<us2>\d+))\. napi scheduled: (?P<sched>[01])(?:\. napi CPU: (?P<cpu>-?\d+))?"
        => |m| Some(Event::Nic(NicEvent {
            queue: m.number("queue"),
            // -1: the driver does not know.
            napi_core: m.number("cpu"),
            since_napi: m.number("us").or_else(|| m.number("us2")).map(Duration::from_micros),
            napi_scheduled: m.text("sched").map(|s| s == "1"),
            ..NicEvent::new(m.device(), NicStep::PollStarved)
        }));
    "ena-napi" Nic ["napi handler hasn't been called"]
        r"napi handler hasn't been called for a long time but is scheduled"
        => |m| Some(Event::Nic(NicEvent { napi_scheduled: Some(true), ..NicEvent::new(m.device(), NicStep::PollStarved) }));
    "ena-tx-miss" Nic ["Found a Tx that wasn't completed", "TX hasn't completed"]
        r"(?:Found a Tx that wasn't completed on time|TX hasn't completed), qid:? (?P<queue>\d+), index:? \d+(?:\. (?P<us>\d+) usecs have passed)?"
        => |m| Some(Event::Nic(NicEvent {
            queue: m.number("queue"),
            silent_for: m.number("us").map(Duration::from_micros),
            ..NicEvent::new(m.device(), NicStep::CompletionsMissing)
        }));
    "ena-lost" Nic ["threshold ("]
        r"(?i)lost tx completions?(?: is| are)? above (?:the )?threshold \((?P<n>\d+) > (?P<t>\d+)\)"
        => |m| Some(Event::Nic(NicEvent {
            lost: m.number("n").zip(m.number("t")),
            ..NicEvent::new(m.device(), NicStep::Resetting)
        }));
    "ena-keepalive" Nic ["Keep alive watchdog timeout"]
        r"Keep alive watchdog timeout(?:\.|, (?P<ms>\d+) msecs)"
        => |m| Some(Event::Nic(NicEvent {
            silent_for: m.number("ms").map(Duration::from_millis),
            ..NicEvent::new(m.device(), NicStep::KeepAliveLost)
        }));
    "ena-tx-timeout" Nic ["Transmit time out"]
        r"Transmit time out"
        => |m| m.driver_is("ena").then(|| Event::Nic(NicEvent::new(m.device(), NicStep::TxTimeout)));
    "ena-trigger" Nic ["Trigger reset is on", "Resetting the device", "ENA admin queue is not in running state!"]
        r"(?:Trigger reset is on|Resetting the device|ENA admin queue is not in running state!)"
        => |m| m.driver_is("ena").then(|| Event::Nic(NicEvent::new(m.device(), NicStep::Resetting)));
    "ena-done" Nic ["Device reset completed"]
        r"Device reset completed(?: successfully|, status: (?P<status>-?\d+))"
        => |m| {
            let status: Option<i64> = m.number("status");
            let step = if status.is_some_and(|s| s != 0) { NicStep::ResetFailed } else { NicStep::ResetDone };
            Some(Event::Nic(NicEvent { status, ..NicEvent::new(m.device(), step) }))
        };

    // The kernel's own watchdog (net/sched/sch_generic.c); newer kernels add milliseconds, the newest the driver's prefix and the
    // core on which the watchdog ran.
    "netdev-watchdog" Nic ["NETDEV WATCHDOG"]
        r"NETDEV WATCHDOG: (?:(?P<if>\S+) \((?P<drv>[^)]*)\)|CPU: (?P<cpu>\d+)): transmit queue (?P<queue>\d+) timed out(?: (?P<ms>\d+) ms)?"
        => |m| {
            let mut device = m.device();
            if let Some(interface) = m.text("if") {
                device.interface = Some(interface.to_owned());
                device.driver = m.text("drv").filter(|d| !d.is_empty()).map(str::to_owned);
            }
            Some(Event::Nic(NicEvent {
                queue: m.number("queue"),
                watchdog_core: m.number("cpu"),
                silent_for: m.number("ms").map(Duration::from_millis),
                ..NicEvent::new(device, NicStep::TxTimeout)
            }))
        };

    "mlx5-timeout" Nic ["TX timeout detected", "TX timeout on queue"]
        r"TX timeout (?:detected|on queue: (?P<queue>\d+)(?:, SQ: .*usecs since last trans: (?P<us>\d+))?)"
        => |m| m.driver_is("mlx5_core").then(|| Event::Nic(NicEvent {
            queue: m.number("queue"),
            silent_for: m.number("us").map(Duration::from_micros),
            ..NicEvent::new(m.device(), NicStep::TxTimeout)
        }));
    "mlx5-health" Nic ["Health issue observed", "ERR CQE on SQ"]
        r"(?:Health issue observed|ERR CQE on SQ)"
        => |m| m.driver_is("mlx5_core").then(|| Event::Nic(NicEvent::new(m.device(), NicStep::HealthIssue)));
    "mlx5-recovery" Nic ["health recovery"]
        r"(?P<start>starting health recovery flow)|health recovery (?:(?P<failed>failed)|(?P<done>succeeded))"
        => |m| m.driver_is("mlx5_core").then(|| {
            let step = match (m.text("failed"), m.text("done")) {
                (Some(_), _) => NicStep::ResetFailed,
                (_, Some(_)) => NicStep::ResetDone,
                _ => NicStep::Resetting,
            };
            Event::Nic(NicEvent::new(m.device(), step))
        });

    "gve" Nic ["Performing reset", "Timeout on tx queue", "Kicking queue", "Device requested reset", "Reset failed!", "AQ commands timed out"]
        r"(?:(?P<reset>Performing reset|Device requested reset|AQ commands timed out)|Timeout on tx queue, (?P<queue>\d+)|Kicking queue (?P<kicked>\d+)|(?P<failed>Reset failed!))"
        => |m| m.driver_is("gve").then(|| {
            let step = if m.text("failed").is_some() {
                NicStep::ResetFailed
            } else if m.text("queue").is_some() {
                NicStep::TxTimeout
            } else if m.text("kicked").is_some() {
                NicStep::QueueKicked
            } else {
                NicStep::Resetting
            };
            Event::Nic(NicEvent {
                queue: m.number("queue").or_else(|| m.number("kicked")),
                ..NicEvent::new(m.device(), step)
            })
        });

    "virtio-timeout" Nic ["TX timeout on queue"]
        r"TX timeout on queue: (?P<queue>\d+), sq: .* (?P<us>\d+) usecs ago"
        => |m| m.driver_is("virtio_net").then(|| Event::Nic(NicEvent {
            queue: m.number("queue"),
            silent_for: m.number("us").map(Duration::from_micros),
            ..NicEvent::new(m.device(), NicStep::TxTimeout)
        }));

    // drivers/net/vmxnet3/vmxnet3_drv.c: vmxnet3_tx_timeout, vmxnet3_reset_work.
    "vmxnet3" Nic ["tx hang", "resetting"]
        r"(?:(?P<hang>tx hang)|resetting)$"
        => |m| m.driver_is("vmxnet3").then(|| {
            let step = if m.text("hang").is_some() { NicStep::TxTimeout } else { NicStep::Resetting };
            Event::Nic(NicEvent::new(m.device(), step))
        });

    // Intel ixgbe, igb, e1000(e), fm10k: ixgbe_main.c ixgbe_pf_handle_tx_hang, ixgbe_tx_timeout_reset; netdev.c of e1000e.
    "intel-hang" Nic ["Detected Tx Unit Hang", "Detected Hardware Unit Hang"]
        r"Detected (?:Tx|Hardware) Unit Hang"
        => |m| Some(Event::Nic(NicEvent::new(m.device(), NicStep::CompletionsMissing)));
    "ixgbe-hang" Nic ["resetting adapter"]
        r"tx hang \d+ detected on queue (?P<queue>\d+), resetting adapter"
        => |m| Some(Event::Nic(NicEvent { queue: m.number("queue"), ..NicEvent::new(m.device(), NicStep::TxTimeout) }));
    "intel-reset" Nic ["initiating reset due to tx timeout", "Reset adapter"]
        r"(?:initiating reset due to tx timeout|Reset adapter(?: unexpectedly)?$)"
        => |m| Some(Event::Nic(NicEvent::new(m.device(), NicStep::Resetting)));

    // i40e_tx_timeout, ice_tx_timeout (iavf prints none of this); `hung_queue` before 5.6.
    "intel-recovery" Nic ["tx_timeout recovery"]
        r"tx_timeout recovery (?:level (?P<level>\d+), (?:txqueue|hung_queue) (?P<queue>\d+)|(?P<failed>unsuccessful))"
        => |m| Some(Event::Nic(NicEvent {
            queue: m.number("queue"),
            ..NicEvent::new(m.device(), if m.text("failed").is_some() { NicStep::ResetFailed } else { NicStep::Resetting })
        }));

    // drivers/net/ethernet/broadcom/bnxt/bnxt.c: bnxt_tx_timeout.
    "bnxt-timeout" Nic ["starting reset task"]
        r"TX timeout detected, starting reset task!"
        => |m| m.driver_is("bnxt_en").then(|| Event::Nic(NicEvent::new(m.device(), NicStep::TxTimeout)));

    // kernel/watchdog.c
    "soft-lockup" Stall ["BUG: soft lockup"]
        r"BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<s>\d+)s! \[(?P<comm>.+):(?P<pid>\d+)\]"
        => |m| Some(Event::Stall(StallEvent::SoftLockup {
            core: m.number("cpu")?,
            seconds: m.number("s")?,
            comm: m.owned("comm")?,
            pid: m.number("pid")?,
        }));
    "hard-lockup" Stall ["hard LOCKUP on cpu"]
        r"Watchdog detected hard LOCKUP on cpu (?P<cpu>\d+)"
        => |m| Some(Event::Stall(StallEvent::HardLockup { core: m.number("cpu")? }));
    // kernel/hung_task.c; `blocked in I/O wait` on the newest kernels.
    "hung-task" Stall ["INFO: task "]
        r"INFO: task (?P<comm>.+):(?P<pid>\d+) blocked (?P<io>in I/O wait )?for more than (?P<s>\d+) seconds"
        => |m| Some(Event::Stall(StallEvent::HungTask {
            comm: m.owned("comm")?,
            pid: m.number("pid")?,
            seconds: m.number("s")?,
            io: m.text("io").is_some(),
        }));
    // kernel/rcu/tree_stall.h, tree_exp.h. The older wording and the expedited one name the core in the same line: `{ 3-... }`.
    "rcu-stall" Stall ["INFO: rcu"]
        r"INFO: (?P<f>rcu\w*) (?:self-detected stall on CPU|detected (?:expedited )?stalls on CPUs/tasks)(?:[: ]*\{ *(?P<cpu>\d+)[-} ])?"
        => |m| Some(Event::Stall(StallEvent::Rcu { flavour: m.owned("f")?, core: m.number("cpu") }));
    "rcu-core" Stall ["this GP)", "GPs behind)"]
        r"^(?:rcu:)?\s+(?P<cpu>\d+)-\S{2,8}: \("
        => |m| Some(Event::Stall(StallEvent::RcuCore { core: m.number("cpu")? }));
    "rcu-thread" Stall ["kthread starved for"]
        r"rcu\w* kthread starved for (?P<j>\d+) jiffies"
        => |m| Some(Event::Stall(StallEvent::RcuThreadStarved { jiffies: m.number("j")? }));
    // kernel/workqueue.c: wq_cpu_intensive_report
    "workqueue" Stall ["hogged CPU for >"]
        r"workqueue: (?P<fn>\S+)(?: \[\S+\])? hogged CPU for >(?P<us>\d+)us (?P<n>\d+) times"
        => |m| Some(Event::Stall(StallEvent::WorkqueueHog {
            function: m.owned("fn")?,
            micros: m.number("us")?,
            times: m.number("n")?,
        }));

    // mm/oom_kill.c
    "oom-summary" Oom ["oom-kill:constraint="]
        r"oom-kill:constraint=(?P<c>CONSTRAINT_\w+),.*?(?:,global_oom|,oom_memcg=(?P<limit>.*?))?(?:,task_memcg=(?P<cgroup>.*?))?,task=(?P<comm>.*),pid=(?P<pid>\d+),uid="
        => |m| {
            let of_cgroup = m.text("limit").is_some() || m.text("c") == Some("CONSTRAINT_MEMCG");
            Some(Event::Oom(OomEvent::Summary {
                scope: if of_cgroup { OomScope::Cgroup } else { OomScope::Node },
                pid: m.number("pid")?,
                comm: m.owned("comm")?,
                limit_of: m.owned("limit"),
                cgroup: m.owned("cgroup"),
            }))
        };
    "oom-killed" Oom ["Killed process", "Kill process"]
        r"(?:(?P<cgroup>Memory cgroup out of memory)|(?P<node>Out of memory)|^)(?:[^:]*: )?Kill(?:ed)? process (?P<pid>\d+) \((?P<comm>.+?)\)(?:,.*| total-vm:.*| score .*|$)"
        => |m| {
            let scope = match (m.text("cgroup"), m.text("node")) {
                (Some(_), _) => Some(OomScope::Cgroup),
                (_, Some(_)) => Some(OomScope::Node),
                _ => None,
            };
            let anon_rss_kb = m.line.split_once("anon-rss:").and_then(|(_, rest)| rest.split_once("kB")?.0.parse().ok());
            Some(Event::Oom(OomEvent::Killed { scope, pid: m.number("pid")?, comm: m.owned("comm")?, anon_rss_kb }))
        };
    "oom-limit" Oom ["killed as a result of limit of"]
        r"Task in (?P<cgroup>.+) killed as a result of limit of (?P<limit>.+)$"
        => |m| Some(Event::Oom(OomEvent::LimitOf { cgroup: m.owned("cgroup")?, limit_of: m.owned("limit")? }));

    "xid" Xid ["NVRM: Xid"]
        r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d+)(?:, pid='?(?P<pid>[^,' ]+)'?)?(?:, name=(?P<n>[^,]+))?(?:, (?P<msg>.*))?"
        => |m| Some(Event::Xid(XidEvent {
            bus: m.text("pci")?.to_ascii_lowercase(),
            xid: m.number("xid")?,
            pid: m.number("pid"),
            process: m.owned("n").filter(|n| !n.contains("unknown")),
            message: m.owned("msg").unwrap_or_default(),
        }));

    // net/netfilter/nf_conntrack_core.c; rate-limited, so lines are fewer than packets.
    "conntrack" Conntrack ["table full"]
        r"nf_conntrack: (?:nf_conntrack: )?table full(?: in netns (?P<ns>\d+))?, dropping packet"
        => |m| Some(Event::ConntrackFull { netns: m.owned("ns") });
}

/// The event of this family that a kernel line stands for.
pub fn parse(line: &str, family: Family) -> Option<Event> {
    if !family.words().is_match(line) {
        return None;
    }
    PATTERNS
        .iter()
        .filter(|p| p.family == family && p.words.iter().any(|w| line.contains(w)))
        .find_map(|p| (p.read)(&Matched { line, captures: p.regex.captures(line)? }))
}

struct Matched<'l> {
    line: &'l str,
    captures: Captures<'l>,
}

impl<'l> Matched<'l> {
    fn text(&self, name: &str) -> Option<&'l str> {
        self.captures.name(name).map(|m| m.as_str())
    }

    fn owned(&self, name: &str) -> Option<String> {
        self.text(name).map(str::to_owned)
    }

    fn number<N: FromStr>(&self, name: &str) -> Option<N> {
        self.text(name)?.parse().ok()
    }

    /// What stands before the match. dev_err prints `driver bus: `, netdev_err `driver bus name: ` or, without a parent
    /// device, `name: ` (net/core/dev.c __netdev_printk).
    fn device(&self) -> Device {
        let start = self.captures.get(0).map_or(0, |m| m.start());
        let prefix = self.line[..start].trim_end();
        // Some drivers put words between prefix and match: `mlx5_core 0000:06:00.0 eth0: mlx5e_tx…: `.
        let prefix = prefix.split_once(": ").map_or(prefix, |(first, _)| first);
        let parts: Vec<&str> = prefix.trim_end_matches(':').split(' ').filter(|p| !p.starts_with('(')).collect();
        let owned = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        match parts.as_slice() {
            [interface] => Device { interface: owned(interface), ..Device::default() },
            [driver, bus] => Device { driver: owned(driver), bus: owned(bus), interface: None },
            [driver, bus, interface, ..] => {
                Device { driver: owned(driver), bus: owned(bus), interface: owned(interface) }
            }
            [] => Device::default(),
        }
    }

    fn driver_is(&self, driver: &str) -> bool {
        self.device().driver.as_deref() == Some(driver)
    }
}

#[cfg(test)]
pub(crate) mod tests;
