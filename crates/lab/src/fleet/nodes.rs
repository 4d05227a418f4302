//! The nodes of a simulated fleet: what they are, when they boot, when they fall sick, and what they send.

use super::stacks;
use super::story::Story;
use crate::draw::Draw;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;
/// Time between two diagnoses in history.
const DIAGNOSED_EVERY: u64 = 2 * HOUR;
/// Time between two rows of stacks.
const STACKS_EVERY: u64 = 600;
/// Rows in a batch: what a node sends together.
const ROWS_IN_BATCH: usize = 400;

const ZONES: [&str; 4] = ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d"];
const KERNELS: [&str; 4] = ["5.4.0-216-generic", "5.15.0-130-generic", "6.1.0-31-cloud", "6.8.0-52-generic"];
/// With cores, memory, CPU and NIC driver.
const TYPES: [(&str, u32, u32, &str, &str); 4] = [
    ("p4d.24xlarge", 96, 1152, "Xeon Platinum 8275CL", "ena"),
    ("p5.48xlarge", 192, 2048, "EPYC 7R13", "ena"),
    ("g5.12xlarge", 48, 192, "EPYC 7R32", "ixgbevf"),
    ("v100-onprem", 40, 256, "Xeon Gold 6248", "vmxnet3"),
];

pub struct Fleet {
    pub story: Story,
    pub seed: u64,
    pub nodes: Vec<SimulatedNode>,
    /// The attributes that make nodes sick; none if nothing does.
    pub cause: BTreeMap<&'static str, String>,
    /// Attributes that pick the same nodes.
    pub aliases: Vec<BTreeMap<&'static str, String>>,
}

#[derive(Debug, Clone)]
pub struct SimulatedNode {
    number: u32,
    story: Story,
    draw: Draw,
    attributes: BTreeMap<&'static str, String>,
    /// More of them, which cause nothing.
    labels: BTreeMap<String, String>,
    cluster: String,
    /// Oldest first.
    boots: Vec<Boot>,
    /// Says nothing after this.
    silent_after: Option<u64>,
    /// How much its clock is ahead.
    skew: i64,
    /// History and live reports are streams of their own.
    stream: &'static str,
    sequence: u64,
    repeats: bool,
    /// New dead cgroups per hour.
    leak: f64,
    /// How much of its time the story's stack takes while it is sick, in hundredths of a percent.
    hurts: u64,
}

#[derive(Debug, Clone)]
struct Boot {
    at: u64,
    ends: u64,
    sick_from: Option<u64>,
}

/// What of its history a node sends.
#[derive(Debug, Clone, Copy)]
pub struct Spared {
    /// One minute in so many; the last hour is sent whole.
    pub one_minute_in: u32,
    /// Stacks of the last so many seconds.
    pub stacks_s: u64,
}

/// The body of one request.
pub struct Body {
    pub key: String,
    pub text: String,
    pub rows: u64,
    /// Send it twice.
    pub repeated: bool,
}

fn percent(draw: &mut Draw, percent: u64) -> bool {
    draw.number(1, 100) <= percent
}

