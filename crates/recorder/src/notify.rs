//! What systemd is told: that we are up, what we do, that we are still alive. Without systemd nothing happens.

use sd_notify::NotifyState;
use std::time::{Duration, Instant};

/// The service is up: its directory is ours, its probes and rings are open.
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

/// A manager that does not listen is no reason to stop recording.
fn tell(state: &[NotifyState]) {
    let _ = sd_notify::notify(state);
}

/// Tells systemd that the main loop turns, if it wants to know (WatchdogSec=): twice in each period, as it asks for
/// (sd_watchdog_enabled(3)). It is the main loop that must call it, so that a loop that hangs is noticed.
pub struct Watchdog {
    every: Option<Duration>,
    told: Option<Instant>,
}

impl Watchdog {
    pub fn new() -> Watchdog {
        Watchdog { every: sd_notify::watchdog_enabled().map(|period| period / 2), told: None }
    }

    /// To be called often; says something only when it is due.
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
