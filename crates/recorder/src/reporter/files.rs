//! Sends the recordings of incidents that somebody asked the collector for: slowly, piece by piece, and from where it stopped if the
//! connection was lost. Reports do not wait for it.

use super::sender::{Link, chance, reason, said};
use crate::warn;
use anyhow::{Context, bail, ensure};
use coroner_report::wanted::{GONE, PIECE_BYTES, REFUSED};
use coroner_report::{Received, WantedFile};
use coroner_source::incident::IncidentState;
use coroner_source::incident_files;
use ring::digest;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A piece in this time: 1 MiB a second.
const PIECE_EVERY: Duration = Duration::from_millis(250);
/// Files that wait; the collector asks again for others.
const MOST_WAITING: usize = 16;
const SHORTEST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// In a row, without any progress; some minutes. Then the collector has to ask again.
const MOST_FAILURES: u32 = 8;

/// What the reporter hands over to the thread, which begins with the first file.
pub struct Files {
    uploader: Option<Uploader>,
    to_thread: Option<SyncSender<u64>>,
    /// Given to the thread and not done.
    taken: Arc<Mutex<BTreeSet<u64>>>,
}

impl Files {
    pub fn new(directory: &Path, node: String, allowed: bool, link: Link) -> Files {
        let uploader = Uploader { directory: directory.to_owned(), node, allowed, link };
        Files { uploader: Some(uploader), to_thread: None, taken: Arc::default() }
    }

    /// The collector repeats what it wants with each answer.
    pub fn want(&mut self, wanted: &[WantedFile]) {
        for WantedFile { incident } in wanted {
            if !lock(&self.taken).insert(*incident) {
                continue;
            }
            let is_taken = self.thread().is_some_and(|thread| thread.try_send(*incident).is_ok());
            if !is_taken {
                lock(&self.taken).remove(incident);
            }
        }
    }

    fn thread(&mut self) -> Option<&SyncSender<u64>> {
        if let Some(uploader) = self.uploader.take() {
            let (to_thread, waiting) = sync_channel(MOST_WAITING);
            let taken = Arc::clone(&self.taken);
            let run = move || uploader.run(&waiting, &taken);
            // Nobody joins it: a stopping recorder does not wait for a file, which is sent from there on when it is asked for again.
            match std::thread::Builder::new().name("files".to_owned()).spawn(run) {
                Ok(_) => self.to_thread = Some(to_thread),
                Err(error) => warn(&format!("report: no thread to send files: {error}")),
            }
        }
        self.to_thread.as_ref()
    }
}

fn lock(taken: &Mutex<BTreeSet<u64>>) -> std::sync::MutexGuard<'_, BTreeSet<u64>> {
    // A set of numbers is valid even if a holder of the lock panicked.
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Uploader {
    directory: PathBuf,
    node: String,
    allowed: bool,
    link: Link,
}

impl Uploader {
    fn run(&self, waiting: &Receiver<u64>, taken: &Mutex<BTreeSet<u64>>) {
        while let Ok(number) = waiting.recv() {
            if let Err(error) = self.answer(number) {
                warn(&format!("report: the file of incident {number}, which the collector asked for: {error:#}"));
            }
            lock(taken).remove(&number);
        }
    }

    fn answer(&self, number: u64) -> anyhow::Result<()> {
        if !self.allowed {
            return self.decline(number, REFUSED);
        }
        if let Ok(incident) = incident_files::read(&self.directory, number)
            && incident.state == IncidentState::Open
        {
            // It is written anew when it is complete; the collector asks again.
            return Ok(());
        }
        let path = incident_files::recording(&self.directory, number);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return self.decline(number, GONE),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let size = file.metadata().with_context(|| path.display().to_string())?.len();
        warn(&format!(
            "report: sending the file of incident {number} ({} KiB) to the collector: somebody asked for it",
            size >> 10
        ));
        self.send(number, &file, size)
    }

    fn decline(&self, number: u64, why: &str) -> anyhow::Result<()> {
        let response = self.link.put(&path(number), &[("node", &self.node), ("unsent", why)], &[])?;
        ensure!(response.status().is_success(), "the collector answered {}", response.status());
        Ok(())
    }

