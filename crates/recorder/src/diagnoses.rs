//! The recorder's own diagnoses. Every few minutes a child (`coroner diagnose-recorded`) reads the last minutes from the segments
//! and diagnoses them as `coroner diagnose --from DIR` does; its conclusions are kept in the history.
//!
//! Diagnosing a large node takes seconds of CPU. The pause after each diagnosis is long enough for all of them together to stay
//! below `diagnosis.max_cpu` (0.2 % of a core).

use super::config::DiagnosisConfig;
use super::guest::{Guest, MOST_ANSWERED};
use super::identity::identity_of;
use super::reporter::Reports;
use super::status::{DiagnosisStatus, Status};
use crate::warn;
use anyhow::{Context, ensure};
use coroner_diagnosis::finding::{Finding, Severity};
use coroner_diagnosis::{Diagnosis, diagnose};
use coroner_evidence::history::{Concluded, HistoryWriter, Problem};
use coroner_evidence::recording::{Span, read_span};
use coroner_evidence::{Clocks, Wall};
use coroner_probes::root::read_clocks;
use coroner_report::NodeIdentity;
use coroner_source::kernel_work;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first one comes early, so that the history begins.
const FIRST_AFTER: Duration = Duration::from_secs(60);
/// Windows overlap by this, so that nothing falls between two of them and one sees a problem at the border whole.
const OVERLAP: Duration = Duration::from_secs(60);
/// After a long pause, only this much is diagnosed.
const LONGEST_WINDOW: Duration = Duration::from_secs(600);
const LIMIT: Duration = Duration::from_secs(60);
const TURN_EVERY: Duration = Duration::from_millis(250);
/// Most diagnoses kept in memory while the disk is full: hours at the usual pace.
const MOST_WAITING: usize = 100;
/// Most problems kept of one diagnosis, worst first, and the longest title: together they fit into a pipe.
const MOST_PROBLEMS: usize = 40;
const MOST_TITLE: usize = 300;

/// The child's answer.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    pub cpu_ns: u64,
    pub concluded: Concluded,
    /// With the agents that the unit audit saw.
    pub identity: NodeIdentity,
}

pub struct DiagnosisThread {
    /// Dropped to stop the thread.
    running: Sender<()>,
    thread: JoinHandle<()>,
}

impl DiagnosisThread {
    /// `None` if diagnoses are switched off.
    pub fn start(
        directory: &Path,
        config: &DiagnosisConfig,
        reports: Reports,
        status: Arc<Mutex<Status>>,
    ) -> anyhow::Result<Option<DiagnosisThread>> {
        if config.every.is_zero() {
            return Ok(None);
        }
        let (running, stopped) = channel();
        let mut diagnoses = Diagnoses::new(directory, config, reports, vec!["/proc/self/exe".into()]);
        let run = move || diagnoses.run(&stopped, &status);
        let thread = std::thread::Builder::new().name("diagnoses".to_owned()).spawn(run)?;
        Ok(Some(DiagnosisThread { running, thread }))
    }

    pub fn finish(self) {
        drop(self.running);
        let _ = self.thread.join();
    }
}

struct Diagnoses {
    directory: PathBuf,
    config: DiagnosisConfig,
    program: Vec<OsString>,
    reports: Reports,
    /// Opened at the first write.
    history: Option<HistoryWriter>,
    /// Not written yet, oldest first.
    waiting: VecDeque<Concluded>,
    looked_until: Option<Wall>,
    own: DiagnosisStatus,
    complained: bool,
}

impl Diagnoses {
    fn new(directory: &Path, config: &DiagnosisConfig, reports: Reports, program: Vec<OsString>) -> Diagnoses {
        Diagnoses {
            directory: directory.to_owned(),
            config: config.clone(),
            program,
            reports,
            history: None,
            waiting: VecDeque::new(),
            looked_until: None,
            own: DiagnosisStatus::default(),
            complained: false,
        }
    }

