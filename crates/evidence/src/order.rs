//! Sorting of short lists.
//!
//! Each `sort_by_key` of the standard library compiles a whole sort for its type and closure: some 8 KB, and a seventh of the time that it
//! took to compile the rules. These sort indices with one shared sort and then move the elements. For what is long or sorted often
//! (samples, symbols, the pages of dead cgroups), use the standard library's.

use std::cmp::Ordering;

pub trait Order<T> {
    /// As `slice::sort_by`: stable.
    fn order_by(&mut self, compare: impl FnMut(&T, &T) -> Ordering);

    /// As `slice::sort_by_key`: stable.
    fn order_by_key<K: Ord>(&mut self, key: impl FnMut(&T) -> K);
}

impl<T> Order<T> for [T] {
    fn order_by(&mut self, mut compare: impl FnMut(&T, &T) -> Ordering) {
        let places = sorted(self.len(), &mut |a, b| compare(&self[a], &self[b]));
        arrange(places, &mut |a, b| self.swap(a, b));
    }

    fn order_by_key<K: Ord>(&mut self, mut key: impl FnMut(&T) -> K) {
        self.order_by(|a, b| key(a).cmp(&key(b)));
    }
}

/// The indices below `len` in order.
fn sorted(len: usize, compare: &mut dyn FnMut(usize, usize) -> Ordering) -> Vec<usize> {
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|&a, &b| compare(a, b));
    places
}

/// Moves what is at `places[i]` to `i`, for each i, by following each cycle once.
fn arrange(mut places: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for start in 0..places.len() {
        let mut at = start;
        loop {
            let from = std::mem::replace(&mut places[at], at);
            if from == start {
                break;
            }
            swap(at, from);
            at = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every list of up to seven elements with keys of 0 to 2, so that many are equal: the same as the standard library's, which is stable.
    #[test]
    fn it_orders_as_the_standard_library_does() {
        for len in 0..8u32 {
            for number in 0..3usize.pow(len) {
                let list: Vec<(usize, u32)> = (0..len).map(|i| (number / 3usize.pow(i) % 3, i)).collect();
                let (mut ours, mut theirs) = (list.clone(), list);
                ours.order_by_key(|(key, _)| *key);
                theirs.sort_by_key(|(key, _)| *key);
                assert_eq!(ours, theirs);
                ours.order_by(|a, b| b.cmp(a));
                theirs.sort_by(|a, b| b.cmp(a));
                assert_eq!(ours, theirs);
            }
        }
    }
}
