//! Chooses the time range to show if all of it would be too much: one wrong timestamp must not push out the rest.

/// The start of the `width` columns with the most samples. `columns` are (position, samples) in order of position.
pub(super) fn densest(columns: &[(u64, u64)], width: u64) -> u64 {
    let (mut from, mut sum) = (0, 0u64);
    let (mut best, mut most) = (columns.first().map_or(0, |(at, _)| *at), 0);
    for (at, samples) in columns {
        sum += samples;
        while at - columns[from].0 >= width {
            sum -= columns[from].1;
            from += 1;
        }
        if sum > most {
            most = sum;
            best = columns[from].0;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::densest;

    #[test]
    fn a_distant_single_sample_does_not_decide() {
        assert_eq!(densest(&[(0, 1), (1_000_000, 50), (1_000_009, 50), (u64::MAX, 3)], 10), 1_000_000);
        assert_eq!(densest(&[(0, 1), (1_000_000, 50), (1_000_009, 60)], 9), 1_000_009);
        assert_eq!(densest(&[], 10), 0);
    }
}
