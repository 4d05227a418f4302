//! The kernel log, from /dev/kmsg: the whole boot at the first look, then new lines.
//!
//! Lines are stamped with local_clock, which drifts from CLOCK_MONOTONIC. [`local_clock`] measures the offset now; how far it was
//! off when the line was printed is bounded by the maximum drift (see [`FASTEST_DRIFT_PPM`]). Lines that arrive while we watch
//! have a second bound: they were printed after the previous look and before this one.

mod local_clock;
mod record;

use crate::Evidence;
use crate::root::{Root, now};
use coroner_evidence::{LogLine, Time, probe};
use record::Record;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::time::Duration;

/// Lines kept from before the first look; the newest win.
const MAX_LINES: usize = 20_000;
const MAX_BYTES: usize = 8 << 20;
/// Reads per look: a flood of lines must not block coroner. The rest is read at the next look.
const MAX_READS_AT_FIRST: usize = 200_000;
const MAX_READS: usize = 5_000;
/// A record has at most 2,048 bytes of text, each escaped to four at worst, and a dictionary (PRINTKRB_RECORD_MAX,
/// CONSOLE_EXT_LOG_MAX).
const BUFFER: usize = 16 << 10;
/// The kernel lets NTP correct the frequency of CLOCK_MONOTONIC by at most 500 ppm (MAXFREQ in include/linux/timex.h). A daemon
/// that corrects a large error by changing the tick length exceeds it for some seconds; that cannot be detected afterwards.
/// Measured on a quiet virtual machine: 1.4 ppm.
const FASTEST_DRIFT_PPM: u64 = 500;
/// How far apart the two clocks may be at boot, before either is calibrated.
const APART_AT_BOOT: Duration = Duration::from_millis(100);
/// How old a measured offset may get before a new measurement is worth its 100 µs.
const MEASURE_EVERY: Duration = Duration::from_secs(10);

/// Reads the kernel log.
#[derive(Debug, Default)]
pub struct KernelLog {
    root: Root,
    pretend_kernel: bool,
    log: Option<File>,
    is_device: bool,
    /// The incomplete last line, if the log is a file and not a device.
    rest: Vec<u8>,
    next_sequence: Option<u64>,
    /// When everything printed so far had been read; `None` before the first look.
    drained: Option<Time>,
    distance: Option<Distance>,
}

/// How far CLOCK_MONOTONIC is ahead of local_clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Distance {
    ahead_ns: i128,
    error_ns: u64,
    /// When it was measured.
    at: Time,
}

impl KernelLog {
    pub fn new(root: Root) -> KernelLog {
        KernelLog { root, ..KernelLog::default() }
    }

    /// **For tests only.** Treats lines that root wrote to /dev/kmsg (facility 1, user) as the kernel's own, so that a test can
    /// fake kernel messages.
    pub fn pretending_to_be_the_kernel(root: Root) -> KernelLog {
        KernelLog { pretend_kernel: true, ..KernelLog::new(root) }
    }

    /// Reads new lines; at the first look everything since boot.
    pub fn look(&mut self, at: Time, evidence: &mut Evidence) {
        if self.log.is_none() && !self.open(evidence) {
            return;
        }
        let is_first = self.drained.is_none() && self.next_sequence.is_none();
        let mut kept = Kept::default();
        let read = self.read(if is_first { MAX_READS_AT_FIRST } else { MAX_READS }, &mut kept);
        // Taken after the last read, when every line that was read had been printed.
        let arrived = now().max(at);
        let watched_since = self.drained;
        match read {
            Ok(true) => self.drained = Some(arrived),
            Ok(false) => {}
            Err(e) => evidence.unseen(
                probe::KERNEL_LOG,
                "new lines of the kernel log",
                format!("{}: {e}", self.root.path(PATH).display()),
                "dmesg",
            ),
        }
        self.note_losses(&kept, is_first, evidence);
        if kept.records.is_empty() {
            return;
        }
        self.measure_distance(arrived, watched_since, &kept);
        for record in kept.records {
            let (at, uncertainty_ns) = self.time_of(record.stamp_us, arrived, watched_since);
            let facility = if self.pretend_kernel && record.facility == USER { 0 } else { record.facility };
            evidence.log.push(LogLine {
                at,
                uncertainty_ns,
                stamp_us: record.stamp_us,
                sequence: record.sequence,
                level: record.level,
                facility,
                text: record.text,
            });
        }
    }

