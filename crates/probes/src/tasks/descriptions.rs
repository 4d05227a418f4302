//! Reads what processes run, on a separate thread.
//!
//! `cmdline` and `environ` are read from the process's memory (fs/proc/base.c, access_remote_vm) under its mmap lock. On a sick
//! node
//! that lock may be held for minutes, and a plain read hangs, as `ps` does. So reads happen on a thread that can be abandoned.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use coroner_evidence::RayProcess;
use rustix::io::Errno;

use super::command::command_of;
use super::files::{ProcDir, TaskPath};
use super::ray::{self, RayEnvironment, RayRole};
use super::stat::parse_stat;

/// How long a blocked read may delay the look.
const PATIENCE: Duration = Duration::from_millis(250);
/// How many readers may hang at a time; each holds a thread.
const MAX_LEFT_BEHIND: usize = 3;
/// The script is near the start of the command line.
const MAX_CMDLINE: usize = 64 << 10;

#[derive(Debug, Clone, Default)]
pub struct Request {
    pub pid: u32,
    /// The known environment; `None` to read it if the process looks like Ray's.
    pub environment: Option<RayEnvironment>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Description {
    pub command: Option<String>,
    pub ray: Option<RayProcess>,
    /// Passed back in the next request, so that the environment is read only once.
    pub environment: Option<RayEnvironment>,
    /// It looks like a Ray process, but its environment may not be read.
    pub environment_denied: bool,
    /// The read hangs.
    pub stuck: bool,
}

#[derive(Debug, Default)]
pub struct Describer {
    reader: Option<Reader>,
    /// Hanging readers. One that comes back ends and is dropped from here.
    left_behind: Vec<Weak<Shared>>,
}

#[derive(Debug)]
struct Reader {
    batches: Sender<Vec<Request>>,
    done: Receiver<()>,
    shared: Arc<Shared>,
}

/// Shared with the reader thread.
#[derive(Debug, Default)]
struct Shared {
    descriptions: Mutex<Vec<Description>>,
    /// The thread's id, to check whether it is blocked or only waits for a core. 0 until it runs.
    tid: AtomicI32,
}

impl Describer {
    /// One description per request, in order.
    pub fn describe(&mut self, proc: &ProcDir, requests: &[Request]) -> Vec<Description> {
        let stuck = Description { stuck: true, ..Description::default() };
        self.left_behind.retain(|reader| reader.strong_count() > 0);
        let mut descriptions = Vec::with_capacity(requests.len());
        while descriptions.len() < requests.len() {
            if self.reader.is_none() && self.left_behind.len() < MAX_LEFT_BEHIND {
                self.reader = Reader::start(proc).ok();
            }
            let Some(reader) = &self.reader else {
                // Too many hang already, or no thread could be started.
                descriptions.resize(requests.len(), stuck);
                break;
            };
            if !reader.collect(requests[descriptions.len()..].to_vec(), &mut descriptions) {
                self.left_behind.push(Arc::downgrade(&reader.shared));
                self.reader = None;
                descriptions.push(stuck.clone());
            }
        }
        descriptions.truncate(requests.len());
        descriptions
    }
}

impl Reader {
    fn start(proc: &ProcDir) -> std::io::Result<Reader> {
        let proc = proc.try_clone()?;
        let (batches, incoming) = channel::<Vec<Request>>();
        let (finished, done) = channel();
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("proc-reader".to_owned()).stack_size(256 << 10).spawn(move || {
            theirs.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
            let mut buffer = Vec::new();
            for batch in incoming {
                for request in batch {
                    let description = describe(&proc, request, &mut buffer);
                    theirs.lock().push(description);
                    // We were abandoned; nobody waits for the rest.
                    if Arc::strong_count(&theirs) == 1 {
                        return;
                    }
                }
                if finished.send(()).is_err() {
                    break;
                }
            }
        })?;
        Ok(Reader { batches, done, shared })
    }