    fn run(&mut self, stopped: &Receiver<()>, status: &Mutex<Status>) {
        let mut pause = FIRST_AFTER.min(self.config.every);
        // Anything but a timeout means that the recorder is stopping.
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            let began = Instant::now();
            let Some(outcome) = self.diagnose(stopped) else { return };
            let took = match outcome {
                Ok(answer) => self.note(answer),
                Err(why) => {
                    self.own.failures += 1;
                    self.complain(&format!("diagnosing the node failed: {why}"));
                    // An upper bound of its CPU time, which it did not report.
                    began.elapsed()
                }
            };
            pause = self.config.every.max(took.mul_f64(100.0 / self.config.max_cpu));
            self.own.pause_seconds = pause.as_secs_f64();
            // Plain numbers, valid even if a holder of the lock panicked.
            status.lock().unwrap_or_else(PoisonError::into_inner).diagnoses = Some(self.own.clone());
        }
    }

    /// `None` if the recorder stops meanwhile.
    fn diagnose(&mut self, stopped: &Receiver<()>) -> Option<Result<Answer, String>> {
        let clocks = read_clocks();
        let from = self.window_from(clocks);
        let args = [
            "diagnose-recorded".into(),
            self.directory.clone().into(),
            from.0.to_string().into(),
            clocks.wall.0.to_string().into(),
        ];
        let mut guest = match Guest::start(&self.program, &args, "the diagnosis", LIMIT, clocks.at) {
            Ok(guest) => guest,
            Err(error) => return Some(Err(format!("{error:#}"))),
        };
        loop {
            if stopped.recv_timeout(TURN_EVERY) != Err(RecvTimeoutError::Timeout) {
                guest.kill();
                return None;
            }
            if let Some(outcome) = guest.outcome(read_clocks().at) {
                let parse = |answer: Vec<u8>| serde_json::from_slice(&answer).map_err(|error| error.to_string());
                return Some(outcome.and_then(parse));
            }
        }
    }

    /// Starts a little before the end of the last window, within bounds.
    fn window_from(&self, clocks: Clocks) -> Wall {
        let usual = clocks.wall - (self.config.every.min(LONGEST_WINDOW) + OVERLAP);
        // A wall clock that was set back must not leave an empty window.
        let goes_on = self.looked_until.map(|until| until - OVERLAP);
        goes_on.unwrap_or(usual).clamp(clocks.wall - (LONGEST_WINDOW + OVERLAP), usual)
    }

    /// Returns the CPU time it took.
    fn note(&mut self, answer: Answer) -> Duration {
        let Answer { cpu_ns, concluded, identity } = answer;
        self.reports.node(identity);
        self.reports.concluded(&concluded);
        let took = Duration::from_nanos(cpu_ns);
        self.own.diagnoses += 1;
        self.own.cpu_seconds += took.as_secs_f64();
        self.own.problems = problems_by_code(&concluded);
        self.looked_until = Some(concluded.until);
        self.waiting.push_back(concluded);
        while self.waiting.len() > MOST_WAITING {
            self.waiting.pop_front();
        }
        match self.write() {
            Ok(()) => self.complained = false,
            Err(error) => self.complain(&format!("{error:#}; the latest diagnoses are kept in memory")),
        }
        took
    }

    fn write(&mut self) -> anyhow::Result<()> {
        while let Some(oldest) = self.waiting.front() {
            let history = match &mut self.history {
                Some(history) => history,
                none => {
                    let (history, damaged) = HistoryWriter::open(&self.directory)?;
                    if let Some(damaged) = damaged {
                        warn(&damaged);
                    }
                    none.insert(history)
                }
            };
            if let Err(error) = history.note(oldest) {
                // Whatever happened to the file, the next attempt opens it again.
                self.history = None;
                return Err(error.into());
            }
            self.waiting.pop_front();
        }
        Ok(())
    }

    /// Warns once, until it works again.
    fn complain(&mut self, what: &str) {
        if !std::mem::replace(&mut self.complained, true) {
            warn(what);
        }
    }
}

fn problems_by_code(concluded: &Concluded) -> BTreeMap<(String, String), u64> {
    let mut problems = BTreeMap::new();
    for problem in concluded.problems.iter().filter(|problem| problem.ended.is_none()) {
        *problems.entry((problem.code.clone(), problem.severity.clone())).or_default() += 1;
    }
    problems
}

/// The child's work: diagnoses what was recorded between two moments.
pub fn conclude(directory: &Path, from: Wall, to: Wall) -> anyhow::Result<Answer> {
    let mut recording = read_span(directory, &Span::Between { from, to })?;
    let evidence = &mut recording.evidence;
    ensure!(evidence.window().is_some(), "{}: no core times were recorded in the last minutes", directory.display());
    kernel_work::add(directory, evidence);
    let diagnosis = diagnose(evidence);
    let (from, until) = diagnosis.window.context("the recording has no wall clock")?;
    let boot_id = diagnosis.node.boot_id.clone().unwrap_or_default();
    let concluded = Concluded {
        boot_id,
        from,
        until,
        diagnoses: 1,
        conclusion: diagnosis.outcome().as_str().to_owned(),
        problems: problems(&diagnosis),
    };
    let answer = Answer {
        identity: identity_of(evidence),
        cpu_ns: coroner_probes::root::own_cpu().as_nanos() as u64,
        concluded,
    };
    Ok(answer)
}

