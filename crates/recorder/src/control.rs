//! The control socket in the recorder's directory, for `coroner mark`.
//!
//! One line in, one line out: `mark TEXT` (or as JSON: `{"mark": "TEXT"}`), answered by `ok` or `error: why`. It has its own
//! thread; silent clients time out, and a request's length is bounded.

use anyhow::{Context, bail};
use coroner_source::directory::control_socket;
use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// The longest line.
const MOST_BYTES: u64 = 4096;
/// How long a client may take to send it.
const PATIENCE: Duration = Duration::from_secs(2);
/// Most marks waiting for the main loop, which fetches them five times a second.
const MOST_WAITING: usize = 16;

pub struct Control {
    socket: PathBuf,
    ended: Arc<AtomicBool>,
    marks: Receiver<String>,
}

impl Control {
    pub fn listen(directory: &Path) -> anyhow::Result<Control> {
        let socket = control_socket(directory);
        // Left by a killed recorder: we hold the directory's lock.
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", socket.display()));
            }
            _ => {}
        }
        let listener = bind(&socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
        // Only the directory's owner may connect; until this is set, the directory's 0700 protects the socket.
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600))
            .with_context(|| format!("cannot restrict the permissions of {}", socket.display()))?;
        let (sender, marks) = sync_channel(MOST_WAITING);
        let ended = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ended);
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || hear_all(&listener, &sender, &is_over))
            .context("cannot start the thread that listens for marks")?;
        Ok(Control { socket, ended, marks })
    }

    /// Marks received since the last call.
    pub fn marks(&self) -> Vec<String> {
        self.marks.try_iter().collect()
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // A connection wakes the thread, which then sees `ended`.
        let _ = connect(&self.socket);
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn hear_all(listener: &UnixListener, marks: &SyncSender<String>, ended: &AtomicBool) {
    for stream in listener.incoming() {
        if ended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut stream) = stream else {
            // Out of file descriptors: some may be free in a moment.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        let answer = match hear(&stream) {
            Ok(None) => String::new(),
            Ok(Some(mark)) => match marks.try_send(mark) {
                Ok(()) => "ok\n".to_owned(),
                Err(TrySendError::Full(_)) => "error: too many marks at once; wait a second\n".to_owned(),
                Err(TrySendError::Disconnected(_)) => return,
            },
            Err(error) => format!("error: {error:#}\n"),
        };
        let _ = stream.write_all(answer.as_bytes());
    }
}

/// One client's mark; `None` if it disconnects without a request.
fn hear(stream: &UnixStream) -> anyhow::Result<Option<String>> {
    let until = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = Vec::new();
    let mut reader = BufReader::new(stream).take(MOST_BYTES);
    // One time limit for the whole line: a client may also send a byte at a time.
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("the line took longer than {} s", PATIENCE.as_secs());
        }
        stream.set_read_timeout(Some(left))?;
        let available = match reader.fill_buf() {
            Ok(available) => available,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => continue,
            Err(error) => return Err(error.into()),
        };
        let end = available.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(available.len());
        line.extend_from_slice(&available[..taken]);
        let is_over = end.is_some() || available.is_empty();
        reader.consume(taken);
        if is_over {
            break;
        }
    }
    if line.is_empty() {
        return Ok(None);
    }
    if line.len() as u64 >= MOST_BYTES {
        bail!("the line is longer than {MOST_BYTES} bytes");
    }
    let line = String::from_utf8(line).context("the line is not UTF-8")?;
    said(&line).map(Some)
}

