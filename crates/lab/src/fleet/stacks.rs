//! What simulated nodes spend their CPU time on: the stacks of a training node, drawn anew for each node and time, and on sick nodes the
//! kernel's work that makes them so.

use super::story::Story;
use crate::draw::Draw;
use serde_json::{Value, json};

/// Folded stacks, each with its weight.
const USUAL: &str = include_str!("stacks.txt");
/// Samples that a core takes in a second.
const RATE: u64 = 49;
/// As many as real nodes send at most.
const MOST: usize = 100;
/// Functions of users' programs: a node runs some of them.
const PROGRAMS: u64 = 2000;
const OF_A_NODE: u64 = 40;

impl Story {
    /// The stack that sick nodes have and others hardly.
    pub fn stack(self) -> &'static str {
        match self {
            Story::ZombiesInOneImage => {
                "kubelet;runtime.goexit.abi0;github.com/google/cadvisor/manager.(*containerData).housekeeping;\
                 github.com/google/cadvisor/manager.(*containerData).updateStats;os.ReadFile;internal/runtime/syscall.Syscall6;\
                 entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k];ksys_read_[k];vfs_read_[k];seq_read_[k];\
                 cgroup_seqfile_show_[k];memcg_stat_show_[k];mem_cgroup_nr_lru_pages_[k]"
            }
            Story::BadNicDriver => {
                "kworker;ret_from_fork_[k];kthread_[k];worker_thread_[k];process_one_work_[k];vmxnet3_reset_work_[k];\
                 vmxnet3_activate_dev_[k];vmxnet3_rq_init_[k]"
            }
            Story::KernelRegression => {
                "kworker;ret_from_fork_[k];kthread_[k];worker_thread_[k];process_one_work_[k];css_free_rwork_fn_[k];\
                 mem_cgroup_css_free_[k];native_queued_spin_lock_slowpath_[k]"
            }
            Story::HotZone | Story::Nothing => {
                "swapper;secondary_startup_64_no_verify_[k];start_secondary_[k];cpu_startup_entry_[k];do_idle_[k];\
                 asm_sysvec_apic_timer_interrupt_[k];hrtimer_interrupt_[k];sched_cfs_period_timer_[k];distribute_cfs_runtime_[k];\
                 tg_unthrottle_up_[k]"
            }
            Story::CrashingAgent => {
                "agent;_start;entry_SYSCALL_64_after_hwframe_[k];do_syscall_64_[k];__x64_sys_execve_[k];bprm_execve_[k];\
                 load_elf_binary_[k];elf_map_[k]"
            }
            Story::KernelOnOneType => {
                "swapper;secondary_startup_64_no_verify_[k];start_secondary_[k];cpu_startup_entry_[k];do_idle_[k];\
                 asm_common_interrupt_[k];common_interrupt_[k];handle_edge_irq_[k];handle_irq_event_[k];nvme_irq_[k]"
            }
        }
    }

    /// The function in which it ends.
    pub fn function(self) -> &'static str {
        self.stack().rsplit(';').next().unwrap_or_default()
    }
}

/// Ten minutes of a node. `percent`: how much of its time the story's stack takes, in hundredths of a percent.
pub fn row(story: Story, draw: &mut Draw, node: u32, cores: u64, percent: u64, (from, until): (u64, u64)) -> Value {
    let mut stacks: Vec<(String, u64)> = Vec::new();
    // What this node runs stays the same, whenever it is asked.
    let mut own = Draw::new(u64::from(node).wrapping_mul(0x5851_f42d_4c95_7f2d));
    for line in USUAL.lines().filter(|line| !line.starts_with('#')) {
        let Some((stack, weight)) = line.rsplit_once(' ') else { continue };
        let weight = weight.parse().unwrap_or(0) * own.number(40, 160) * draw.number(60, 140);
        if own.number(1, 10) > 1 {
            stacks.push((stack.to_owned(), weight / 100));
        }
    }
    for _ in 0..OF_A_NODE {
        let program = own.number(0, PROGRAMS);
        let stack = format!(
            "python3;main;Py_BytesMain;Py_RunMain;_PyEval_EvalFrameDefault;module_{}.step_{program}",
            program % 50
        );
        stacks.push((stack, own.number(5, 60) * draw.number(60, 140)));
    }
    let busy = draw.number(20, 70);
    let samples = 600 * RATE * cores * busy / 100;
    let usual: u64 = stacks.iter().map(|(_, weight)| weight).sum();
    let of_story = samples * percent / 10_000;
    let of =
        |weight: u64| u64::try_from(u128::from(samples - of_story) * u128::from(weight) / u128::from(usual.max(1)));
    let mut told: Vec<(String, u64)> =
        stacks.into_iter().map(|(stack, weight)| (stack, of(weight).unwrap_or(0))).collect();
    told.push((story.stack().to_owned(), of_story));
    told.retain(|(_, samples)| *samples > 0);
    told.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    told.truncate(MOST);
    told.sort();
    let told: Vec<Value> =
        told.into_iter().map(|(stack, samples)| json!({"stack": stack, "samples": samples})).collect();
    json!({"kind": "stacks", "from": from, "until": until, "samples": samples, "stacks": told})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sick_nodes_have_the_storys_function_and_shares_fit() {
        for story in Story::ALL {
            let row = row(story, &mut Draw::new(3), 7, 96, 1200, (1, 2));
            let stacks = row["stacks"].as_array().unwrap();
            let samples = |stack: &Value| stack["samples"].as_u64().unwrap();
            let all = row["samples"].as_u64().unwrap();
            assert!(stacks.len() > 60 && stacks.len() <= MOST, "{}", stacks.len());
            let listed: u64 = stacks.iter().map(samples).sum();
            assert!(listed <= all && listed > all * 9 / 10, "{listed} of {all}");
            let of_story = stacks.iter().find(|stack| stack["stack"].as_str().unwrap().ends_with(story.function()));
            let share = samples(of_story.unwrap()) as f64 / all as f64;
            assert!((0.119..0.121).contains(&share), "{}: {share}", story.name());
            let longest = stacks.iter().map(|stack| stack["stack"].as_str().unwrap().len()).max().unwrap();
            assert!(longest < 1000, "{longest}");
        }
    }
}
