//! Threads that burn user time.

use super::join_cgroup;
use crate::hierarchy::Hierarchy;
use crate::node;
use crate::syscalls::become_class;
use anyhow::{Context, Result};
use std::ffi::CString;
use std::hint::black_box;
use std::io::ErrorKind;
use std::path::Path;

pub fn spin(comm: &str, cores: &[u32], fifo: Option<i32>, join: Option<&Path>) -> Result<()> {
    name_this_thread(comm)?;
    if let Some(dir) = join {
        join_cgroup(dir)?;
    }
    let (first, rest) = cores.split_first().map_or((None, cores), |(first, rest)| (Some(first), rest));
    for &core in rest {
        let comm = comm.to_owned();
        std::thread::Builder::new().spawn(move || {
            if let Err(error) = name_this_thread(&comm).and_then(|()| node::pin(None, &[core])) {
                eprintln!("coroner-lab: {comm}: {error:#}");
                std::process::exit(1);
            }
            burn_for_ever();
        })?;
    }
    if let Some(&core) = first {
        node::pin(None, &[core])?;
    }
    if let Some(priority) = fifo {
        preempt_everyone(priority)?;
    }
    burn_for_ever()
}

/// With CONFIG_RT_GROUP_SCHED a child cpu cgroup has no real-time budget by default, and SCHED_FIFO fails there with EPERM
/// (sched_rt_can_attach and __sched_setscheduler in the kernel): the root cgroup has all of it.
fn preempt_everyone(priority: i32) -> Result<()> {
    let refused = match become_class(libc::SCHED_FIFO, priority) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => error,
        other => return other.context("cannot get SCHED_FIFO"),
    };
    let hierarchy = Hierarchy::with("cpu").with_context(|| format!("cannot get SCHED_FIFO: {refused}"))?;
    join_cgroup(&hierarchy.mount_point)?;
    become_class(libc::SCHED_FIFO, priority)
        .context("cannot get SCHED_FIFO, not even in the root of the cpu hierarchy: is this a container?")
}

fn burn_for_ever() -> ! {
    let mut x = 1u64;
    loop {
        x = black_box(x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    }
}

pub(super) fn name_this_thread(comm: &str) -> Result<()> {
    let name = CString::new(comm).context("a thread name must not contain a NUL byte")?;
    rustix::thread::set_name(&name).with_context(|| format!("cannot name a thread {comm}"))
}
