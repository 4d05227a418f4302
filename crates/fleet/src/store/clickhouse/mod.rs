//! ClickHouse as the store: any number of collectors share it, and none keeps anything of its own.
//!
//! Requests are gathered, for some seconds or until there are many rows, and inserted together: one insert for each table. A request is
//! acknowledged after ClickHouse has acknowledged all of them. If one fails, or its answer is lost, the request is not acknowledged, the
//! node sends it again, to this collector or another, and its rows replace themselves.

mod address;
mod asking;
pub mod dump;
pub mod growth;
mod hours;
mod keys;
pub mod look;
pub mod read;
mod rows;
mod schema;
pub mod stacks;
mod texts;
pub mod wanted;

use super::write::{MOST_NODES, Retention, Stored};
use super::{MOST_WAITING, NotStored, StoreStatus, unix_now};
use crate::ingest::Batch;
pub use address::Address;
use anyhow::Context;
pub use asking::Asking;
use clickhouse::{Client, Compression, RowOwned, RowWrite};
use coroner_evidence::own_directory::OwnDirectory;
use keys::Keys;
pub use keys::is_itself;
use rows::{ReportRow, Rows};
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use texts::Texts;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

/// For a statement, and for an insert.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
const INSERTED_WITHIN: Duration = Duration::from_secs(20);
/// The first that come after a pause are inserted after this.
const TOGETHER_WITHIN: Duration = Duration::from_millis(100);
/// So many rows do not wait for others.
const ENOUGH_ROWS: usize = 10_000;
/// Of an insert; a request has at most some ten thousand.
const MOST_ROWS: usize = 50_000;
/// Memory for rows that wait. More requests are told to come later.
const MOST_WAITING_KIB: usize = 128 << 10;
/// Until ClickHouse is there at the start.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(3);
/// What belongs to nodes that are no longer known is removed this often.
const FORGET_EVERY: Duration = Duration::from_secs(24 * 3600);
/// Bytes are asked for this often.
const SIZE_EVERY: Duration = Duration::from_secs(60);

struct Waiting {
    key: String,
    batches: Vec<Batched>,
    answer: oneshot::Sender<Result<Stored, NotStored>>,
    _room: OwnedSemaphorePermit,
}

/// A batch as rows.
struct Batched {
    node: String,
    stream: String,
    sequence: u64,
    told: u64,
    report: ReportRow,
    rows: Rows,
}

#[derive(Default)]
struct Shared {
    status: Mutex<StoreStatus>,
    stop: Notify,
    is_stopping: AtomicBool,
    bytes: AtomicU64,
}

impl Shared {
    fn status(&self) -> std::sync::MutexGuard<'_, StoreStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct ClickHouseStore {
    address: Address,
    client: Client,
    retention: Retention,
    to_writer: mpsc::Sender<Waiting>,
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
    /// For the tokens; this collector's alone.
    own: OwnDirectory,
}

/// The answer, or that there was none in time.
async fn within<T>(ask: impl Future<Output = clickhouse::error::Result<T>>) -> anyhow::Result<T> {
    let answer = timeout(ANSWERED_WITHIN, ask).await.unwrap_or(Err(clickhouse::error::Error::TimedOut));
    answer.context("ClickHouse")
}

impl ClickHouseStore {
    /// Makes the tables. If ClickHouse does not answer yet, that is tried again until it does; if it refuses, that is an error.
    pub async fn open(directory: &Path, address: Address, retention: Retention) -> anyhow::Result<ClickHouseStore> {
        let own = OwnDirectory::take(directory)?;
        let mut client = Client::default()
            .with_url(&address.url)
            .with_user(&address.user)
            .with_password(&address.password)
            .with_database(&address.database)
            .with_compression(Compression::Lz4)
            .with_product_info("coroner-fleet", env!("CARGO_PKG_VERSION"));
        for (name, value) in &address.settings {
            client = client.with_setting(name, value);
        }
        let shared = Arc::new(Shared::default());
        let is_prepared = match schema::prepare(&client, &address, retention).await {
            Ok(()) => true,
            Err(error) if is_away(&error) => {
                eprintln!("coroner fleet: {}: {error:#}; trying again", address.shown());
                shared.status().trouble = Some(format!("{error:#}"));
                false
            }
            Err(error) => return Err(error.context(address.shown())),
        };
        let (to_writer, waiting) = mpsc::channel(8 * MOST_WAITING);
        let writer = Writer {
            client: client.clone(),
            address: address.clone(),
            retention,
            shared: Arc::clone(&shared),
            keys: Keys::default(),
            texts: Texts::default(),
            sequences: HashMap::new(),
            is_prepared,
        };
        tokio::spawn(writer.write_all(waiting));
        let room = Arc::new(Semaphore::new(MOST_WAITING_KIB));
        Ok(ClickHouseStore { address, client, retention, to_writer, room, shared, own })
    }

