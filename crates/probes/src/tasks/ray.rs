//! What Ray's processes reveal about their job.
//!
//! From Ray's sources, confirmed on Ray 2.x:
//! - A worker's title is `ray::` and the task or method it runs, or `ray::IDLE` (python/ray/_raylet.pyx).
//! - A worker started for a job has RAY_JOB_ID in its environment (src/ray/raylet/worker_pool.cc). A prestarted one keeps
//!   `ffffffff` there; its log files begin with `:job_id:` once its first task arrives.
//! - A submitted driver has RAY_JOB_CONFIG_JSON_ENV_VAR, whose `metadata` names the submission
//!   (python/ray/dashboard/modules/job/job_supervisor.py). Its job id is only in the name of its own log file:
//!   `python-core-driver-<job id>ffff…_<pid>.log` (src/ray/common/id.cc, ComputeDriverIdFromJob).
//!
//! Only [`JOB_ID`] and the submission id in [`JOB_CONFIG`] are kept from the environment; the latter also has the job's runtime
//! environment, where people put secrets.

use std::os::fd::AsFd;

use coroner_evidence::RayProcess;
use serde::Deserialize;

use super::command;
use super::files::{ProcDir, TaskPath, numbers_in, reread};

const JOB_ID: &[u8] = b"RAY_JOB_ID";
const JOB_CONFIG: &[u8] = b"RAY_JOB_CONFIG_JSON_ENV_VAR";
/// Its presence means that a Python process talks to Ray.
const ADDRESS: &[u8] = b"RAY_ADDRESS";

/// The kernel limits arguments and environment together to a quarter of the stack limit, 2 MiB by default.
pub const MAX_ENVIRONMENT: usize = 4 << 20;

/// A driver's log file is among its first open files.
const MAX_OPEN_FILES: usize = 96;

/// What is kept of a process's environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RayEnvironment {
    pub job_id: Option<String>,
    pub submission_id: Option<String>,
    /// Any of the keys was present.
    pub is_ray: bool,
}

/// Kind of process, by its arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RayRole {
    /// raylet, gcs_server: no job.
    System,
    /// Has a Ray title.
    Worker,
    /// Python: may be a driver.
    Maybe,
    No,
}

pub fn role(command: &str) -> RayRole {
    let program = command.split(' ').next().unwrap_or_default();
    match program {
        "raylet" | "gcs_server" => RayRole::System,
        _ if program.starts_with("ray::") => RayRole::Worker,
        _ if command::is_python(program) => RayRole::Maybe,
        _ => RayRole::No,
    }
}

/// Picks the allowed keys from /proc/PID/environ.
pub fn parse_environment(environ: &[u8]) -> RayEnvironment {
    let mut seen = RayEnvironment::default();
    for entry in environ.split(|&b| b == 0) {
        let Some(equals) = entry.iter().position(|&b| b == b'=') else { continue };
        let value = &entry[equals + 1..];
        match &entry[..equals] {
            JOB_ID => {
                seen.is_ray = true;
                seen.job_id = job_id(value);
            }
            JOB_CONFIG => {
                seen.is_ray = true;
                seen.submission_id = submission_id(value);
            }
            ADDRESS => seen.is_ray = true,
            _ => {}
        }
    }
    seen
}

/// Eight hex digits; all `f` is Ray's "no job".
fn job_id(text: &[u8]) -> Option<String> {
    let valid = text.len() == 8 && text.iter().all(u8::is_ascii_hexdigit) && text != b"ffffffff";
    valid.then(|| String::from_utf8_lossy(text).into_owned())
}

fn submission_id(config: &[u8]) -> Option<String> {
    // The parser skips fields not named here; they are never stored.
    #[derive(Deserialize)]
    struct Config {
        metadata: Option<Metadata>,
    }
    #[derive(Deserialize)]
    struct Metadata {
        job_submission_id: Option<String>,
    }
    let id = serde_json::from_slice::<Config>(config).ok()?.metadata?.job_submission_id?;
    let plain = id.len() <= 128 && id.bytes().all(|b| b.is_ascii_graphic());
    (plain && !id.is_empty()).then_some(id)
}

/// Describes a Ray process; `None` if it is not one.
pub fn ray_process(proc: &ProcDir, pid: u32, command: &str, environment: &RayEnvironment) -> Option<RayProcess> {
    let mut ray = RayProcess {
        job_id: environment.job_id.clone(),
        submission_id: environment.submission_id.clone(),
        entry_point: None,
    };
    match role(command) {
        RayRole::System => {}
        RayRole::Worker => {
            let title = command.trim_start_matches("ray::");
            let idle = title.starts_with("IDLE");
            ray.entry_point = (!idle).then(|| title.to_owned());
            if ray.job_id.is_none() && !idle {
                ray.job_id = workers_job(proc, pid);
            }
        }
        RayRole::Maybe => {
            if ray.job_id.is_none() {
                ray.job_id = drivers_job(proc, pid);
            }
            if ray.job_id.is_none() && !environment.is_ray {
                return None;
            }
            ray.entry_point = command.split_once(' ').map(|(_, script)| script.to_owned());
        }
        RayRole::No => return None,
    }
    Some(ray)
}

/// The job of a prestarted worker, from the first line of its log.
fn workers_job(proc: &ProcDir, pid: u32) -> Option<String> {
    for number in [2, 1] {
        let path = TaskPath::of_open_file(pid, number);
        let mut space = [0; 512];
        let Some(name) = proc.read_link(&path, &mut space).map(file_name) else { continue };
        // Open nothing else: it could be a pipe, or not Ray's.
        if name.starts_with(b"worker-") && (name.ends_with(b".err") || name.ends_with(b".out")) {
            let mut beginning = [0; 17];
            let file = proc.open_file(&path).ok()?;
            if let Some(id) = reread(file.as_fd(), &mut beginning).ok().and_then(job_of_log) {
                return Some(id);
            }
        }
    }
    None
}

