//! Notifications to systemd: ready, status, watchdog. Without systemd, nothing happens.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// The service is up: the directory is locked, probes and rings are open.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("closing the recording")]);
}

/// One line that `systemctl status` shows.
pub fn status(text: &str) {
    // A line break would begin another message.
    tell(&[NotifyState::Status(&text.replace(['\n', '\r'], " "))]);
}

/// A service manager that does not listen is no reason to stop recording.
fn tell(state: &[NotifyState]) {
    let _ = sd_notify::notify(state);
}

/// Pings systemd's watchdog (WatchdogSec=) twice per period, as sd_watchdog_enabled(3) recommends. Only the main loop may call
/// it, so that a hanging loop is noticed.
pub struct Watchdog {
    every: Option<Duration>,
    told: Option<Instant>,
}

impl Watchdog {
    pub fn new() -> Watchdog {
        Watchdog { every: sd_notify::watchdog_enabled().map(|period| period / 2), told: None }
    }

    /// Call it often; it pings only when due.
    pub fn beat(&mut self) {
        let Some(every) = self.every else { return };
        if self.told.is_none_or(|told| told.elapsed() >= every) {
            tell(&[NotifyState::Watchdog]);
            self.told = Some(Instant::now());
        }
    }
}

impl Default for Watchdog {
    fn default() -> Watchdog {
        Watchdog::new()
    }
}