    pub fn directory(&self) -> &Path {
        self.own.path()
    }

    pub fn shown(&self) -> String {
        self.address.shown()
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns when ClickHouse has acknowledged the rows.
    pub async fn store(&self, key: String, batches: Vec<Batch>) -> Result<Stored, NotStored> {
        // Nobody waits in vain; the writer finds out when it is over.
        if let Some(why) = self.status().trouble {
            return Err(NotStored::Failed(why));
        }
        let now = unix_now();
        let rows_of = |batch: Batch| Batched {
            told: batch.rows() + batch.stacks.len() as u64,
            report: Rows::report(&batch, &key, now),
            rows: Rows::of(&batch, self.retention, now),
            node: batch.head.node,
            stream: batch.head.stream,
            sequence: batch.head.sequence,
        };
        let batches: Vec<Batched> = batches.into_iter().map(rows_of).collect();
        let kib = batches.iter().map(|batch| batch.rows.bytes() + 512).sum::<usize>() >> 10;
        let Ok(room) = Arc::clone(&self.room).try_acquire_many_owned(kib.min(MOST_WAITING_KIB) as u32 + 1) else {
            return Err(NotStored::Busy);
        };
        let (answer, stored) = oneshot::channel();
        match self.to_writer.try_send(Waiting { key, batches, answer, _room: room }) {
            Ok(()) => stored.await.unwrap_or_else(|_| Err(NotStored::Failed("the store has stopped".to_owned()))),
            Err(mpsc::error::TrySendError::Full(_)) => Err(NotStored::Busy),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(NotStored::Failed("the store has stopped".to_owned())),
        }
    }

    /// From now on nothing is gathered.
    pub fn drain(&self) {
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        self.shared.stop.notify_one();
    }

    pub fn status(&self) -> StoreStatus {
        self.shared.status().clone()
    }

    /// On ClickHouse's disks, before replication.
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

/// Nobody answers, or ClickHouse is starting; rather than that it refuses.
fn is_away(error: &anyhow::Error) -> bool {
    use clickhouse::error::Error;
    matches!(error.downcast_ref::<Error>(), Some(Error::Network(_) | Error::TimedOut))
}

/// The only one that inserts.
struct Writer {
    client: Client,
    address: Address,
    retention: Retention,
    shared: Arc<Shared>,
    keys: Keys,
    texts: Texts,
    /// Of each node, the stream and its last batch that this collector stored. Repeats need not be inserted again.
    sequences: HashMap<String, (String, u64)>,
    is_prepared: bool,
}

impl Writer {
    async fn write_all(mut self, mut waiting: mpsc::Receiver<Waiting>) {
        let (mut inserted, mut forget_at) = (None::<Instant>, Instant::now() + FORGET_EVERY);
        let mut size_at = Instant::now();
        loop {
            if !self.is_prepared {
                self.prepare().await;
            }
            let first = match timeout(TRY_AGAIN_AFTER, waiting.recv()).await {
                Ok(Some(first)) => Some(first),
                Ok(None) => return,
                Err(_) => None,
            };
            if let Some(first) = first {
                let due = inserted.map_or(Instant::now(), |at| at + self.address.between_inserts);
                let due = due.max(Instant::now() + TOGETHER_WITHIN);
                let together = gather(first, &mut waiting, due, &self.shared).await;
                inserted = Some(Instant::now());
                self.insert(together).await;
            } else if self.shared.status().trouble.is_some() {
                self.look().await;
            }
            if self.is_prepared && Instant::now() >= size_at {
                size_at = Instant::now() + SIZE_EVERY;
                self.measure().await;
            }
            if self.is_prepared && Instant::now() >= forget_at {
                forget_at = Instant::now() + FORGET_EVERY;
                self.forget().await;
            }
        }
    }

    async fn prepare(&mut self) {
        match schema::prepare(&self.client, &self.address, self.retention).await {
            Ok(()) => {
                self.is_prepared = true;
                self.shared.status().trouble = None;
            }
            Err(error) => self.shared.status().trouble = Some(format!("{error:#}")),
        }
    }

    /// Is it back, and does it take rows?
    async fn look(&mut self) {
        if schema::say_version(&self.client, &self.address).await.is_ok() {
            self.shared.status().trouble = None;
        }
    }

    async fn measure(&self) {
        let size = "SELECT sum(bytes_on_disk) FROM system.parts WHERE active AND database = ?";
        if let Ok(bytes) = within(self.client.query(size).bind(&self.address.database).fetch_one::<u64>()).await {
            self.shared.bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// Identities of nodes that have not reported for as long as anything is kept. A report precedes its identity.
    async fn forget(&self) {
        let gone = "DELETE FROM nodes WHERE node NOT IN (SELECT node FROM reports)";
        if let Err(error) = within(self.client.query(gone).execute()).await {
            eprintln!("coroner fleet: nodes that are gone could not be removed: {error:#}");
        }
    }

    /// Stores all of them, and then answers.
    async fn insert(&mut self, mut together: Vec<Waiting>) {
        let mut answers: Vec<Result<Stored, NotStored>> = Vec::with_capacity(together.len());
        let outcome = self.rows_of(&mut together, &mut answers).await;
        let outcome = match outcome {
            Ok(rows) => {
                // A task of its own: the client panics if somebody altered the tables.
                let client = self.client.clone();
                match tokio::spawn(async move { insert_all(&client, &rows, unix_now()).await }).await {
                    Ok(outcome) => outcome,
                    Err(_) => Err(anyhow::anyhow!("the tables in ClickHouse are not those that coroner made")),
                }
            }
            Err(error) => Err(error),
        };
        let mut status = self.shared.status();
        match outcome {
            Ok(()) => {
                status.commits += 1;
                status.trouble = None;
                for stored in answers.iter().flatten() {
                    status.batches += stored.batches;
                    status.repeated += stored.repeated;
                    status.rows += stored.rows;
                    status.refused_stacks += stored.refused_stacks;
                }
                drop(status);
                for (request, answer) in together.into_iter().zip(answers) {
                    if answer.is_ok() {
                        self.remember(&request.batches);
                    }
                    let _ = request.answer.send(answer);
                }
            }
            Err(error) => {
                let why = format!("{error:#}");
                status.failed_commits += 1;
                status.trouble = Some(why.clone());
                drop(status);
                self.keys.forget();
                self.texts.forget();
                for request in together {
                    let _ = request.answer.send(Err(NotStored::Failed(why.clone())));
                }
            }
        }
    }

    /// What is new of these requests, and the answer to each if it can be stored.
    async fn rows_of(
        &mut self,
        together: &mut [Waiting],
        answers: &mut Vec<Result<Stored, NotStored>>,
    ) -> anyhow::Result<Rows> {
        anyhow::ensure!(self.is_prepared, "ClickHouse was not there yet");
        let reporting = |request: &Waiting| -> Vec<(String, String)> {
            request.batches.iter().map(|batch| (batch.node.clone(), request.key.clone())).collect()
        };
        let reporting: Vec<(String, String)> = together.iter().flat_map(reporting).collect();
        self.keys.read(&self.client, reporting.iter().map(|(node, key)| (node.as_str(), key.as_str()))).await?;
        let now = unix_now();
        self.texts.read(&self.client, now).await?;
        let mut all = Rows::default();
        for request in together.iter_mut() {
            let refused = |batch: &Batched| self.keys.may(&batch.node, &request.key, now).err();
            if let Some(why) = request.batches.iter().find_map(refused) {
                answers.push(Err(NotStored::NotItself(why)));
                continue;
            }
            request.batches.iter().for_each(|batch| self.keys.set(&batch.node, &request.key, now));
            let mut stored = Stored::default();
            let mut here: HashMap<(&str, &str), u64> = HashMap::new();
            for batch in &mut request.batches {
                all.reports.push(batch.report.clone());
                let mut rows = std::mem::take(&mut batch.rows);
                let known = here.get(&(batch.node.as_str(), batch.stream.as_str())).copied();
                let known = known.max(known_of(&self.sequences, batch));
                if known.is_some_and(|known| batch.sequence <= known) {
                    stored.repeated += 1;
                    continue;
                }
                here.insert((&batch.node, &batch.stream), batch.sequence);
                stored.batches += 1;
                stored.rows += batch.told;
                stored.refused_stacks += self.texts.admit(&mut rows);
                all.append(rows);
            }
            answers.push(Ok(stored));
        }
        Ok(all)
    }

    fn remember(&mut self, batches: &[Batched]) {
        // Nodes come and go; a repeat that is inserted again changes nothing.
        if self.sequences.len() >= MOST_NODES as usize {
            self.sequences.clear();
        }
        for batch in batches {
            if known_of(&self.sequences, batch).is_none_or(|known| known < batch.sequence) {
                self.sequences.insert(batch.node.clone(), (batch.stream.clone(), batch.sequence));
            }
        }
    }
}

/// The last batch of its stream that this collector stored.
fn known_of(sequences: &HashMap<String, (String, u64)>, batch: &Batched) -> Option<u64> {
    let (stream, sequence) = sequences.get(&batch.node)?;
    (*stream == batch.stream).then_some(*sequence)
}

/// More until then, until there are enough rows, or until the collector stops.
async fn gather(
    first: Waiting,
    waiting: &mut mpsc::Receiver<Waiting>,
    until: Instant,
    shared: &Shared,
) -> Vec<Waiting> {
    let rows_of = |request: &Waiting| request.batches.iter().map(|batch| batch.rows.len() + 1).sum::<usize>();
    let mut rows = rows_of(&first);
    let mut together = vec![first];
    while rows < MOST_ROWS {
        let is_enough = rows >= ENOUGH_ROWS || shared.is_stopping.load(Ordering::Relaxed);
        // What is there already shares the insert in any case.
        let next = match waiting.try_recv() {
            Ok(next) => Some(next),
            Err(_) if is_enough => None,
            Err(_) => tokio::select! {
                next = timeout_at(until, waiting.recv()) => next.ok().flatten(),
                () = shared.stop.notified() => continue,
            },
        };
        let Some(next) = next else { break };
        rows += rows_of(&next);
        together.push(next);
    }
    together
}

/// A report comes first: identities of nodes without one are removed.
async fn insert_all(client: &Client, rows: &Rows, now: i64) -> anyhow::Result<()> {
    let Rows { reports, identities, boots, minutes, diagnosed, observed, incidents, stacks, texts } = rows;
    insert(client, "reports", reports).await?;
    insert(client, "identities", identities).await?;
    insert(client, "boots", boots).await?;
    insert(client, "minutes", minutes).await?;
    hours::roll(client, minutes, now).await?;
    // No sample refers to a text that is not there.
    insert(client, "stack_texts", texts).await?;
    insert(client, "stack_samples", stacks).await?;
    insert(client, "diagnosed", diagnosed).await?;
    insert(client, "observed", observed).await?;
    insert(client, "incidents", incidents).await
}

async fn insert<T: RowOwned + RowWrite>(client: &Client, table: &str, rows: &[T]) -> anyhow::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let all = async {
        let mut insert = client.insert::<T>(table).await?;
        insert = insert
            // A repeat of an insert whose views failed must reach them.
            .with_setting("insert_deduplicate", "0")
            // Bounded by how long rows are kept.
            .with_setting("max_partitions_per_insert_block", "0");
        for row in rows {
            insert.write(row).await?;
        }
        insert.end().await
    };
    let inserted = timeout(INSERTED_WITHIN, all).await.unwrap_or(Err(clickhouse::error::Error::TimedOut));
    inserted.with_context(|| format!("{} rows were not inserted into {table}", rows.len()))
}
