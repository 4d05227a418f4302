//! Parses `stat` and `schedstat` in /proc/PID/task/TID.

use std::borrow::Cow;

use coroner_evidence::tasks::SchedTimes;

use crate::ParseError;
pub(super) use crate::counter_file::decimal as parse_u64;

/// include/linux/sched.h; the flags are field 9 of `stat`.
const PF_KTHREAD: u64 = 0x0020_0000;

/// The fields of /proc/PID/task/TID/stat we use (fs/proc/array.c, do_task_stat).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat<'a> {
    /// Raw, as in the file; see [`readable_name`].
    pub comm: &'a [u8],
    pub state: u8,
    pub ppid: u32,
    pub kernel: bool,
    pub minor_faults: u64,
    pub major_faults: u64,
    pub user_ticks: u64,
    pub system_ticks: u64,
    /// User and system ticks of children that it has waited for, of the whole process.
    pub child_ticks: u64,
    pub nice: i8,
    /// Threads of the whole process.
    pub threads: u64,
    pub started: u64,
    /// Pages in memory, of the whole process.
    pub resident_pages: u64,
    pub core: u32,
    pub rt_priority: u8,
    pub policy: u64,
}

pub fn parse_stat(bytes: &[u8]) -> Result<Stat<'_>, ParseError> {
    let expected = |what: &str| ParseError::new(1, what);
    let open = bytes.iter().position(|&b| b == b'(').ok_or_else(|| expected("a name in parentheses"))?;
    // A name may contain spaces and parentheses; nothing after it does.
    let close = bytes.iter().rposition(|&b| b == b')').filter(|&close| close > open);
    let close = close.ok_or_else(|| expected("a name in parentheses"))?;
    let comm = &bytes[open + 1..close];

    // Field numbers as in proc(5): the state is field 3.
    let mut fields = bytes[close + 1..].split(|&b| b == b' ' || b == b'\n').filter(|f| !f.is_empty());
    let mut number = 2;
    let mut field = |wanted: usize, what: &str| -> Result<&[u8], ParseError> {
        let skipped = wanted - number - 1;
        number = wanted;
        fields.nth(skipped).ok_or_else(|| ParseError::new(1, format!("field {wanted} ({what})")))
    };
    let number_of = |text: &[u8], what: &str| parse_u64(text).ok_or_else(|| expected(&format!("a number for {what}")));

    let state = field(3, "state")?;
    let [state @ (b'A'..=b'Z' | b'a'..=b'z')] = state else {
        return Err(expected("one letter for the state"));
    };
    let ppid = number_of(field(4, "ppid")?, "ppid")?;
    let flags = number_of(field(9, "flags")?, "flags")?;
    let minor_faults = number_of(field(10, "minflt")?, "minflt")?;
    let major_faults = number_of(field(12, "majflt")?, "majflt")?;
    let user_ticks = number_of(field(14, "utime")?, "utime")?;
    let system_ticks = number_of(field(15, "stime")?, "stime")?;
    // Signed in the kernel, but never below 0.
    let [cutime, cstime] = [field(16, "cutime")?, field(17, "cstime")?].map(|text| parse_u64(text).unwrap_or(0));
    let nice = parse_nice(field(19, "nice")?).ok_or_else(|| expected("-20 to 19 for nice"))?;
    let threads = number_of(field(20, "num_threads")?, "num_threads")?;
    let started = number_of(field(22, "starttime")?, "starttime")?;
    // The kernel prints a sum of counters of several cores, which may be below 0 for a moment (mm/util.c: get_mm_rss before 6.2).
    let resident_pages = parse_u64(field(24, "rss")?).unwrap_or(0);
    let core = number_of(field(39, "processor")?, "processor")?;
    let rt_priority = number_of(field(40, "rt_priority")?, "rt_priority")?;
    let policy = number_of(field(41, "policy")?, "policy")?;
    Ok(Stat {
        comm,
        state: *state,
        ppid: u32::try_from(ppid).map_err(|_| expected("a process number for ppid"))?,
        kernel: flags & PF_KTHREAD != 0,
        minor_faults,
        major_faults,
        user_ticks,
        system_ticks,
        child_ticks: cutime.saturating_add(cstime),
        nice,
        threads,
        started,
        resident_pages,
        core: u32::try_from(core).map_err(|_| expected("a core number for processor"))?,
        rt_priority: u8::try_from(rt_priority).map_err(|_| expected("0 to 99 for rt_priority"))?,
        policy,
    })
}