    fn open(&mut self, evidence: &mut Evidence) -> bool {
        let path = self.root.path(PATH);
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
        match opened.and_then(|file| Ok((file.metadata()?.file_type().is_char_device(), file))) {
            Ok((is_device, file)) => {
                self.is_device = is_device;
                self.log = Some(file);
                true
            }
            Err(e) => {
                let how = match e.kind() {
                    // kernel/printk/printk.c, check_syslog_permissions
                    io::ErrorKind::PermissionDenied => "run as root (CAP_SYSLOG), or sysctl kernel.dmesg_restrict=0",
                    _ => "run on the node itself, or give the container the node's /dev/kmsg",
                };
                evidence.unseen(
                    probe::KERNEL_LOG,
                    "the kernel log: resets, lockups, OOM kills",
                    format!("{}: {e}", path.display()),
                    how,
                );
                false
            }
        }
    }

    /// Reads what is available. `false` if there may be more.
    fn read(&mut self, most: usize, kept: &mut Kept) -> io::Result<bool> {
        let Some(log) = self.log.as_mut() else { return Ok(false) };
        let mut buffer = [0; BUFFER];
        for _ in 0..most {
            match log.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(n) if self.is_device => kept.take(&buffer[..n], &mut self.next_sequence),
                Ok(n) => {
                    self.rest.extend_from_slice(&buffer[..n]);
                    let whole = self.rest.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
                    kept.take(&self.rest[..whole], &mut self.next_sequence);
                    self.rest.drain(..whole);
                    if self.rest.len() > MAX_BYTES {
                        self.rest.clear();
                    }
                }
                Err(e) => match Errno::from_io_error(&e) {
                    Some(Errno::AGAIN) => return Ok(true),
                    // Records were overwritten before we read them; the next read continues with the oldest one left. The gap in
                    // the sequence shows how many were lost.
                    Some(Errno::PIPE | Errno::INTR) => {}
                    // A record larger than the buffer: the kernel has moved on to the next.
                    Some(Errno::INVAL) => kept.too_long += 1,
                    _ => return Err(e),
                },
            }
        }
        Ok(false)
    }

    fn note_losses(&self, kept: &Kept, is_first: bool, evidence: &mut Evidence) {
        let how = "try `journalctl -k`, or boot with a larger log_buf_len=";
        if kept.lost > 0 {
            let (what, why) = if is_first {
                ("the oldest lines of this boot's kernel log", "the ring buffer wrapped around and dropped")
            } else {
                ("some lines of the kernel log", "lines arrived faster than they were read; the ring buffer dropped")
            };
            evidence.unseen(probe::KERNEL_LOG, what, format!("{why} {} lines", kept.lost), how);
        }
        if kept.dropped > 0 {
            evidence.unseen(
                probe::KERNEL_LOG,
                "the oldest lines of the kernel log",
                format!("truncated: kept the newest {} lines, dropped {} older ones", kept.records.len(), kept.dropped),
                "dmesg",
            );
        }
        if kept.too_long > 0 {
            let why = format!("skipped {} lines longer than {BUFFER} bytes", kept.too_long);
            evidence.unseen(probe::KERNEL_LOG, "some lines of the kernel log", why, "dmesg");
        }
    }

    fn measure_distance(&mut self, arrived: Time, watched_since: Option<Time>, kept: &Kept) {
        if self.distance.is_some_and(|d| arrived.since(d.at) < MEASURE_EVERY && d.error_ns < 1_000_000) {
            return;
        }
        let measured = if self.root.is_live() { local_clock::read() } else { None };
        if let Some(reading) = measured {
            self.distance = Some(Distance::between(reading.local_ns, reading.before, reading.after));
            return;
        }
        // The newest line was printed after the previous look and before this one.
        let bounded = watched_since
            .zip(kept.records.back())
            .map(|(since, newest)| Distance::between(newest.stamp_us.saturating_mul(1000), since, arrived));
        // Without a measurement: both clocks started at zero and have drifted apart at most at the maximum rate.
        let assumed = Distance { ahead_ns: 0, error_ns: apart_at_most(arrived), at: arrived };
        let known = self.distance.map(|d| Distance { error_ns: d.error_at(arrived), at: arrived, ..d });
        self.distance = [bounded, known, Some(assumed)].into_iter().flatten().min_by_key(|d| d.error_ns);
    }

    /// When a line was printed, and how far off that may be.
    fn time_of(&self, stamp_us: u64, arrived: Time, watched_since: Option<Time>) -> (Time, u64) {
        let by_arrival = watched_since.map(|since| (arrived, arrived.since(since).as_nanos() as u64));
        let by_stamp = self.distance.map(|distance| distance.time_of(stamp_us));
        match (by_arrival, by_stamp) {
            (Some(by_arrival), Some((at, uncertainty))) => {
                // Both bounds hold; if they contradict each other, a clock has jumped.
                let since = watched_since.unwrap_or_default();
                let is_possible =
                    at.0.saturating_add(uncertainty) >= since.0 && at.0.saturating_sub(uncertainty) <= arrived.0;
                if is_possible && uncertainty < by_arrival.1 {
                    (at.clamp(since, arrived), uncertainty)
                } else {
                    by_arrival
                }
            }
            (Some(by_arrival), None) => by_arrival,
            (None, Some((at, uncertainty))) => (at.min(arrived), uncertainty),
            (None, None) => (arrived, arrived.0),
        }
    }
}