impl Fleet {
    pub fn draw(story: Story, count: u32, seed: u64, now: u64, span: u64) -> Fleet {
        let mut draw = Draw::new(seed);
        let images: Vec<String> = (0..5).map(|_| format!("ami-0{}{}", draw.tag(), draw.tag())).collect();
        // In half of the fleets one cluster is all of an image, a planted alias.
        let has_alias = story == Story::ZombiesInOneImage && percent(&mut draw, 50);
        let (sick_percent, background) = (draw.number(40, 90), draw.number(0, 10));
        let bad_zone = ZONES[draw.number(0, 3) as usize];
        let cause: BTreeMap<&'static str, String> = match story {
            Story::ZombiesInOneImage => [("image_id", images[0].clone())].into(),
            Story::BadNicDriver => [("nic_driver", "vmxnet3".to_owned())].into(),
            Story::KernelRegression => [("kernel", KERNELS[0].to_owned())].into(),
            Story::HotZone => [("zone", bad_zone.to_owned())].into(),
            Story::CrashingAgent => [("agent:ecs", "enabled".to_owned())].into(),
            Story::KernelOnOneType => {
                [("kernel", KERNELS[1].to_owned()), ("instance_type", TYPES[1].0.to_owned())].into()
            }
            Story::Nothing => BTreeMap::new(),
        };
        let aliases = match story {
            Story::ZombiesInOneImage if has_alias => vec![[("cluster", "pc-a".to_owned())].into()],
            // One instance type has this driver, and with it its cores, memory and CPU.
            Story::BadNicDriver => {
                let (name, cores, memory, cpu, _) = TYPES[3];
                let same = [
                    ("instance_type", name.to_owned()),
                    ("cores", cores.to_string()),
                    ("memory_gib", memory.to_string()),
                    ("cpu_model", cpu.to_owned()),
                ];
                same.into_iter().map(|(attribute, value)| [(attribute, value)].into()).collect()
            }
            _ => Vec::new(),
        };
        let nodes = (0..count).map(|number| {
            let mut draw = Draw::new(seed.wrapping_mul(1_000_003).wrapping_add(u64::from(number)));
            let zone = ZONES[draw.number(0, 3) as usize];
            let (instance, cores, memory, cpu, driver) = TYPES[draw.number(0, 3) as usize];
            let image = &images[draw.number(0, 4) as usize];
            // The bad kernel is mostly, not only, in the first zone: a confounder.
            let favours = story == Story::KernelRegression && zone == ZONES[0] && percent(&mut draw, 60);
            let kernel = if favours { KERNELS[0] } else { KERNELS[draw.number(0, 3) as usize] };
            let cluster = match (has_alias, *image == images[0]) {
                (true, true) => "pc-a".to_owned(),
                (true, false) => format!("pc-{}", ["b", "c"][draw.number(0, 1) as usize]),
                (false, _) => format!("pc-{}", ["a", "b", "c"][draw.number(0, 2) as usize]),
            };
            // In the image that leaks it has no work.
            let is_unused = story == Story::ZombiesInOneImage && *image == images[0];
            let has_agent = *image == images[1] || *image == images[2] || is_unused;
            let agent = if has_agent {
                "enabled"
            } else if *image == images[3] {
                "disabled"
            } else {
                "none"
            };
            let mut attributes: BTreeMap<&'static str, String> = [
                ("zone", zone.to_owned()),
                ("instance_type", instance.to_owned()),
                ("image_id", image.clone()),
                ("kernel", kernel.to_owned()),
                ("cores", cores.to_string()),
                ("memory_gib", memory.to_string()),
                ("cpu_model", cpu.to_owned()),
                ("nic_driver", driver.to_owned()),
                (
                    "cgroup_version",
                    if kernel.starts_with("5.4") { "v1" } else { ["v1", "v2"][draw.number(0, 1) as usize] }.to_owned(),
                ),
                ("agent:ecs", agent.to_owned()),
                ("os", ["Ubuntu 20.04", "Ubuntu 22.04", "Debian 12"][draw.number(0, 2) as usize].to_owned()),
            ]
            .into();
            if is_unused {
                attributes.insert("agent_unused:ecs", "ecs.service".to_owned());
            }
            let is_exposed = !cause.is_empty() && cause.iter().all(|(name, value)| attributes.get(name) == Some(value));
            let risk = match (story, is_exposed) {
                (Story::Nothing, _) => 8,
                (_, true) => sick_percent,
                (_, false) => 0,
            };
            let boots = boots(&mut draw, story, risk, background, now, span);
            let leaks = story == Story::ZombiesInOneImage && is_exposed;
            SimulatedNode {
                number,
                story,
                attributes,
                labels: BTreeMap::new(),
                cluster,
                silent_after: percent(&mut draw, 2).then(|| now - draw.number(HOUR, span.max(HOUR + 1))),
                skew: draw.number(0, 120) as i64 - 60,
                stream: "history",
                sequence: 0,
                repeats: percent(&mut draw, 5),
                leak: if leaks { draw.number(200, 600) as f64 } else { draw.number(0, 3) as f64 },
                hurts: Draw::new(seed ^ u64::from(number)).number(300, 2500),
                boots,
                draw,
            }
        });
        let nodes = nodes.collect();
        Fleet { story, seed, nodes, cause, aliases }
    }
}