    /// False if the reader hangs at the next description.
    fn collect(&self, batch: Vec<Request>, into: &mut Vec<Description>) -> bool {
        if self.batches.send(batch).is_err() {
            return false;
        }
        let mut progress = 0;
        let whole = loop {
            match self.done.recv_timeout(PATIENCE) {
                Ok(()) => break true,
                Err(RecvTimeoutError::Disconnected) => break false,
                Err(RecvTimeoutError::Timeout) => {
                    let blocked = self.shared.is_blocked();
                    let described = self.shared.lock().len();
                    if described == progress && blocked {
                        // It may have just finished and be idle.
                        break self.done.try_recv().is_ok();
                    }
                    progress = described;
                }
            }
        };
        into.append(&mut self.shared.lock());
        whole
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<Description>> {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the thread is blocked, as opposed to waiting for a core, which is not the fault of the process it reads.
    fn is_blocked(&self) -> bool {
        let tid = self.tid.load(Ordering::Relaxed);
        if tid == 0 {
            return false;
        }
        let stat = std::fs::read(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
        !matches!(parse_stat(&stat), Ok(stat) if stat.state == b'R')
    }
}

fn describe(proc: &ProcDir, request: Request, buffer: &mut Vec<u8>) -> Description {
    let mut description = Description { environment: request.environment, ..Description::default() };
    let pid = request.pid;
    if proc.read_all(&TaskPath::of_process(pid, "cmdline"), MAX_CMDLINE, buffer).is_err() {
        return description;
    }
    description.command = command_of(buffer);
    forget(buffer);
    let Some(command) = &description.command else { return description };
    let role = ray::role(command);
    if role == RayRole::No {
        return description;
    }
    if description.environment.is_none() {
        match proc.read_all(&TaskPath::of_process(pid, "environ"), ray::MAX_ENVIRONMENT, buffer) {
            Ok(()) => description.environment = Some(ray::parse_environment(buffer)),
            Err(Errno::ACCESS | Errno::PERM) => description.environment_denied = role == RayRole::Worker,
            Err(_) => {}
        }
        forget(buffer);
    }
    let nothing = RayEnvironment::default();
    let environment = description.environment.as_ref().unwrap_or(&nothing);
    description.ray = ray::ray_process(proc, pid, command, environment);
    description
}

/// Erases other processes' data from our memory.
fn forget(buffer: &mut Vec<u8>) {
    buffer.fill(0);
    // Keeps the compiler from dropping the zeros as dead stores.
    std::hint::black_box(&*buffer);
    buffer.clear();
    // Do not keep a huge buffer forever.
    buffer.shrink_to(64 << 10);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Root;
    use std::path::Path;
    use std::time::Instant;

    fn process(tree: &Path, pid: u32, cmdline: &[u8]) {
        std::fs::create_dir_all(tree.join(format!("proc/{pid}"))).unwrap();
        std::fs::write(tree.join(format!("proc/{pid}/cmdline")), cmdline).unwrap();
    }

    fn request(pid: u32) -> Request {
        Request { pid, environment: None }
    }

    /// Opening a pipe without a writer blocks, like a process whose mmap lock is held.
    #[test]
    fn a_hanging_process_does_not_delay_others() {
        let tree = tempfile::tempdir().unwrap();
        process(tree.path(), 1, b"/sbin/init\0");
        process(tree.path(), 2, b"");
        process(tree.path(), 3, b"kubelet\0--token=x\0");
        let pipe = tree.path().join("proc/2/cmdline");
        std::fs::remove_file(&pipe).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let proc = ProcDir::open(&Root::at(tree.path())).unwrap();
        let mut describer = Describer::default();
        let seen = describer.describe(&proc, &[request(1), request(2), request(3), request(99)]);
        assert_eq!(seen[0].command.as_deref(), Some("init"));
        assert!(seen[1].stuck);
        assert_eq!(seen[2].command.as_deref(), Some("kubelet"));
        assert_eq!(seen[3], Description::default());
        // The number of hanging readers is limited.
        let seen = describer.describe(&proc, &[request(2), request(2), request(2), request(3)]);
        assert!(seen.iter().all(|d| d.stuck));
        // Once the reads come back, the process is tried again.
        drop(std::fs::OpenOptions::new().write(true).open(&pipe));
        std::fs::remove_file(&pipe).unwrap();
        std::fs::write(&pipe, b"released\0").unwrap();
        let began = Instant::now();
        while describer.describe(&proc, &[request(2)])[0].command.as_deref() != Some("released") {
            assert!(began.elapsed() < Duration::from_secs(180));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn an_environment_is_read_once() {
        let tree = tempfile::tempdir().unwrap();
        process(tree.path(), 5, b"ray::train\0\0\0");
        let environ = tree.path().join("proc/5/environ");
        std::fs::write(&environ, b"TOKEN=SECRET\0RAY_JOB_ID=03000000\0").unwrap();
        let proc = ProcDir::open(&Root::at(tree.path())).unwrap();
        let mut describer = Describer::default();
        // On a busy machine the reading thread may be later than our patience.
        let mut describe = |request: &dyn Fn() -> Request| {
            let seen = || describer.describe(&proc, &[request()]).remove(0);
            std::iter::repeat_with(seen).find(|seen| !seen.stuck).unwrap()
        };
        let first = describe(&|| request(5));
        assert_eq!(first.ray.as_ref().unwrap().job_id.as_deref(), Some("03000000"));
        assert!(!format!("{first:?}").contains("SECRET"));
        std::fs::remove_file(environ).unwrap();
        let again = || Request { pid: 5, environment: first.environment.clone() };
        assert_eq!(describe(&again), first);
    }
}
