//! /metrics for Prometheus: what the recorder knows of the node and of itself, served on the loopback device.
//!
//! [`text`] turns a [`Status`](super::status::Status) into the text format, [`request`] understands the little of HTTP that is
//! needed, [`server`] is the thread that serves it.

mod request;
mod server;
mod text;

pub use server::Server;
