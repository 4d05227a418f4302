//! What several rules need of the same evidence is made once. Rules ask for it each by themselves, and of ten minutes of a large node
//! making it takes longer than all else.

use super::owners::Charges;
use super::threads::ThreadSamples;
use super::timeline::Timeline;
use super::waits::Waits;
use coroner_evidence::Evidence;
use std::cell::RefCell;
use std::sync::Arc;

/// What is there of the evidence that is being judged on this thread.
struct Made {
    of: *const Evidence,
    parts: Parts,
}

#[derive(Default)]
pub(super) struct Parts {
    pub timeline: Option<Arc<Timeline>>,
    pub samples: Option<Arc<ThreadSamples>>,
    pub charges: Option<Arc<Charges>>,
    pub waits: Option<Arc<Waits>>,
}

thread_local! {
    static MADE: RefCell<Option<Made>> = const { RefCell::new(None) };
}

/// Runs `work`, in which all who ask for a part of `evidence` get the same. The evidence is borrowed meanwhile, so it stays what it is.
pub fn made_once<T>(evidence: &Evidence, work: impl FnOnce() -> T) -> T {
    /// Puts back what was there, also if a rule panics.
    struct Restored(Option<Made>);
    impl Drop for Restored {
        fn drop(&mut self) {
            MADE.set(self.0.take());
        }
    }
    let _restored = Restored(MADE.replace(Some(Made { of: evidence, parts: Parts::default() })));
    work()
}

/// The part that is there; else `make` makes it, and within [`made_once`] it stays.
pub(super) fn shared<T>(
    evidence: &Evidence,
    part: fn(&mut Parts) -> &mut Option<Arc<T>>,
    make: impl FnOnce() -> T,
) -> Arc<T> {
    let of_this = |made: &mut Option<Made>, then: &mut dyn FnMut(&mut Option<Arc<T>>)| {
        if let Some(made) = made.as_mut().filter(|made| std::ptr::eq(made.of, evidence)) {
            then(part(&mut made.parts));
        }
    };
    let mut known = None;
    MADE.with_borrow_mut(|made| of_this(made, &mut |part| known = part.clone()));
    // Not while it is borrowed: what is made may need other parts.
    known.unwrap_or_else(|| {
        let made_now = Arc::new(make());
        MADE.with_borrow_mut(|made| of_this(made, &mut |part| *part = Some(Arc::clone(&made_now))));
        made_now
    })
}
