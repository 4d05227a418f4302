//! `GET /api/v1/export`: rows as a file, sent as they are read.

use super::{Asked, Collector, Refusal, bad_request, bearer, of_store, picked, refusal, since};
use crate::export::{self, Export, Format, export};
use crate::store::dump::Node;
use crate::store::{Reader, unix_now};
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use clap::ValueEnum;
use futures_core::Stream;
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// At a time; each keeps some tens of megabytes.
pub const MOST_EXPORTS: usize = 4;
const CHUNK: usize = 64 << 10;
/// Chunks that wait for the client.
const MOST_WAITING: usize = 4;
/// A client that takes nothing for so long is gone.
const TAKEN_WITHIN: Duration = Duration::from_secs(60);

pub async fn rows(State(collector): State<Arc<Collector>>, Query(asked): Asked, headers: HeaderMap) -> Response {
    if !collector.people.is(bearer(&headers)) {
        return super::no_user_token().into_response();
    }
    let chosen = || -> Result<Export, Refusal> {
        Ok(Export {
            what: named(asked.get("what").map_or("minutes", String::as_str), "what")?,
            format: named(asked.get("format").map_or("csv", String::as_str), "format")?,
            picked: picked(&asked)?,
            since: since(&asked, unix_now(), 7 * 86_400)?,
        })
    };
    let chosen = match chosen() {
        Ok(chosen) => chosen,
        Err(refusal) => return refusal.into_response(),
    };
    let Ok(place) = Arc::clone(&collector.exports).try_acquire_owned() else {
        let why = format!("{MOST_EXPORTS} exports are running");
        return refusal(StatusCode::TOO_MANY_REQUESTS, &why, "try again when one has ended").into_response();
    };
    let reader = match collector.store.reader() {
        Ok(reader) => reader,
        Err(error) => return of_store(error).into_response(),
    };
    let kind = match chosen.format {
        Format::Csv => "text/csv; charset=utf-8; header=present",
        Format::Parquet => "application/vnd.apache.parquet",
    };
    // What can be wrong with the expression is told before the answer begins.
    let picked = tokio::task::spawn_blocking(move || picked_nodes(reader, chosen));
    match picked.await.unwrap_or_else(|error| Err(anyhow::Error::new(error))) {
        Ok((reader, chosen, nodes)) => {
            let body = send_body(place, move |to| export(&reader, &chosen, nodes, to));
            ([(header::CONTENT_TYPE, kind)], body).into_response()
        }
        Err(error) => of_store(error).into_response(),
    }
}

fn picked_nodes(reader: Reader, chosen: Export) -> anyhow::Result<(Reader, Export, Vec<Node>)> {
    let nodes = export::picked(&reader, &chosen, unix_now())?;
    Ok((reader, chosen, nodes))
}

/// A body that is sent while it is written.
pub fn send_body(
    place: OwnedSemaphorePermit,
    write: impl FnOnce(&mut ToClient) -> anyhow::Result<()> + Send + 'static,
) -> Body {
    let (sender, receiver) = channel(MOST_WAITING);
    tokio::task::spawn_blocking(move || {
        let mut to = ToClient { sender: sender.clone(), chunk: Vec::with_capacity(CHUNK), runtime: Handle::current() };
        if let Err(error) = write(&mut to).and_then(|()| Ok(to.flush()?)) {
            // The answer breaks off: the client sees that it is not complete.
            let _ = sender.try_send(Err(io::Error::other(format!("{error:#}"))));
        }
        drop(place);
    });
    Body::from_stream(Chunks(receiver))
}

fn named<T: ValueEnum>(text: &str, parameter: &str) -> Result<T, Refusal> {
    T::from_str(text, false).map_err(|_| {
        let names = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<String> = names.map(|value| value.get_name().to_owned()).collect();
        bad_request(&format!("{parameter}: expected one of {}", names.join(", ")))
    })
}

/// Waits while the client is slower, up to a limit.
pub struct ToClient {
    sender: Sender<io::Result<Bytes>>,
    chunk: Vec<u8>,
    runtime: Handle,
}

impl Write for ToClient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.chunk.extend_from_slice(bytes);
        if self.chunk.len() >= CHUNK {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let chunk = Bytes::from(std::mem::replace(&mut self.chunk, Vec::with_capacity(CHUNK)));
        let sent = self.runtime.block_on(tokio::time::timeout(TAKEN_WITHIN, self.sender.send(Ok(chunk))));
        match sent {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the client is gone")),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing")),
        }
    }
}

struct Chunks(Receiver<io::Result<Bytes>>);

impl Stream for Chunks {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