impl Fleet {
    /// Gives each node so many labels, each with one of two to forty values.
    pub fn label(&mut self, labels: u32) {
        for node in &mut self.nodes {
            let mut draw = Draw::new(self.seed ^ (u64::from(node.number) << 32) ^ u64::from(labels));
            let label = |n: u32| (format!("label-{n:02}"), format!("value-{}", draw.number(0, u64::from(n % 39) + 1)));
            node.labels = (0..labels).map(label).collect();
        }
    }
}

/// Lives of some days each. A leak hurts after days; other troubles come at any time.
fn boots(draw: &mut Draw, story: Story, risk: u64, background: u64, now: u64, span: u64) -> Vec<Boot> {
    let mut boots: Vec<Boot> = Vec::new();
    let risk_strikes = story == Story::Nothing && percent(draw, risk);
    let mut at = now - span - draw.number(0, 10 * DAY);
    while at < now {
        let ends = (at + draw.number(2 * DAY, 20 * DAY)).min(now);
        let by_cause = percent(draw, risk);
        let by_chance = draw.number(1, 1000) <= background;
        let after = match story {
            Story::ZombiesInOneImage if by_cause => draw.number(4 * DAY, 7 * DAY),
            _ => draw.number(HOUR, 2 * DAY),
        };
        let sick_from = (by_cause || by_chance).then_some(at + after).filter(|from| *from < ends);
        boots.push(Boot { at, ends, sick_from });
        at = ends + draw.number(60, 600);
    }
    if story == Story::Nothing {
        // At any time alike. Soon after a boot, it would strike those more often that boot more often: no fleet without a difference.
        let from = draw.number(now - span, now);
        for boot in &mut boots {
            boot.sick_from = Some(from).filter(|from| risk_strikes && (boot.at..boot.ends).contains(from));
        }
    }
    boots
}

impl SimulatedNode {
    pub fn is_sick(&self) -> bool {
        self.boots.iter().any(|boot| boot.sick_from.is_some())
    }

    fn id(&self) -> String {
        format!("{:032x}", 0xf1ee_0000_0000_u64 + u64::from(self.number))
    }

    fn boot_id(&self, boot: &Boot) -> String {
        format!("boot-{}-{}", self.number, boot.at)
    }

    fn wall_ns(&self, at: u64) -> u64 {
        at.saturating_add_signed(self.skew) * 1_000_000_000
    }

    fn head(&mut self, boot_id: &str, at: u64) -> Value {
        self.sequence += 1;
        json!({"kind": "batch", "schema": "coroner.report/1", "node": self.id(), "stream": self.stream, "sequence": self.sequence,
            "boot_id": boot_id, "sealed": self.wall_ns(at), "version": "simulated", "dropped": {}})
    }

    fn identity(&self, boot: &Boot) -> Value {
        json!({"kind": "node", "schema": "coroner.node/1", "host": format!("sim-{:05}", self.number), "machine_id": self.id(),
            "boot_id": self.boot_id(boot), "booted": self.wall_ns(boot.at), "cluster": self.cluster, "labels": self.labels,
            "attributes": self.attributes})
    }

