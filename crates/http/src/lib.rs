//! The HTTP server of the page and of the recorder's metrics.
//!
//! An [`Api`] provides the content. This crate decides who may ask ([`guard`]), how many at a time and for how long ([`server`]), and
//! how a response is sent: compressed, with an ETag, and from the cache if possible ([`kept`]).
//!
//! No path from a client reaches the file system: assets are looked up in a list, and an [`ApiQuery`] is never used as a file name.

mod answer;
mod ask;
mod guard;
mod kept;
mod peer;
mod request;
mod response;
mod server;

pub use answer::{Answer, Refusal};
pub use ask::ApiQuery;
pub use guard::{Token, is_loopback};
pub use server::{Running, ServerOptions, serve};

/// A static file.
#[derive(Debug, Clone)]
pub struct Asset {
    pub body: bytes::Bytes,
    pub content_type: &'static str,
    /// Its name contains a hash of its content, so it never changes.
    pub is_immutable: bool,
}

/// Provides the content.
pub trait Api: Send + Sync + 'static {
    /// The file with this name: `index.html` (for `/`), `assets/app.1a2b3c.js`. `None`: the request goes to [`Api::answer`].
    fn asset(&self, name: &str) -> Option<Asset>;

    /// The version of the data behind the answer: constant for a sealed recording. `None` if it may change at any time; such an
    /// answer is not cached and gets no ETag.
    fn version(&self, ask: &ApiQuery) -> Option<u64>;

    /// Whether the answer is so cheap that it need not queue behind heavy ones.
    fn is_light(&self, ask: &ApiQuery) -> bool;

    /// Called on its own thread. If it takes long, it should check [`ApiQuery::is_cancelled`] now and then.
    fn answer(&self, ask: &ApiQuery) -> Result<Answer, Refusal>;
}
