//! The HTTP server of the page and of the recorder's metrics.
//!
//! What the answers say is not known here: an [`Api`] gives them. This crate decides who may ask ([`guard`]), how many at a time and
//! for how long ([`server`]), and how an answer travels: compressed, with an ETag, from memory if it was given before ([`kept`]).
//!
//! No path of a client reaches the file system: assets are looked up in a list, and an [`Ask`] is words, never a file name.

mod answer;
mod ask;
mod guard;
mod kept;
mod peer;
mod request;
mod response;
mod server;

pub use answer::{Answer, Refusal};
pub use ask::Ask;
pub use guard::{Token, is_loopback};
pub use server::{Options, Running, serve};

/// A file that is there anyway.
#[derive(Debug, Clone)]
pub struct Asset {
    pub body: bytes::Bytes,
    pub content_type: &'static str,
    /// Its name has a hash of its content: it never changes.
    pub is_immutable: bool,
}

/// Gives the answers.
pub trait Api: Send + Sync + 'static {
    /// The file with this name: `index.html` (which is `/`), `assets/app.1a2b3c.js`. What is none is asked for as below.
    fn asset(&self, name: &str) -> Option<Asset>;

    /// What an answer to this would be of, for as long as it stays the same: a sealed recording never changes. `None` if it may
    /// change at any time; it is then neither kept nor compared.
    fn version(&self, ask: &Ask) -> Option<u64>;

    /// Whether the answer takes next to nothing, and so need not wait for others.
    fn is_light(&self, ask: &Ask) -> bool;

    /// Called on a thread of its own. Should look at [`Ask::is_cancelled`] now and then if it takes long.
    fn answer(&self, ask: &Ask) -> Result<Answer, Refusal>;
}
