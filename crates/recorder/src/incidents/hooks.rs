//! The command to run when an incident is complete: to page somebody, or to copy the file away.

use super::super::config::IncidentConfig;
use crate::warn;
use coroner_evidence::Time;
use coroner_source::incident::Incident;
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A hook that takes longer counts as hanging and is killed.
const LIMIT: Duration = Duration::from_secs(60);

pub struct Hooks {
    command: Vec<String>,
    every: Duration,
    last: Option<Time>,
    running: Option<(Child, Time)>,
    /// Incidents since the last run that ran no hook.
    skipped: u64,
}

impl Hooks {
    pub fn new(config: &IncidentConfig) -> Hooks {
        Hooks { command: config.hook.clone(), every: config.hook_every, last: None, running: None, skipped: 0 }
    }

    /// Runs the hook for an incident, unless one is running or ran less than `hook_every` ago.
    pub fn tell(&mut self, incident: &Incident, file: &Path, now: Time) {
        self.turn(now);
        let Some((program, arguments)) = self.command.split_first() else { return };
        let too_soon = self.last.is_some_and(|last| now.since(last) < self.every);
        if too_soon || self.running.is_some() {
            self.skipped += 1;
            return;
        }
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("CORONER_INCIDENT_NUMBER", incident.number.to_string())
            .env("CORONER_INCIDENT_CODE", &incident.code)
            .env("CORONER_INCIDENT_SUBJECT", &incident.subject)
            .env("CORONER_INCIDENT_CORE", incident.core.map(|core| core.to_string()).unwrap_or_default())
            .env("CORONER_INCIDENT_TEXT", incident.text.replace('\0', " "))
            .env("CORONER_INCIDENT_TIME", incident.triggered.to_string())
            .env("CORONER_INCIDENT_STATE", incident.state.as_str())
            .env("CORONER_INCIDENT_FILE", file)
            .env("CORONER_INCIDENTS_SKIPPED", self.skipped.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Its own process group: its children can be killed with it, and Ctrl-C does not reach it.
            .process_group(0);
        self.last = Some(now);
        match command.spawn() {
            Ok(child) => {
                self.running = Some((child, now));
                self.skipped = 0;
            }
            Err(error) => {
                self.skipped += 1;
                warn(&format!("cannot start hook {program}: {error}; check incidents.hook in the configuration"));
            }
        }
    }

    #[cfg(test)]
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Collects a hook that exited, and kills one that takes too long.
    pub fn turn(&mut self, now: Time) {
        let Some((child, started)) = &mut self.running else { return };
        match child.try_wait() {
            Ok(Some(status)) => {
                if !status.success() {
                    warn(&format!("hook {} failed: {status}", self.command[0]));
                }
                self.running = None;
            }
            Ok(None) if now.since(*started) >= LIMIT => {
                if let Some(group) = Pid::from_raw(child.id() as i32) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
            }
            Ok(None) => {}
            Err(_) => self.running = None,
        }
    }
}
