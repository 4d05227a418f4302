//! Makes a long perf script text from a short one without mere repetition: a recording of hours keeps having new addresses,
//! new processes, and some new functions.
//!
//! Each copy has other thread ids and times; jittered periods; other low six bits in the address and offset of each leaf and of
//! three in ten user frames; random addresses for unknown frames; one in ten user symbols renamed.

use crate::random::Random;
use std::collections::HashMap;
use std::io::{self, Write};

/// Writes copies of `text` until there are `size` bytes.
pub fn write(text: &str, size: u64, mut to: impl Write) -> io::Result<u64> {
    let mut random = Random::new(1);
    let (mut written, mut copy) = (0, 0);
    let mut out = String::new();
    while written + (out.len() as u64) < size {
        let before = written + out.len() as u64;
        let mut renamed: HashMap<&str, bool> = HashMap::new();
        let mut leaf = false;
        for line in text.lines() {
            if line.starts_with('#') {
                if copy == 0 {
                    out.push_str(line);
                    out.push('\n');
                }
                continue;
            }
            let varied = if line.starts_with('\t') {
                let varied = frame(line, copy, leaf, &mut random, &mut renamed);
                leaf = false;
                varied
            } else {
                leaf = !line.is_empty();
                header(line, copy, &mut random)
            };
            out.push_str(varied.as_deref().unwrap_or(line));
            out.push('\n');
            if out.len() > 1 << 16 {
                written += out.len() as u64;
                to.write_all(out.as_bytes())?;
                out.clear();
            }
        }
        copy += 1;
        if written + out.len() as u64 == before {
            return Err(io::Error::other("there is no line to vary"));
        }
    }
    to.write_all(out.as_bytes())?;
    to.flush()?;
    Ok(written + out.len() as u64)
}

/// `COMM TID [CORE] SECONDS.FRACTION: PERIOD EVENT: `. `None` for another line.
fn header(line: &str, copy: u64, random: &mut Random) -> Option<String> {
    let (task, rest) = line.split_at(line.find(" [")?);
    let (comm, tid) = task.rsplit_once(' ')?;
    let tid: u64 = tid.parse().ok()?;
    let (core, rest) = rest.split_once("] ")?;
    let (seconds, rest) = rest.split_once('.')?;
    let spaces = seconds.len() - seconds.trim_start().len();
    let seconds: u64 = seconds.trim_start().parse().ok()?;
    let (fraction, rest) = rest.split_once(": ")?;
    let (period, event) = rest.trim_start().split_once(' ')?;
    let width = rest.len() - event.len() - 1;
    let period = period.parse::<u64>().ok()? + random.bits(8);
    let (tid, seconds) = (tid + copy * 97, seconds + copy * 31);
    Some(format!("{comm} {tid}{core}] {:spaces$}{seconds}.{fraction}: {period:width$} {event}", ""))
}

/// `ADDRESS SYMBOL+0xOFFSET (MODULE)`. `None` for another line.
fn frame<'a>(
    line: &'a str,
    copy: u64,
    leaf: bool,
    random: &mut Random,
    renamed: &mut HashMap<&'a str, bool>,
) -> Option<String> {
    let (address, rest) = line.trim_start().split_once(' ')?;
    let mut address = u64::from_str_radix(address, 16).ok()?;
    let (function, module) = rest.split_at(rest.find(" (/").or_else(|| rest.rfind(" ("))?);
    let (symbol, offset) = match function.rsplit_once("+0x") {
        Some((symbol, offset)) => (symbol, Some(u64::from_str_radix(offset, 16).ok()?)),
        None => (function, None),
    };
    let kernel = module.starts_with(" ([kernel");
    let mut offset = offset;
    if module == " ([unknown])" {
        address = if address == 0 { 0 } else { random.bits(44) };
    } else if leaf || (!kernel && random.bits(10) < 307) {
        let low = random.bits(6);
        address = address & !63 | low;
        offset = offset.map(|offset| offset & !63 | low);
    }
    let new_name =
        copy > 0 && symbol != "[unknown]" && !kernel && *renamed.entry(symbol).or_insert_with(|| random.bits(10) < 102);
    let suffix = if new_name { format!("_v{copy}") } else { String::new() };
    let offset = offset.map(|offset| format!("+0x{offset:x}")).unwrap_or_default();
    Some(format!("\t{address:16x} {symbol}{suffix}{offset}{module}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_differ_and_keep_their_form() {
        let text = "# header\nmy task 12 [001] 100.000001:    1001001 cpu-clock:ppp: \n\
                    \tffffffff821f04e5 f+0x105 ([kernel.kallsyms])\n\
                    \t         8a4f756 runtime.mallocgc+0x1bc (/usr/bin/kubelet)\n\
                    \t     36f81e74ef5 [unknown] ([unknown])\n\n";
        let mut out = Vec::new();
        let size = write(text, 3 * text.len() as u64, &mut out).expect("memory");
        assert_eq!(size, out.len() as u64);
        let out = String::from_utf8(out).expect("text");
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.iter().filter(|line| line.starts_with('#')).count(), 1);
        assert!(lines[6].starts_with("my task 109 [001] 131.000001:    1001"), "{}", lines[6]);
        assert!(lines[7].ends_with(" ([kernel.kallsyms])") && lines[7] != lines[2]);
        assert_eq!(lines[7].len(), lines[2].len());
        assert_ne!(lines[9], lines[4]);
    }
}