    fn minute_row(&mut self, boot: &Boot, at: u64) -> Value {
        let up_hours = at.saturating_sub(boot.at) as f64 / 3600.0;
        let dead = (self.leak * up_hours) as u64 + self.draw.number(0, 30);
        let live = 120 + self.draw.number(0, 40);
        let cores: u64 = self.attributes["cores"].parse().unwrap_or(2);
        let is_sick = boot.sick_from.is_some_and(|from| from <= at);
        let busy = self.draw.number(200, 700) as f64 / 1000.0;
        let worst = if is_sick { 0.95 } else { self.draw.number(50, 400) as f64 / 1000.0 };
        json!({"kind": "minute", "minute": self.wall_ns(at / 60 * 60), "cores": cores, "busy_mean": busy, "busy_max": (busy + 0.2f64).min(1.0),
            "worst_core": self.draw.number(0, cores - 1), "worst_core_system": worst, "by_core": [], "zombies_tracked": dead + live,
            "zombies_live": live, "zombies_dead": dead, "unit_restarts": self.draw.number(0, 1), "nic_resets": 0,
            "softnet_drops": self.draw.number(0, 3), "oom_kills": 0, "cpu_stall_us": self.draw.number(1000, 900_000),
            "memory_stall_us": self.draw.number(0, 9000), "io_stall_us": self.draw.number(0, 90_000), "samples": 2940 * cores,
            "lost_samples": 0, "starved_queues": u64::from(is_sick), "throttled_us": self.draw.number(0, 400_000),
            "direct_reclaim_pages": 0, "own_cpu_us": self.draw.number(200_000, 400_000)})
    }

    /// The ten minutes before `at`.
    fn stacks_row(&mut self, boot: &Boot, at: u64) -> Value {
        let is_sick = boot.sick_from.is_some_and(|from| from <= at);
        // A healthy node does a little of it, too.
        let percent = if is_sick { self.hurts } else { self.draw.number(0, 3) };
        let cores = self.attributes["cores"].parse().unwrap_or(2);
        let time = (self.wall_ns(at.saturating_sub(STACKS_EVERY)), self.wall_ns(at));
        stacks::row(self.story, &mut self.draw, self.number, cores, percent, time)
    }

    fn diagnosis(&self, boot: &Boot, problem: &Value, from: u64, until: u64) -> Value {
        let is_sick = boot.sick_from.is_some_and(|sick| sick <= until);
        let problems: Vec<&Value> = is_sick.then_some(problem).into_iter().collect();
        let conclusion = if is_sick { "cause found" } else { "nothing wrong" };
        json!({"kind": "diagnosis", "boot_id": self.boot_id(boot), "from_real_ns": self.wall_ns(from), "until_real_ns": self.wall_ns(until),
            "diagnoses": 1, "conclusion": conclusion, "problems": problems})
    }

    /// All that it would have sent in the span.
    pub fn history(&mut self, problem: &Value, now: u64, span: u64, spared: Spared) -> Body {
        let begin = now - span;
        let (mut text, mut rows) = (String::new(), 0);
        let until = self.silent_after.unwrap_or(now);
        for boot in self.boots.clone() {
            let (from, to) = (boot.at.max(begin), boot.ends.min(until));
            if from >= to {
                continue;
            }
            let mut lines = vec![self.identity(&boot)];
            let mut at = from / 60 * 60;
            let mut diagnosed = from;
            while at <= to {
                let is_recent = at + HOUR > now;
                lines.push(self.minute_row(&boot, at));
                // The first moments of a sickness are diagnosed at once, as a recorder does.
                let fell_sick = boot.sick_from.is_some_and(|sick| diagnosed < sick && sick <= at);
                if at >= diagnosed + DIAGNOSED_EVERY || fell_sick || at + 60 > to {
                    lines.push(self.diagnosis(&boot, problem, diagnosed, at));
                    diagnosed = at;
                }
                if lines.len() >= ROWS_IN_BATCH {
                    rows += lines.len() as u64;
                    self.seal(&boot, at, &mut lines, &mut text);
                }
                at += if is_recent { 60 } else { 60 * u64::from(spared.one_minute_in) };
            }
            let mut at = from.max(now.saturating_sub(spared.stacks_s)) / STACKS_EVERY * STACKS_EVERY + STACKS_EVERY;
            while at <= to {
                lines.push(self.stacks_row(&boot, at));
                at += STACKS_EVERY;
            }
            rows += lines.len() as u64;
            self.seal(&boot, to, &mut lines, &mut text);
        }
        Body { key: self.id(), text, rows, repeated: self.repeats }
    }

