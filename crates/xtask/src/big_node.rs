//! Generated files of a node with many cores, because this machine has few.

use std::fmt::Write;
use std::fs;
use std::path::Path;

pub fn write(root: &Path, cores: u32, interrupts: u32) -> anyhow::Result<()> {
    let proc = root.join("proc");
    fs::create_dir_all(proc.join("net"))?;
    fs::create_dir_all(proc.join("pressure"))?;
    fs::write(proc.join("stat"), stat(cores, interrupts))?;
    fs::write(
        proc.join("interrupts"),
        per_core_table(cores, (0..interrupts).map(|i| i.to_string()), "PCI-MSI eth0-Tx-Rx"),
    )?;
    let softirqs = ["HI", "TIMER", "NET_TX", "NET_RX", "BLOCK", "IRQ_POLL", "TASKLET", "SCHED", "HRTIMER", "RCU"];
    fs::write(proc.join("softirqs"), per_core_table(cores, softirqs.iter().map(|s| s.to_string()), ""))?;
    fs::write(proc.join("net/softnet_stat"), softnet(cores))?;
    for file in ["vmstat", "meminfo", "cgroups", "pressure/cpu", "pressure/memory", "pressure/io"] {
        // These do not grow with cores: copy the live node's.
        if let Ok(bytes) = fs::read(Path::new("/proc").join(file)) {
            fs::write(proc.join(file), bytes)?;
        }
    }
    Ok(())
}

fn stat(cores: u32, interrupts: u32) -> String {
    let mut text = String::from("cpu  1000 0 1000 100000 0 0 0 0 0 0\n");
    for core in 0..cores {
        let _ = writeln!(text, "cpu{core} 123456{core} 0 98765{core} 987654321 4321 0 1234 56 0 0");
    }
    text.push_str("intr 123456789");
    for i in 0..interrupts {
        let _ = write!(text, " {i}");
    }
    text.push_str("\nctxt 123456789\nbtime 1700000000\nprocesses 1234\nprocs_running 2\nprocs_blocked 0\n");
    text
}

fn per_core_table(cores: u32, labels: impl Iterator<Item = String>, tail: &str) -> String {
    let mut text = String::from("     ");
    for core in 0..cores {
        let _ = write!(text, "{:>11}", format!("CPU{core}"));
    }
    text.push('\n');
    for (row, label) in labels.enumerate() {
        let _ = write!(text, "{label:>4}:");
        for core in 0..cores {
            let _ = write!(text, " {:>10}", (row as u32 + core) % 7 * 1000);
        }
        let _ = writeln!(text, "  {tail}");
    }
    text
}

fn softnet(cores: u32) -> String {
    (0..cores)
        .map(|core| format!("{:08x} {}{core:08x} 00000000 00000000\n", 4096 + core, "00000000 ".repeat(11)))
        .collect()
}
