//! Which processes observe: this one, and others that run the same program, such as a recorder beside a diagnosis.
//!
//! A name proves nothing: anybody may call a process `coroner`. A child proves nothing either: a recorder starts the hooks that its
//! configuration names. So another process counts only if it runs the very file that we run.

use super::files::{ProcDir, TaskPath};
use super::stat::parse_u64;

#[derive(Debug, Default)]
pub struct Ourselves {
    /// As this /proc numbers it.
    pid: Option<u32>,
    /// Device and inode of the program file.
    program: Option<(u64, u64)>,
    /// Only processes with the same name are looked at more closely.
    comm: String,
}

impl Ourselves {
    /// `live`: the tree shows the running node.
    pub fn of(proc: &ProcDir, live: bool) -> Ourselves {
        if !live {
            return Ourselves::default();
        }
        let mut link = [0; 512];
        let pid = proc.read_link(&TaskPath::named("self"), &mut link).and_then(parse_u64);
        let pid = pid.and_then(|pid| u32::try_from(pid).ok());
        let mut space = [0; 64];
        let comm = pid.and_then(|pid| proc.read_once(&TaskPath::of_process(pid, "comm"), &mut space).ok());
        Ourselves {
            pid,
            program: pid.and_then(|pid| proc.file_id(&TaskPath::of_process(pid, "exe"))),
            comm: String::from_utf8_lossy(comm.unwrap_or_default()).trim_end().to_owned(),
        }
    }

    pub fn includes(&self, proc: &ProcDir, pid: u32, comm: &str) -> bool {
        if self.pid == Some(pid) {
            return true;
        }
        self.program.is_some() && comm == self.comm && proc.file_id(&TaskPath::of_process(pid, "exe")) == self.program
    }
}