    fn seal(&mut self, boot: &Boot, at: u64, lines: &mut Vec<Value>, text: &mut String) {
        let head = self.head(&self.boot_id(boot), at);
        for line in std::iter::once(head).chain(lines.drain(..)) {
            text.push_str(&line.to_string());
            text.push('\n');
        }
    }

    /// What it sends in one minute; `None` if it is silent.
    pub fn minute(&mut self, problem: &Value, now: u64, minute: u64) -> Option<Body> {
        if self.silent_after.is_some() {
            return None;
        }
        self.stream = "live";
        let boot = self.boots.last()?.clone();
        let mut lines = vec![self.minute_row(&boot, now)];
        if minute.is_multiple_of(3) {
            lines.push(self.diagnosis(&boot, problem, now - 180, now));
        }
        if (minute + u64::from(self.number)).is_multiple_of(STACKS_EVERY / 60) {
            lines.push(self.stacks_row(&boot, now));
        }
        let (mut text, rows) = (String::new(), lines.len() as u64);
        self.seal(&boot, now, &mut lines, &mut text);
        Some(Body { key: self.id(), text, rows, repeated: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000;
    const SPARED: Spared = Spared { one_minute_in: 60, stacks_s: HOUR };

    #[test]
    fn the_same_seed_draws_the_same_fleet() {
        let bodies = |seed| {
            let mut fleet = Fleet::draw(Story::ZombiesInOneImage, 20, seed, NOW, 7 * DAY);
            let problem = json!({"code": "zombie-memcgs"});
            fleet.nodes.iter_mut().map(|node| node.history(&problem, NOW, 7 * DAY, SPARED).text).collect::<String>()
        };
        assert_eq!(bodies(7), bodies(7));
        assert_ne!(bodies(7), bodies(8));
    }

    #[test]
    fn the_cause_makes_sick_and_a_planted_alias_is_the_same_nodes() {
        for seed in 0..10 {
            let fleet = Fleet::draw(Story::ZombiesInOneImage, 600, seed, NOW, 7 * DAY);
            let has = |node: &SimulatedNode| node.attributes["image_id"] == fleet.cause["image_id"];
            let share = |of: bool| {
                let group: Vec<_> = fleet.nodes.iter().filter(|node| has(node) == of).collect();
                group.iter().filter(|node| node.is_sick()).count() as f64 / group.len() as f64
            };
            assert!(share(true) > 0.2 && share(false) < 0.06, "{seed}: {} {}", share(true), share(false));
            if !fleet.aliases.is_empty() {
                assert!(fleet.nodes.iter().all(|node| has(node) == (node.cluster == "pc-a")));
            }
        }
    }

    #[test]
    fn every_line_is_of_a_batch_in_order() {
        let mut fleet = Fleet::draw(Story::HotZone, 5, 3, NOW, 2 * DAY);
        let text = fleet.nodes[0].history(&json!({"code": "x"}), NOW, 2 * DAY, SPARED).text;
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["kind"], "batch");
        let sequences: Vec<u64> =
            lines.iter().filter(|l| l["kind"] == "batch").map(|l| l["sequence"].as_u64().unwrap()).collect();
        assert_eq!(sequences, (1..=sequences.len() as u64).collect::<Vec<_>>());
        assert!(lines.iter().filter(|line| line["kind"] == "stacks").count() <= 6);
        assert!(
            lines.iter().any(|line| line["kind"] == "minute") && lines.iter().any(|line| line["kind"] == "diagnosis")
        );
    }
}
