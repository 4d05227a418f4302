//! When a container started, by its log and its files.

use coroner_evidence::Wall;

/// The time of the first line of a container's log: `2016-10-06T00:17:09.669794202Z stdout F …` in CRI format
/// (kubernetes/design-proposals-archive, cri-logging), or docker's `{"log":…,"time":"…"}`.
pub fn first_entry(bytes: &[u8]) -> Option<Wall> {
    let line = bytes.split(|b| *b == b'\n').next()?;
    if line.first() == Some(&b'{') {
        let json: serde_json::Value = serde_json::from_slice(line).ok()?;
        return Wall::parse(json.get("time")?.as_str()?);
    }
    let word = line.split(|b| *b == b' ').next()?;
    Wall::parse(std::str::from_utf8(word).ok()?)
}

pub fn statx_ns(seconds: i64, ns: u32) -> Option<Wall> {
    u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?.checked_add(u64::from(ns)).map(Wall)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_line_says_when() {
        assert_eq!(first_entry(b"2023-11-14T22:13:20.5Z stderr F hello\nmore"), Some(Wall(1_700_000_000_500_000_000)));
        let json = br#"{"log":"a\n","stream":"stdout","time":"2023-11-14T22:13:20Z"}"#;
        assert_eq!(first_entry(json), Some(Wall(1_700_000_000_000_000_000)));
        assert_eq!(first_entry(b""), None);
    }

    proptest! {
        #[test]
        fn any_text(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = first_entry(&bytes);
        }
    }
}
