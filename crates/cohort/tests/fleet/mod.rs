//! Simulated fleets with a known cause.
#![allow(dead_code, reason = "each test program uses a part")]

use coroner_cohort::{Attributes, Explanation, Life, NodeRow, Population};
use std::collections::BTreeMap;

/// Splitmix64: the same fleets on every machine.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to 1.
    pub fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn chance(&mut self, p: f64) -> bool {
        self.share() < p
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.share()
    }

    /// A small number is likelier than a large one, as with images and kernels of a fleet.
    pub fn skewed(&mut self, n: usize) -> usize {
        ((self.share() * self.share().sqrt() * n as f64) as usize).min(n - 1)
    }

    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }
}

pub struct Fleet {
    pub rng: Rng,
    pub nodes: Vec<NodeRow>,
}

impl Fleet {
    /// A fleet in which attributes depend on each other as they do in real ones: zones have their images, images their kernels, and some
    /// zones have older nodes.
    pub fn new(seed: u64, size: usize) -> Fleet {
        let mut rng = Rng(seed.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0xc0_47);
        let [images, kernels, types, zones] = [5, 4, 6, 4].map(|n| n + rng.below(4));
        let older = rng.below(zones);
        let mut nodes = Vec::with_capacity(size);
        for id in 0..size {
            let zone = rng.below(zones);
            let image = if rng.chance(0.5) { zone % images } else { rng.skewed(images) };
            let kernel = if rng.chance(0.6) { image % kernels } else { rng.skewed(kernels) };
            let instance = rng.skewed(types);
            let mut node = NodeRow { id: format!("i-{id:05}"), ..NodeRow::default() };
            let mut set = |name: &str, value: String| node.attributes.insert(name.to_owned(), value);
            set("host", format!("ip-10-0-{id}"));
            set("zone", format!("us-east-1{}", (b'a' + zone as u8) as char));
            set("region", ["us-east-1", "us-west-2"][zone % 2].to_owned());
            set("cluster", format!("c{}", if rng.chance(0.7) { zone } else { rng.below(zones * 2) }));
            set("image", format!("ami-{image}"));
            set("kernel", format!("5.{kernel}"));
            set("distribution", format!("ubuntu-{}", image / 2));
            set("systemd", format!("{}", 245 + if rng.chance(0.9) { image / 3 } else { rng.below(3) }));
            set("instance type", format!("m{instance}.large"));
            set("cores", format!("{}", 4 << (instance / 2)));
            set("cpu model", format!("xeon-{}", if rng.chance(0.8) { instance % 3 } else { rng.below(3) }));
            set("nic driver", format!("ena-{}", if rng.chance(0.7) { kernel % 3 } else { rng.below(3) }));
            set("gpu driver", ["none", "535", "550"][rng.skewed(3)].to_owned());
            set("runtime", format!("containerd-{}", rng.skewed(4)));
            set("kubelet", format!("1.{}", 28 + rng.skewed(5)));
            for agent in ["ecs", "datadog", "ssm", "falcon"] {
                set(&format!("agent {agent}"), ["none", "2.1", "2.2", "3.0"][rng.skewed(4)].to_owned());
            }
            set("team", format!("team-{}", rng.skewed(25)));
            set("rack", format!("r{}", rng.below(size / 12 + 2)));
            if rng.chance(0.9) {
                set("pool", format!("pool-{}", rng.below(8)));
            }
            node.up_hours = Some(rng.exponential(if zone == older { 480.0 } else { 240.0 }));
            nodes.push(node);
        }
        Fleet { rng, nodes }
    }

    pub fn has(&self, node: usize, attribute: &str, value: &str) -> bool {
        self.nodes[node].attributes.get(attribute).is_some_and(|v| v == value)
    }

    /// Give the attribute's value to this share of the nodes, and another value of it to nobody else.
    pub fn plant(&mut self, attribute: &str, value: &str, share: f64) {
        for node in &mut self.nodes {
            if self.rng.chance(share) {
                node.attributes.insert(attribute.to_owned(), value.to_owned());
            }
        }
    }

    /// Decide who is sick, by the chance of each node.
    pub fn sicken(mut self, chance: impl Fn(&Fleet, usize) -> f64) -> Population {
        for node in 0..self.nodes.len() {
            let p = chance(&self, node);
            let sick = self.rng.chance(p);
            self.nodes[node].sick = (!self.rng.chance(0.01)).then_some(sick);
        }
        Population { nodes: self.nodes }
    }
}

pub fn attributes(pairs: &[(&str, &str)]) -> Attributes {
    pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect::<BTreeMap<_, _>>()
}

/// Whether the first cohort is this one, under this name or under one that cannot be told apart from it.
pub fn first_is(explanation: &Explanation, truth: &Attributes) -> bool {
    let Some(first) = explanation.cohorts.first() else { return false };
    !first.protective && (first.attributes == *truth || first.aliases.contains(truth))
}

/// Boots of a leaking node: sick after about `onset` hours, watched from hour `from` on.
pub fn leak(rng: &mut Rng, onset: f64, from: f64) -> Life {
    let hours = onset * rng.between(0.8, 1.4);
    Life { hours, onset: hours > from, entered_after_hours: from }
}
