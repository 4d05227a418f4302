//! The page: its files, its API, and the JSON documents, which commands print too. The server is `coroner-http`.

mod assets;
pub mod documents;
mod page;

pub use page::Page;
