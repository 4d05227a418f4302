//! Sends bodies to a collector over many connections, again if it is told to come later.

use super::nodes::Body;
use super::outage::Answer;
use anyhow::{Result, bail};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ureq::Agent;

const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const MOST_TRIES: u32 = 100;

pub struct Sender {
    agent: Agent,
    url: String,
    token: String,
    connections: usize,
}

#[derive(Debug, Default, Clone)]
pub struct Sent {
    pub requests: u64,
    pub bytes: u64,
    pub rows: u64,
    /// Sent twice on purpose.
    pub repeated: u64,
    /// Told to come later.
    pub shed: u64,
    pub median: Duration,
    pub p99: Duration,
}

impl Sender {
    pub fn new(to: &str, token: &str, connections: usize) -> Sender {
        let agent = Agent::config_builder()
            .timeout_global(Some(ANSWER_WITHIN))
            .http_status_as_error(false)
            .max_idle_connections(connections)
            .max_idle_connections_per_host(connections)
            .build()
            .new_agent();
        Sender {
            agent,
            url: format!("{}/api/v1/report", to.trim_end_matches('/')),
            token: token.to_owned(),
            connections,
        }
    }

    /// One body of each of `count` nodes, as fast as the collector takes them.
    pub fn send_all(&self, count: usize, body: impl Fn(usize) -> Body + Sync) -> Result<Sent> {
        self.send_paced(count, Duration::ZERO, |at| Some(body(at)))
    }

    /// The same, spread over `within`.
    pub fn send_paced(
        &self,
        count: usize,
        within: Duration,
        body: impl Fn(usize) -> Option<Body> + Sync,
    ) -> Result<Sent> {
        let (next, began) = (AtomicUsize::new(0), Instant::now());
        let sums: Mutex<(Sent, Vec<Duration>)> = Mutex::default();
        let failed: Mutex<Option<anyhow::Error>> = Mutex::default();
        let lock = |failed: &Mutex<Option<anyhow::Error>>| {
            failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).is_some()
        };
        std::thread::scope(|scope| {
            for _ in 0..self.connections.min(count.max(1)) {
                scope.spawn(|| {
                    let (mut own, mut times) = (Sent::default(), Vec::new());
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= count || lock(&failed) || crate::interrupt::requested() {
                            break;
                        }
                        let due = within.mul_f64(at as f64 / count as f64);
                        std::thread::sleep(due.saturating_sub(began.elapsed()));
                        let Some(body) = body(at).filter(|body| !body.text.is_empty()) else { continue };
                        let start = Instant::now();
                        if let Err(error) = self.send(&body, &mut own) {
                            *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(error);
                            break;
                        }
                        times.push(start.elapsed());
                    }
                    let mut sums = sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    sums.0.add(&own);
                    sums.1.append(&mut times);
                });
            }
        });
        if let Some(error) = failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            return Err(error);
        }
        let (mut sent, mut times) = sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        times.sort_unstable();
        let quantile = |share: f64| times.get((times.len() as f64 * share) as usize).copied().unwrap_or_default();
        (sent.median, sent.p99) = (quantile(0.5), quantile(0.99));
        Ok(sent)
    }

    fn send(&self, body: &Body, sent: &mut Sent) -> Result<()> {
        let packed = zstd::bulk::compress(body.text.as_bytes(), 3)?;
        for repeat in 0..1 + u32::from(body.repeated) {
            self.post(&packed, &body.key, sent)?;
            sent.requests += 1;
            sent.bytes += packed.len() as u64;
            sent.repeated += u64::from(repeat > 0);
        }
        sent.rows += body.rows;
        Ok(())
    }

    fn post(&self, packed: &[u8], key: &str, sent: &mut Sent) -> Result<()> {
        for _ in 0..MOST_TRIES {
            match self.try_once(packed, key)? {
                Answer::Stored => return Ok(()),
                Answer::Later(_) => {
                    sent.shed += 1;
                    std::thread::sleep(Duration::from_millis(200));
                }
                Answer::Refused(why) => bail!("the collector answered {why}"),
            }
        }
        bail!("the collector did not take a batch after {MOST_TRIES} tries")
    }

    /// An error if nobody answered.
    pub fn try_once(&self, packed: &[u8], key: &str) -> Result<Answer> {
        let request = self.agent.post(&self.url).header("Authorization", format!("Bearer {}", self.token));
        let request = request.header("Coroner-Node-Key", key).header("Content-Encoding", "zstd");
        let mut response = request.send(packed)?;
        let status = response.status().as_u16();
        let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        // Read to the end, so that the connection can be used again.
        let said = response.body_mut().read_to_string();
        Ok(match status {
            200..=299 => Answer::Stored,
            429 | 503 => Answer::Later(after.map(Duration::from_secs)),
            status => Answer::Refused(format!("{status}: {}", said?)),
        })
    }
}

impl Sent {
    fn add(&mut self, other: &Sent) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.rows += other.rows;
        self.repeated += other.repeated;
        self.shed += other.shed;
    }
}
