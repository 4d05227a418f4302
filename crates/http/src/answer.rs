//! Answers and refusals.

use crate::response::Status;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use std::io::Write;

/// Shorter bodies are not worth compressing.
const COMPRESS_FROM: usize = 1024;
/// Fast levels: the client is on the same machine or at the other end of an ssh tunnel.
const GZIP_LEVEL: u32 = 2;
const ZSTD_LEVEL: i32 = 1;

#[derive(Debug, Clone)]
pub struct Answer {
    pub body: Bytes,
    pub content_type: &'static str,
    /// The name a browser should save it under.
    pub file_name: Option<String>,
}

impl Answer {
    pub fn json(document: &impl Serialize) -> Answer {
        // Fails only for maps with non-string keys, and there are none.
        Answer::text(serde_json::to_vec(document).unwrap_or_default())
    }

    /// A document that already is JSON.
    pub fn text(document: impl Into<Vec<u8>>) -> Answer {
        Answer::of("application/json", document)
    }

    pub fn of(content_type: &'static str, body: impl Into<Vec<u8>>) -> Answer {
        Answer { body: Bytes::from(body.into()), content_type, file_name: None }
    }

    pub fn file(name: impl Into<String>, content_type: &'static str, body: Vec<u8>) -> Answer {
        Answer { body: Bytes::from(body), content_type, file_name: Some(name.into()) }
    }
}

/// Why there is no answer, and what to do.
#[derive(Debug, Clone)]
pub struct Refusal {
    pub(crate) status: Status,
    pub error: String,
    pub what_to_do: String,
}

impl Refusal {
    fn new(status: Status, error: impl Into<String>, what_to_do: impl Into<String>) -> Refusal {
        Refusal { status, error: error.into(), what_to_do: what_to_do.into() }
    }

    /// The query is invalid.
    pub fn bad(error: impl Into<String>, what_to_do: impl Into<String>) -> Refusal {
        Refusal::new(Status::BadRequest, error, what_to_do)
    }

    /// The source has nothing of the kind.
    pub fn absent(error: impl Into<String>, what_to_do: impl Into<String>) -> Refusal {
        Refusal::new(Status::NotFound, error, what_to_do)
    }

    /// The subject of the query no longer exists.
    pub fn gone(error: impl Into<String>, what_to_do: impl Into<String>) -> Refusal {
        Refusal::new(Status::Gone, error, what_to_do)
    }

    /// It will be available in a moment.
    pub fn not_yet(error: impl Into<String>, what_to_do: impl Into<String>) -> Refusal {
        Refusal::new(Status::Unavailable, error, what_to_do)
    }

    /// Reading failed.
    pub fn failed(error: impl Into<String>) -> Refusal {
        Refusal::new(Status::Failed, error, "make the file named in the error readable, then reload")
    }

    pub(crate) fn of_status(status: Status, error: &str, what_to_do: &str) -> Refusal {
        Refusal::new(status, error, what_to_do)
    }

    pub fn document(&self) -> String {
        serde_json::json!({ "error": self.error, "what_to_do": self.what_to_do }).to_string()
    }
}

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    Plain,
    Gzip,
    Zstd,
}

impl Encoding {
    /// The best encoding that the client's Accept-Encoding allows.
    pub fn accepted(header: &str) -> Encoding {
        let takes = |wanted: &str| {
            header.split(',').any(|part| {
                let (name, weight) = part.split_once(';').unwrap_or((part, ""));
                let refused = weight.trim().strip_prefix("q=").is_some_and(|q| q.parse() == Ok(0.0));
                name.trim().eq_ignore_ascii_case(wanted) && !refused
            })
        };
        if takes("zstd") {
            Encoding::Zstd
        } else if takes("gzip") {
            Encoding::Gzip
        } else {
            Encoding::Plain
        }
    }

    /// The value of `Content-Encoding`; `None` for a plain body.
    pub fn header(self) -> Option<&'static str> {
        match self {
            Encoding::Plain => None,
            Encoding::Gzip => Some("gzip"),
            Encoding::Zstd => Some("zstd"),
        }
    }

    /// The body in this encoding, or plain if compression does not pay.
    pub fn encode(self, body: &Bytes) -> (Bytes, Encoding) {
        if body.len() < COMPRESS_FROM {
            return (body.clone(), Encoding::Plain);
        }
        let encoded = match self {
            Encoding::Plain => return (body.clone(), Encoding::Plain),
            Encoding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::new(GZIP_LEVEL));
                encoder.write_all(body).and_then(|()| encoder.finish())
            }
            Encoding::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL),
        };
        // Bodies that are already compressed (pprof, recordings) would only grow.
        match encoded {
            Ok(encoded) if encoded.len() < body.len() => (Bytes::from(encoded), self),
            _ => (body.clone(), Encoding::Plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn picks_the_best_encoding_a_client_accepts() {
        assert_eq!(Encoding::accepted("gzip, deflate, br, zstd"), Encoding::Zstd);
        assert_eq!(Encoding::accepted("gzip;q=0.5, zstd;q=0"), Encoding::Gzip);
        assert_eq!(Encoding::accepted("br"), Encoding::Plain);
        assert_eq!(Encoding::accepted(""), Encoding::Plain);
    }

    #[test]
    fn bodies_round_trip_and_short_ones_stay_plain() {
        let body = Bytes::from("null,".repeat(1000));
        let (gzip, encoding) = Encoding::Gzip.encode(&body);
        assert_eq!(encoding, Encoding::Gzip);
        let mut text = Vec::new();
        flate2::read::GzDecoder::new(&gzip[..]).read_to_end(&mut text).unwrap();
        assert_eq!(text, body);
        let (zstd, _) = Encoding::Zstd.encode(&body);
        assert_eq!(zstd::decode_all(&zstd[..]).unwrap(), body);
        assert_eq!(Encoding::Zstd.encode(&Bytes::from("{}")), (Bytes::from("{}"), Encoding::Plain));
    }
}
