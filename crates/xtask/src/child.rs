//! Children that end with us.

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

/// On drop it gets the signal, unless it ended by itself, and is waited for.
pub struct Ended {
    pub child: Child,
    signal: Signal,
}

impl Ended {
    pub fn by(signal: Signal, child: Child) -> Ended {
        Ended { child, signal }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self) {
        let _ = kill_process(Pid::from_child(&self.child), self.signal);
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.signal();
            let _ = self.child.wait();
        }
    }
}

/// It gets SIGTERM even if we are killed.
pub fn ends_with_us(command: &mut Command) -> &mut Command {
    // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) }
}
