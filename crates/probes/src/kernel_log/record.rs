//! One record of /dev/kmsg (Documentation/ABI/testing/dev-kmsg).
//!
//! `prio,sequence,µs,flags[,…];text`, then lines ` KEY=value`. Unprintable bytes are written as `\xNN`, so a record's text
//! contains no newline, and a line that starts with a space never starts a record.

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub facility: u8,
    pub level: u8,
    pub sequence: u64,
    /// In µs of the kernel's local_clock.
    pub stamp_us: u64,
    pub text: String,
}

/// The kernel's own limit is 2,048 (PRINTK_MESSAGE_MAX); this bounds what a foreign file can make us keep.
const MAX_TEXT: usize = 8 << 10;

/// `None` if the line does not start a record: a ` KEY=value` line, or not a kernel log at all.
pub fn parse(line: &[u8]) -> Option<Record> {
    let semicolon = line.iter().position(|b| *b == b';')?;
    let head = std::str::from_utf8(&line[..semicolon]).ok()?;
    let mut fields = head.split(',');
    let priority: u32 = fields.next()?.parse().ok()?;
    let sequence = fields.next()?.parse().ok()?;
    let stamp_us = fields.next()?.parse().ok()?;
    Some(Record {
        facility: u8::try_from(priority >> 3).unwrap_or(u8::MAX),
        level: (priority & 7) as u8,
        sequence,
        stamp_us,
        text: unescape(&line[semicolon + 1..]),
    })
}

fn unescape(escaped: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(escaped.len().min(MAX_TEXT));
    let mut rest = escaped;
    while let Some((&first, after)) = rest.split_first() {
        if bytes.len() >= MAX_TEXT {
            break;
        }
        let code = match rest {
            [b'\\', b'x', high, low, ..] => hex(*high).zip(hex(*low)).map(|(h, l)| h << 4 | l),
            _ => None,
        };
        match code {
            Some(code) => {
                bytes.push(code);
                rest = &rest[4..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

fn hex(digit: u8) -> Option<u8> {
    (digit as char).to_digit(16).map(|d| d as u8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn facility_and_level_share_a_number() {
        let record = parse(b"6,339,5140900,-;NET: Registered protocol family 10").unwrap();
        assert_eq!((record.facility, record.level), (0, 6));
        assert_eq!((record.sequence, record.stamp_us), (339, 5_140_900));
        assert_eq!(record.text, "NET: Registered protocol family 10");
        let of_user = parse(b"12,340,5690716,c,caller=T17;udevd: a;b").unwrap();
        assert_eq!((of_user.facility, of_user.level, of_user.text.as_str()), (1, 4, "udevd: a;b"));
    }

    #[test]
    fn escaped_bytes_are_decoded() {
        assert_eq!(parse(b"6,1,2,-;a\\x0ab \\x5cx41 \\xzz \\x4").unwrap().text, "a\nb \\x41 \\xzz \\x4");
        assert_eq!(parse(b"6,1,2,-;gr\\xc3\\xbc\\xc3\\x9fe \\xff").unwrap().text, "grüße \u{fffd}");
    }

    #[test]
    fn other_lines_start_no_record() {
        for line in [" SUBSYSTEM=net", " DEVICE=n2;3", "", ";", "6,1;x", "-6,1,2,-;x", "6,1,99999999999999999999,-;x"] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(line in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&line);
            let mut record = b"30,7,8,-;".to_vec();
            record.extend(&line);
            let text = parse(&record).unwrap().text;
            // An invalid UTF-8 byte becomes one character of three bytes.
            prop_assert!(text.len() <= 3 * line.len());
        }

        #[test]
        fn any_text_survives_the_kernels_escaping(text in any::<Vec<u8>>(), prio in 0u32..1024, seq in any::<u64>(), us in any::<u64>()) {
            // kernel/printk/printk.c, append_char
            let escaped: String = text
                .iter()
                .map(|&b| if (32..127).contains(&b) && b != b'\\' { (b as char).to_string() } else { format!("\\x{b:02x}") })
                .collect();
            let record = parse(format!("{prio},{seq},{us},-;{escaped}").as_bytes()).unwrap();
            prop_assert_eq!(record.text, String::from_utf8_lossy(&text).into_owned());
            prop_assert_eq!((u32::from(record.facility) << 3) | u32::from(record.level), prio);
            prop_assert_eq!((record.sequence, record.stamp_us), (seq, us));
        }
    }
}