fn said(line: &str) -> anyhow::Result<String> {
    let line = line.trim();
    let text = if line.starts_with('{') {
        let value: serde_json::Value = serde_json::from_str(line).context("the line is not JSON")?;
        value["mark"].as_str().context(r#"expected {"mark": "TEXT"}"#)?.to_owned()
    } else {
        let text = line.strip_prefix("mark").filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        text.context("expected: mark TEXT")?.to_owned()
    };
    let text: String = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.is_empty() {
        bail!("a mark needs text: mark TEXT");
    }
    Ok(text)
}

/// Sends a mark to the recorder that writes into this directory.
pub fn mark(directory: &Path, text: &str) -> anyhow::Result<()> {
    let socket = control_socket(directory);
    let mut stream = match connect(&socket) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => bail!(
            "{}: no recorder is running here; start one: coroner record --dir {}",
            directory.display(),
            directory.display()
        ),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            bail!("{}: permission denied; run as the recorder's user (root)", socket.display())
        }
        Err(error) => return Err(error).with_context(|| format!("cannot connect to {}", socket.display())),
    };
    let hangs = || format!("{}: the recorder does not answer; is it stopped?", socket.display());
    stream.set_read_timeout(Some(PATIENCE + PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let line = serde_json::json!({ "mark": text });
    stream.write_all(format!("{line}\n").as_bytes()).with_context(hangs)?;
    let mut answer = String::new();
    stream.take(MOST_BYTES).read_to_string(&mut answer).with_context(hangs)?;
    match answer.trim() {
        "ok" => Ok(()),
        "" => bail!("the recorder is stopping; the mark was not recorded"),
        other => bail!("{}", other.strip_prefix("error: ").unwrap_or(other)),
    }
}

/// A socket address holds 108 bytes; a longer path is reached through its directory's descriptor.
fn bind(socket: &Path) -> io::Result<UnixListener> {
    through_directory(socket, |path| UnixListener::bind(path))
}

fn connect(socket: &Path) -> io::Result<UnixStream> {
    through_directory(socket, |path| UnixStream::connect(path))
}

fn through_directory<T>(socket: &Path, act: impl Fn(&Path) -> io::Result<T>) -> io::Result<T> {
    use std::os::fd::AsRawFd;
    if socket.as_os_str().len() < 100 {
        return act(socket);
    }
    let (Some(parent), Some(name)) = (socket.parent(), socket.file_name()) else { return act(socket) };
    let directory = std::fs::File::open(parent)?;
    act(&Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(control: &Control) -> Vec<String> {
        let until = Instant::now() + Duration::from_secs(180);
        loop {
            let marks = control.marks();
            if !marks.is_empty() || Instant::now() > until {
                return marks;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn ask(directory: &Path, bytes: &[u8]) -> String {
        let mut stream = connect(&control_socket(directory)).unwrap();
        // It may close before it has read all of an overlong line.
        let _ = stream.write_all(bytes);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn marks_are_received_and_nonsense_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let control = Control::listen(directory.path()).unwrap();
        let mode = std::fs::metadata(control_socket(directory.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        mark(directory.path(), "deploy \"7\"\nbegins").unwrap();
        assert_eq!(heard(&control), ["deploy \"7\" begins"]);
        assert_eq!(ask(directory.path(), b"mark by hand\n"), "ok\n");
        assert_eq!(heard(&control), ["by hand"]);
        assert!(ask(directory.path(), b"stop\n").contains("expected: mark TEXT"));
        assert!(ask(directory.path(), b"mark \n").contains("needs text"));
        assert!(ask(directory.path(), b"{\"x\": 1}\n").contains("expected {"));
        assert!(ask(directory.path(), b"mark \xff\n").contains("UTF-8"));
        let long = format!("mark {}\n", "x".repeat(5000));
        assert!(
            matches!(ask(directory.path(), long.as_bytes()), answer if answer.is_empty() || answer.contains("longer"))
        );
        assert_eq!(control.marks(), [""; 0]);
        drop(control);
        let error = mark(directory.path(), "late").unwrap_err().to_string();
        assert!(error.contains("no recorder is running here"), "{error}");
    }

    #[test]
    fn too_many_marks_are_refused_and_a_dead_socket_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        drop(UnixListener::bind(control_socket(directory.path())).unwrap());
        let error = mark(directory.path(), "x").unwrap_err().to_string();
        assert!(error.contains("no recorder is running here"), "{error}");
        let control = Control::listen(directory.path()).unwrap();
        for n in 0..MOST_WAITING {
            mark(directory.path(), &n.to_string()).unwrap();
        }
        assert!(mark(directory.path(), "one more").unwrap_err().to_string().contains("too many"));
        assert_eq!(control.marks().len(), MOST_WAITING);
    }
}
