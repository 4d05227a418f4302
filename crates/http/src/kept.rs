//! A cache of recent answers, so that a reloaded page does not have to wait.

use crate::Answer;
use crate::answer::Encoding;
use bytes::Bytes;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The size limit of the cache.
const MOST_BYTES: usize = 64 << 20;

#[derive(Debug, Clone)]
pub struct Encoded {
    pub body: Bytes,
    pub encoding: Encoding,
    pub content_type: &'static str,
    pub file_name: Option<String>,
}

impl Encoded {
    pub fn of(answer: Answer, wanted: Encoding) -> Encoded {
        let (body, encoding) = wanted.encode(&answer.body);
        Encoded { body, encoding, content_type: answer.content_type, file_name: answer.file_name }
    }
}

/// Keyed by tag and requested encoding; most recently used first.
#[derive(Debug, Default)]
pub struct KeptAnswers {
    answers: Mutex<VecDeque<(String, Encoding, Encoded)>>,
}

impl KeptAnswers {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(String, Encoding, Encoded)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn get(&self, tag: &str, wanted: Encoding) -> Option<Encoded> {
        let mut answers = self.lock();
        let at = answers.iter().position(|(known, encoding, _)| known == tag && *encoding == wanted)?;
        let found = answers.remove(at)?;
        answers.push_front(found);
        answers.front().map(|(_, _, encoded)| encoded.clone())
    }

    pub fn keep(&self, tag: &str, wanted: Encoding, encoded: &Encoded) {
        // One huge answer must not evict all others.
        if encoded.body.len() > MOST_BYTES / 4 {
            return;
        }
        let mut answers = self.lock();
        answers.retain(|(known, encoding, _)| known != tag || *encoding != wanted);
        answers.push_front((tag.to_owned(), wanted, encoded.clone()));
        let mut bytes: usize = answers.iter().map(|(_, _, encoded)| encoded.body.len()).sum();
        while bytes > MOST_BYTES {
            bytes -= answers.pop_back().map_or(bytes, |(_, _, encoded)| encoded.body.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_are_evicted() {
        let kept = KeptAnswers::default();
        let answer = |bytes: usize| Encoded {
            body: Bytes::from(vec![0; bytes]),
            encoding: Encoding::Plain,
            content_type: "",
            file_name: None,
        };
        for tag in ["a", "b", "c", "d"] {
            kept.keep(tag, Encoding::Plain, &answer(MOST_BYTES / 4));
        }
        assert!(kept.get("a", Encoding::Plain).is_some() && kept.get("a", Encoding::Gzip).is_none());
        kept.keep("e", Encoding::Plain, &answer(1));
        assert!(kept.get("b", Encoding::Plain).is_none(), "the least recently used");
        assert!(kept.get("a", Encoding::Plain).is_some() && kept.get("e", Encoding::Plain).is_some());
        kept.keep("f", Encoding::Plain, &answer(MOST_BYTES / 2));
        assert!(kept.get("f", Encoding::Plain).is_none() && kept.get("a", Encoding::Plain).is_some());
    }
}