    /// The file was opened once: if another one takes its place meanwhile, this one is sent to its end.
    fn send(&self, number: u64, file: &File, size: u64) -> anyhow::Result<()> {
        let sha256 = sha256(file)?;
        let size_text = size.to_string();
        let mut piece = vec![0; PIECE_BYTES as usize];
        let (mut offset, mut failures) = (0, 0);
        loop {
            let started = Instant::now();
            let length = (size - offset).min(PIECE_BYTES) as usize;
            file.read_exact_at(&mut piece[..length], offset).context("cannot read it")?;
            let query: [(&str, &str); 4] =
                [("node", &self.node), ("size", &size_text), ("sha256", &sha256), ("offset", &offset.to_string())];
            match self.link.put(&path(number), &query, &piece[..length]) {
                Ok(mut response) => {
                    let (status, said) = (response.status().as_u16(), said(&mut response));
                    let received: Option<Received> = serde_json::from_str(&said).ok();
                    match (status, received) {
                        // 409: it already has more, or less, than this piece supposes.
                        (200 | 409, Some(received)) if received.offset <= size => {
                            failures = if received.offset > offset { 0 } else { failures + 1 };
                            offset = received.offset;
                            if status == 200 && offset == size {
                                return Ok(());
                            }
                        }
                        (429 | 500..=599, _) => failures += 1,
                        _ => bail!("the collector answered {status}: {}", reason(&said)),
                    }
                }
                Err(error) if failures + 1 >= MOST_FAILURES => return Err(error),
                Err(_) => failures += 1,
            }
            ensure!(failures < MOST_FAILURES, "the collector does not take it");
            let pause = match failures {
                0 => PIECE_EVERY,
                n => SHORTEST_PAUSE.saturating_mul(1 << n.min(10)).min(LONGEST_PAUSE).mul_f64(0.5 + chance() / 2.0),
            };
            std::thread::sleep(pause.saturating_sub(started.elapsed()));
        }
    }
}

fn path(number: u64) -> String {
    format!("incidents/{number}/file")
}

fn sha256(mut file: &File) -> anyhow::Result<String> {
    let mut context = digest::Context::new(&digest::SHA256);
    let mut buffer = vec![0; PIECE_BYTES as usize];
    loop {
        match file.read(&mut buffer).context("cannot read it")? {
            0 => break,
            read => context.update(&buffer[..read]),
        }
        // Half a gigabyte must not take a core for a second.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ReportConfig;
    use std::io::Write;
    use std::net::TcpListener;

    /// What came, and the first lines of the requests.
    type Played = std::thread::JoinHandle<(Vec<u8>, Vec<String>)>;

    /// Takes pieces: loses one connection on the way, and answers what it has.
    fn collector(listener: TcpListener, requests: usize) -> Played {
        std::thread::spawn(move || {
            let (mut stored, mut asked) = (Vec::new(), Vec::new());
            for request in 0..requests {
                let (mut stream, _) = listener.accept().unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    assert_eq!(stream.read(&mut byte).unwrap(), 1);
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap();
                let value = |name: &str| {
                    head.to_lowercase().split(name).nth(1).map(|rest| {
                        rest.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<usize>().unwrap()
                    })
                };
                let mut body = vec![0; value("content-length: ").unwrap_or(0)];
                stream.read_exact(&mut body).unwrap();
                asked.push(head.lines().next().unwrap().to_owned());
                if request == 1 {
                    // It was stored, but the answer is lost.
                    stored.extend(&body);
                    continue;
                }
                let status = if value("offset=").is_some_and(|offset| offset != stored.len()) {
                    "409 Conflict"
                } else {
                    stored.extend(&body);
                    "200 OK"
                };
                let said = format!("{{\"offset\":{}}}", stored.len());
                let answer =
                    format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{said}", said.len());
                stream.write_all(answer.as_bytes()).unwrap();
            }
            (stored, asked)
        })
    }

    fn uploader(directory: &Path, allowed: bool, requests: usize) -> (Uploader, Played) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = format!("http://{}", listener.local_addr().unwrap());
        let link = Link::new(&ReportConfig::default(), &to, "key".to_owned()).unwrap();
        let uploader = Uploader { directory: directory.to_owned(), node: "a b".to_owned(), allowed, link };
        (uploader, collector(listener, requests))
    }

    #[test]
    fn a_file_goes_on_where_the_connection_was_lost() {
        let dir = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..600_000_u32).map(|n| (n % 251) as u8).collect();
        std::fs::create_dir(dir.path().join("incidents")).unwrap();
        std::fs::write(incident_files::recording(dir.path(), 3), &bytes).unwrap();
        // Three pieces; the second one is repeated, and found to be there.
        let (uploader, collector) = uploader(dir.path(), true, 4);
        uploader.answer(3).unwrap();
        let (stored, asked) = collector.join().unwrap();
        assert!(stored == bytes, "{asked:?}");
        assert!(asked[0].starts_with("PUT /api/v1/incidents/3/file?node=a%20b&size=600000&sha256="), "{asked:?}");
    }

    #[test]
    fn a_node_says_why_it_sends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for (allowed, why) in [(false, "refused"), (true, "gone")] {
            let (uploader, collector) = uploader(dir.path(), allowed, 1);
            uploader.answer(3).unwrap();
            let (stored, asked) = collector.join().unwrap();
            assert!(stored.is_empty() && asked[0].contains(&format!("&unsent={why} ")), "{asked:?}");
        }
    }
}