/// `run_ns wait_ns slices` (fs/proc/base.c, proc_pid_schedstat).
pub fn parse_schedstat(bytes: &[u8]) -> Result<SchedTimes, ParseError> {
    let mut fields = bytes.split(u8::is_ascii_whitespace).filter(|f| !f.is_empty());
    let mut number = |what: &str| {
        fields.next().and_then(parse_u64).ok_or_else(|| ParseError::new(1, format!("a number for {what}")))
    };
    Ok(SchedTimes { run_ns: number("run time")?, wait_ns: number("wait time")?, slices: number("time slices")? })
}

/// The process, from the `Tgid:` line of /proc/TID/status.
pub fn parse_tgid(status: &[u8]) -> Option<u32> {
    status_line(status, b"Tgid:").and_then(parse_u64).and_then(|tgid| u32::try_from(tgid).ok())
}

/// The value of a line of /proc/TID/status. The thread's name is escaped in the first line, so it cannot fake another.
pub fn status_line<'a>(status: &'a [u8], key: &[u8]) -> Option<&'a [u8]> {
    let line = status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(key))?;
    Some(line.trim_ascii())
}

fn parse_nice(text: &[u8]) -> Option<i8> {
    let (negative, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, text),
    };
    let nice = i8::try_from(parse_u64(digits)?).ok()?;
    Some(if negative { -nice } else { nice })
}

/// A printable name: undoes the escapes of `stat`; bytes that are not UTF-8 and control characters (they could control a
/// terminal) become `�`.
pub fn readable_name(raw: &[u8]) -> String {
    let mut bytes = Cow::Borrowed(raw);
    if raw.contains(&b'\\') {
        let mut plain = Vec::with_capacity(raw.len());
        let mut rest = raw.iter().copied();
        while let Some(byte) = rest.next() {
            match byte {
                b'\\' => match rest.next() {
                    Some(b'n') => plain.push(b'\n'),
                    Some(escaped) => plain.push(escaped),
                    None => plain.push(b'\\'),
                },
                _ => plain.push(byte),
            }
        }
        bytes = Cow::Owned(plain);
    }
    without_controls(&bytes)
}