fn job_of_log(beginning: &[u8]) -> Option<String> {
    job_id(beginning.strip_prefix(b":job_id:")?.trim_ascii_end())
}

fn drivers_job(proc: &ProcDir, pid: u32) -> Option<String> {
    let directory = proc.open_directory(&TaskPath::of_process(pid, "fd")).ok()?;
    let mut numbers = Vec::new();
    numbers_in(&directory, &mut numbers, MAX_OPEN_FILES).ok()?;
    let mut space = [0; 512];
    numbers.into_iter().find_map(|number| {
        let target = proc.read_link(&TaskPath::of_open_file(pid, number), &mut space)?;
        job_of_driver_log(file_name(target), pid)
    })
}

/// `python-core-driver-02000000ffff…_22842.log`. Children inherit the open file, but have another pid than in its name.
fn job_of_driver_log(name: &[u8], pid: u32) -> Option<String> {
    let rest = name.strip_prefix(b"python-core-driver-")?;
    let own = rest.strip_suffix(b".log")?.ends_with(format!("_{pid}").as_bytes());
    if own { job_id(rest.get(..8)?) } else { None }
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&b| b == b'/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Root;
    use proptest::prelude::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_the_allowed_keys_are_kept() {
        let environ = b"AWS_SECRET=SECRET\0RAY_JOB_ID=02000000\0RAY_ADDRESS=10.0.0.1:6379\0RAY_JOB_CONFIG_JSON_ENV_VAR={\"runtime_env\": {\"env_vars\": {\"job_submission_id\": \"SECRET\"}}, \"metadata\": {\"job_submission_id\": \"raysubmit_fjxX1nCdNX91HvHs\", \"job_name\": \"SECRET\"}}\0";
        let seen = parse_environment(environ);
        assert_eq!(
            seen,
            RayEnvironment {
                job_id: Some("02000000".into()),
                submission_id: Some("raysubmit_fjxX1nCdNX91HvHs".into()),
                is_ray: true
            }
        );
    }

    #[test]
    fn no_job_is_no_job() {
        let seen = parse_environment(b"RAY_JOB_ID=ffffffff\0RAY_JOB_CONFIG_JSON_ENV_VAR={broken\0");
        assert_eq!(seen, RayEnvironment { is_ray: true, ..RayEnvironment::default() });
        assert!(!parse_environment(b"RAYMOND=1\0XRAY_JOB_ID=01000000\0=\0").is_ray);
    }

    /// As Ray 2.x leaves them in /proc: prestarted workers, a driver, and a child of the driver.
    #[test]
    fn jobs_are_found_in_the_names_and_first_lines_of_logs() {
        let tree = tempfile::tempdir().unwrap();
        let logs = tree.path().join("logs");
        std::fs::create_dir(&logs).unwrap();
        for pid in [22_695, 22_842, 22_900] {
            std::fs::create_dir_all(tree.path().join(format!("proc/{pid}/fd"))).unwrap();
        }
        let log = logs.join("worker-db9f5e13-ffffffff-22695.err");
        std::fs::write(&log, ":job_id:02000000\n:actor_name:Learner\n").unwrap();
        symlink(&log, tree.path().join("proc/22695/fd/2")).unwrap();
        for pid in [22_842, 22_900] {
            symlink(
                "/logs/python-core-driver-02000000ffffffffffffffffffffffffffffffffffffffffffffffff_22842.log",
                tree.path().join(format!("proc/{pid}/fd/14")),
            )
            .unwrap();
        }
        let proc = ProcDir::open(&Root::at(tree.path())).unwrap();
        let nothing = RayEnvironment::default();
        let worker = ray_process(&proc, 22_695, "ray::Learner.step", &nothing).unwrap();
        assert_eq!(worker.job_id.as_deref(), Some("02000000"));
        assert_eq!(worker.entry_point.as_deref(), Some("Learner.step"));
        let idle = ray_process(&proc, 22_695, "ray::IDLE", &nothing).unwrap();
        assert_eq!(idle, RayProcess::default());
        let driver = ray_process(&proc, 22_842, "python train.py", &nothing).unwrap();
        assert_eq!((driver.job_id.as_deref(), driver.entry_point.as_deref()), (Some("02000000"), Some("train.py")));
        assert_eq!(ray_process(&proc, 22_900, "python train.py", &nothing), None);
        assert_eq!(ray_process(&proc, 22_900, "raylet", &nothing), Some(RayProcess::default()));
        assert_eq!(ray_process(&proc, 22_900, "kubelet", &nothing), None);
    }

    proptest! {
        #[test]
        fn any_environment_is_read(environ in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_environment(&environ);
        }

        #[test]
        fn any_config_and_log_is_read(text in ".{0,100}", pid: u32) {
            let _ = parse_environment(format!("RAY_JOB_CONFIG_JSON_ENV_VAR={text}\0RAY_JOB_ID={text}\0").as_bytes());
            let _ = job_of_driver_log(format!("python-core-driver-{text}").as_bytes(), pid);
            let _ = job_of_log(text.as_bytes());
        }

        #[test]
        fn other_variables_never_show(key in "[A-Z_]{1,12}", value in "SECRET[ -~]{0,30}") {
            let seen = parse_environment(format!("{key}={value}\0").as_bytes());
            let told = format!("{seen:?}");
            prop_assert!(!told.contains("SECRET"), "{}", told);
        }
    }
}