const PATH: &str = "/dev/kmsg";
/// LOG_USER: lines that user space writes to /dev/kmsg carry it; they cannot claim to be the kernel's.
const USER: u8 = 1;

impl Distance {
    /// From a reading of local_clock taken between two moments.
    fn between(local_ns: u64, before: Time, after: Time) -> Distance {
        let width = after.0.saturating_sub(before.0);
        Distance {
            ahead_ns: i128::from(before.0) + i128::from(width / 2) - i128::from(local_ns),
            error_ns: width / 2 + 1,
            at: after,
        }
    }

    fn error_at(&self, then: Time) -> u64 {
        let ahead = u64::try_from(self.ahead_ns.unsigned_abs()).unwrap_or(u64::MAX);
        let since_then = drift_over(Duration::from_nanos(self.at.0.abs_diff(then.0)));
        if ahead > apart_at_most(self.at) {
            // More than drift can explain: a clock jumped (the virtual machine was paused) at an unknown time.
            return self.error_ns.saturating_add(since_then).saturating_add(ahead);
        }
        // The error is bounded by the drift since then and by the drift from boot until then; the smaller counts.
        self.error_ns.saturating_add(since_then.min(apart_at_most(then).saturating_add(ahead)))
    }

    fn time_of(&self, stamp_us: u64) -> (Time, u64) {
        let at = i128::from(stamp_us) * 1000 + self.ahead_ns;
        let at = Time(u64::try_from(at.max(0)).unwrap_or(u64::MAX));
        // The stamp is truncated to whole µs.
        (at, self.error_at(at).saturating_add(1000))
    }
}

fn drift_over(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(FASTEST_DRIFT_PPM) / 1_000_000).unwrap_or(u64::MAX)
}

/// How far the clocks can have drifted apart by then.
fn apart_at_most(then: Time) -> u64 {
    drift_over(Duration::from_nanos(then.0)).saturating_add(APART_AT_BOOT.as_nanos() as u64)
}

/// What was read at one look.
#[derive(Debug, Default)]
struct Kept {
    records: VecDeque<Record>,
    bytes: usize,
    /// Overwritten by the kernel before they were read.
    lost: u64,
    /// Read, and not kept.
    dropped: u64,
    too_long: u64,
}

impl Kept {
    fn take(&mut self, bytes: &[u8], next_sequence: &mut Option<u64>) {
        for record in bytes.split(|b| *b == b'\n').filter_map(record::parse) {
            // The first sequence of a boot is 0.
            self.lost = self.lost.saturating_add(record.sequence.saturating_sub(next_sequence.unwrap_or(0)));
            *next_sequence = Some(record.sequence.saturating_add(1));
            self.bytes += record.text.len();
            self.records.push_back(record);
            while self.records.len() > MAX_LINES || self.bytes > MAX_BYTES {
                let Some(oldest) = self.records.pop_front() else { break };
                self.bytes -= oldest.text.len();
                self.dropped += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