pub fn without_controls(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    if text.chars().any(char::is_control) {
        text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
    } else {
        text.into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KSOFTIRQD: &[u8] = b"16 (ksoftirqd/0) S 2 0 0 0 -1 69238848 0 7 0 0 0 12 0 0 20 0 1 0 5 0 0 18446744073709551615 0 0 0 0 0 0 0 2147483647 0 0 0 0 17 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn a_kernel_thread_is_read() {
        let stat = parse_stat(KSOFTIRQD).unwrap();
        assert_eq!(stat.comm, b"ksoftirqd/0");
        assert!(stat.kernel);
        assert_eq!((stat.state, stat.ppid, stat.system_ticks, stat.started), (b'S', 2, 12, 5));
        assert_eq!((stat.core, stat.rt_priority, stat.policy, stat.nice, stat.threads), (0, 0, 0, 0, 1));
        // cminflt (7) counts the children's faults.
        assert_eq!(stat.minor_faults, 0);
    }

    fn line(comm: &[u8]) -> Vec<u8> {
        let mut bytes = b"77 (".to_vec();
        bytes.extend_from_slice(comm);
        bytes.extend_from_slice(b") R 1 77 77 34816 77 4194304 100 0 3 0 41 42 0 0 -51 -5 9 0 123456 1 1 1 1 1 1 1 1 1 1 1 1 0 0 0 17 39 50 1 0 0 0\n");
        bytes
    }

    #[test]
    fn the_size_is_read_and_may_be_odd_for_a_moment() {
        let line = |rss: &str| {
            format!("77 (x) R 1 7 7 0 -1 0 0 0 0 0 1 2 0 0 20 0 1 0 5 99 {rss} 1 1 1 1 1 1 1 1 1 1 0 0 0 17 1 0 0\n")
        };
        assert_eq!(parse_stat(line("5242").as_bytes()).unwrap().resident_pages, 5242);
        assert_eq!(parse_stat(line("-3").as_bytes()).unwrap().resident_pages, 0);
    }

    #[test]
    fn a_name_may_contain_anything() {
        for comm in [&b"a) b (c"[..], b") R 1 2 3", b"", b"two words", b"\xff\xfe)(", b"tab\there", b"line\nbreak"] {
            let bytes = line(comm);
            let stat = parse_stat(&bytes).unwrap();
            assert_eq!(stat.comm, comm);
            assert_eq!((stat.state, stat.core, stat.rt_priority, stat.policy), (b'R', 39, 50, 1));
            assert_eq!((stat.nice, stat.threads, stat.started), (-5, 9, 123_456));
            assert_eq!((stat.user_ticks, stat.system_ticks, stat.minor_faults, stat.major_faults), (41, 42, 100, 3));
        }
    }

    #[test]
    fn names_are_shown_without_escapes_and_controls() {
        assert_eq!(readable_name(b"a\\nb\\\\c"), "a\u{fffd}b\\c");
        assert_eq!(readable_name(b"\x1b[31mred\xff"), "\u{fffd}[31mred\u{fffd}");
        assert_eq!(readable_name("größe".as_bytes()), "größe");
    }

    #[test]
    fn a_truncated_file_names_the_missing_field() {
        let error = parse_stat(b"77 (x) R 1 77").unwrap_err();
        assert_eq!(error.to_string(), "line 1: expected field 9 (flags)");
        assert!(parse_stat(b"").is_err());
        assert!(parse_schedstat(b"1 2").is_err());
        assert_eq!(parse_schedstat(b"100 20 3\n").unwrap(), SchedTimes { run_ns: 100, wait_ns: 20, slices: 3 });
    }

    #[test]
    fn the_thread_group_is_found() {
        assert_eq!(parse_tgid(b"Name:\tTgid:\\n9\nUmask:\t0022\nTgid:\t22842\nNgid:\t0\n"), Some(22_842));
        assert_eq!(parse_tgid(b"Name:\tx\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse_stat(&bytes);
            let _ = parse_schedstat(&bytes);
            let _ = parse_tgid(&bytes);
            let shown = readable_name(&bytes);
            prop_assert!(!shown.chars().any(char::is_control));
        }

        #[test]
        fn any_fields_are_parsed_or_refused(fields in proptest::collection::vec("-?[0-9]{0,22}|[A-Z]", 0..60), comm in ".{0,20}") {
            let _ = parse_stat(format!("1 ({comm}) R {}", fields.join(" ")).as_bytes());
        }

        #[test]
        fn any_name_comes_back(comm in proptest::collection::vec(any::<u8>(), 0..64)) {
            let bytes = line(&comm);
            let stat = parse_stat(&bytes).unwrap();
            prop_assert_eq!(stat.comm, &comm[..]);
            prop_assert_eq!(stat.core, 39);
        }

        #[test]
        fn any_times_come_back(run_ns: u64, wait_ns: u64, slices: u64) {
            let times = parse_schedstat(format!("{run_ns} {wait_ns} {slices}\n").as_bytes()).unwrap();
            prop_assert_eq!(times, SchedTimes { run_ns, wait_ns, slices });
        }
    }
}
