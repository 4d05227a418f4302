//! What a client asks for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// No legitimate query has more parameters.
const MOST_PARAMETERS: usize = 200;

/// A query to the [`crate::Api`].
#[derive(Debug, Clone, Default)]
pub struct ApiQuery {
    /// Without leading and trailing slashes: `metrics`, `api/v1/incidents/3`.
    pub path: String,
    /// The Accept header.
    pub accept: String,
    /// Decoded, in order.
    parameters: Vec<(String, String)>,
    cancelled: Arc<AtomicBool>,
}

impl ApiQuery {
    pub fn new(path: &str, query: &str, accept: &str) -> ApiQuery {
        let decoded = form_urlencoded::parse(query.as_bytes()).take(MOST_PARAMETERS);
        // The token is not part of the query.
        let parameters = decoded.filter(|(name, _)| name != "token");
        let parameters = parameters.map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
        let (path, accept) = (path.trim_matches('/').to_owned(), accept.to_owned());
        ApiQuery { path, accept, parameters, cancelled: Arc::default() }
    }

    /// The last value of a parameter; an empty value counts as missing.
    pub fn get(&self, name: &str) -> Option<&str> {
        let mut values = self.parameters.iter().rev();
        values.find(|(known, value)| known == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    /// All values of a parameter, in order.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        let values = self.parameters.iter().filter(move |(known, value)| known == name && !value.is_empty());
        values.map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on: `invert=1` or just `invert`.
    pub fn is_set(&self, name: &str) -> bool {
        let value = self.parameters.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
        value.is_some_and(|value| !matches!(value, "0" | "false" | "no"))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.parameters.iter().map(|(name, _)| name.as_str())
    }

    /// The query in one line; equal queries give equal lines.
    pub fn words(&self) -> String {
        let mut words = format!("{}?", self.path);
        words.push_str(&form_urlencoded::Serializer::new(String::new()).extend_pairs(&self.parameters).finish());
        words
    }

    /// Nobody is waiting for the answer any more.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// The flag behind [`ApiQuery::is_cancelled`].
    pub fn stop(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Cancels the query when dropped.
    pub(crate) fn guard(&self) -> Waiting {
        Waiting(Arc::clone(&self.cancelled))
    }
}

pub(crate) struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_the_token_is_dropped() {
        let query = "from=0&range=1..2&range=3..4&comm=a%20b%2Bc&invert&idle=0&token=secret&core=";
        let ask = ApiQuery::new("/flame/", query, "");
        assert_eq!((ask.path.as_str(), ask.get("from"), ask.get("comm")), ("flame", Some("0"), Some("a b+c")));
        assert_eq!(ask.all("range").collect::<Vec<_>>(), ["1..2", "3..4"]);
        assert!(ask.is_set("invert") && !ask.is_set("idle") && !ask.is_set("other"));
        assert_eq!((ask.get("core"), ask.get("token")), (None, None));
        assert!(!ask.words().contains("secret"), "{}", ask.words());
    }

    #[test]
    fn dropping_the_guard_cancels_the_query() {
        let ask = ApiQuery::new("flame", "", "");
        let waiting = ask.guard();
        assert!(!ask.is_cancelled());
        drop(waiting);
        assert!(ask.is_cancelled());
    }
}