/// The verdicts, then unexplained harm.
fn problems(diagnosis: &Diagnosis) -> Vec<Problem> {
    let conclusion = &diagnosis.conclusion;
    let verdicts = conclusion.verdicts.iter().map(|verdict| Problem {
        key: verdict.key.clone(),
        code: verdict.root_cause.code.as_str().to_owned(),
        subject_kind: verdict.root_cause.subject.kind.as_str().to_owned(),
        subject: verdict.root_cause.subject.name.clone(),
        severity: verdict.severity.as_str().to_owned(),
        certainty: Some(verdict.certainty.as_str().to_owned()),
        title: shortened(&verdict.root_cause.title),
        began: verdict.timeline.iter().filter(|moment| !moment.already).map(|moment| moment.at).min(),
        ended: verdict.over,
    });
    let severity = |of: &Finding| of.severity.as_str().to_owned();
    let unexplained = conclusion.unexplained.iter().map(|unexplained| {
        let told = &unexplained.finding;
        let finding = diagnosis.findings.iter().find(|finding| finding.is(told));
        Problem {
            key: told.key.clone(),
            code: told.code.as_str().to_owned(),
            subject_kind: told.subject.kind.as_str().to_owned(),
            subject: told.subject.name.clone(),
            severity: finding.map_or_else(|| Severity::Warning.as_str().to_owned(), severity),
            certainty: None,
            title: shortened(&told.title),
            began: None,
            ended: None,
        }
    });
    verdicts.chain(unexplained).take(MOST_PROBLEMS).collect()
}

fn shortened(title: &str) -> String {
    match title.char_indices().nth(MOST_TITLE) {
        Some((end, _)) => format!("{}…", &title[..end]),
        None => title.to_owned(),
    }
}

/// Prints the answer for the recorder.
pub fn answer(answer: &Answer) -> anyhow::Result<String> {
    let text = serde_json::to_string(answer)?;
    ensure!(text.len() < MOST_ANSWERED, "the diagnosis is too large to hand back ({} bytes)", text.len());
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use coroner_evidence::{Time, history};

    const SECOND: u64 = 1_000_000_000;

    fn diagnoses(directory: &Path, program: &str) -> Diagnoses {
        Diagnoses::new(
            directory,
            &DiagnosisConfig::default(),
            Reports::default(),
            vec!["sh".into(), "-c".into(), program.into()],
        )
    }

    fn at(seconds: u64) -> Clocks {
        Clocks { at: Time(0), wall: Wall(seconds * SECOND), boot_ns: 0 }
    }

    #[test]
    fn windows_follow_each_other_and_stay_short() {
        let mut diagnoses = diagnoses(Path::new("/"), "");
        assert_eq!(diagnoses.window_from(at(10_000)).0 / SECOND, 9_760);
        diagnoses.looked_until = Some(Wall(9_700 * SECOND));
        assert_eq!(diagnoses.window_from(at(10_000)).0 / SECOND, 9_640);
        // After a long pause, and after the clock was set back.
        assert_eq!(diagnoses.window_from(at(20_000)).0 / SECOND, 19_340);
        assert_eq!(diagnoses.window_from(at(5_000)).0 / SECOND, 4_760);
    }

    #[test]
    fn conclusions_are_kept_and_counted_and_wait_while_they_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let problem = Problem {
            key: "oom-kill".to_owned(),
            code: "oom-kill".to_owned(),
            severity: "critical".to_owned(),
            ..Problem::default()
        };
        let concluded = Concluded { until: Wall(7), diagnoses: 1, problems: vec![problem], ..Concluded::default() };
        let text =
            answer(&Answer { cpu_ns: 2_000_000_000, concluded: concluded.clone(), identity: NodeIdentity::default() })
                .unwrap();
        let file = dir.path().join("answer");
        std::fs::write(&file, text).unwrap();
        let mut diagnoses = diagnoses(&dir.path().join("not-there-yet"), &format!("cat {}", file.display()));
        let (_running, stopped) = channel();
        let answer = diagnoses.diagnose(&stopped).unwrap().unwrap();
        assert_eq!(diagnoses.note(answer), Duration::from_secs(2));
        assert_eq!(diagnoses.own.problems[&("oom-kill".to_owned(), "critical".to_owned())], 1);
        assert_eq!((diagnoses.waiting.len(), diagnoses.complained), (1, true));
        std::fs::create_dir(&diagnoses.directory).unwrap();
        diagnoses.write().unwrap();
        assert_eq!(history::read(&diagnoses.directory).unwrap(), [concluded]);
    }

    #[test]
    fn a_failing_child_says_why() {
        let (_running, stopped) = channel();
        let mut diagnoses = diagnoses(Path::new("/"), "echo 'coroner: the disk is gone' >&2; exit 2");
        assert_eq!(diagnoses.diagnose(&stopped).unwrap().unwrap_err(), "the disk is gone");
    }

    #[test]
    fn a_child_is_killed_when_the_recorder_stops() {
        let (running, stopped) = channel();
        drop(running);
        let mut diagnoses = diagnoses(Path::new("/"), "sleep 600");
        assert!(diagnoses.diagnose(&stopped).is_none());
    }
}
