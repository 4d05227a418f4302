//! A collector in a directory of its own, on a port of its own.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_coroner-fleet");

pub struct Collector {
    dir: tempfile::TempDir,
    child: Child,
    address: String,
    more: More,
}

/// Names a test that could not run, for the summary of the check.
pub fn skipped(what: &str) {
    let list = std::env::var("CORONER_SKIPPED_TESTS").unwrap_or_default();
    if let Ok(mut list) = std::fs::OpenOptions::new().append(true).open(list) {
        let _ = writeln!(list, "{what}");
    }
}

/// Arguments of `serve`, and its environment.
#[derive(Default)]
pub struct More {
    pub arguments: Vec<String>,
    pub environment: Vec<(&'static str, String)>,
}

impl Collector {
    pub fn start() -> Collector {
        Collector::start_with(More::default())
    }

    /// With more options of `serve`.
    pub fn with(options: &[&str]) -> Collector {
        let arguments = options.iter().map(|option| (*option).to_owned()).collect();
        Collector::start_with(More { arguments, ..More::default() })
    }

    pub fn start_with(more: More) -> Collector {
        let dir = directory();
        let (child, address) = launch(&dir, "127.0.0.1:0", &more);
        Collector { dir, child, address, more }
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// At the same address.
    pub fn restart(&mut self) {
        let (child, address) = launch(&self.dir, &self.address, &self.more);
        (self.child, self.address) = (child, address);
    }

    /// With more options than before.
    pub fn restart_with(&mut self, options: &[&str]) {
        self.kill();
        self.more.arguments.extend(options.iter().map(|option| (*option).to_owned()));
        self.restart();
    }

    /// Asks it to end, and waits until it has.
    pub fn terminate(&mut self) {
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(asked.success());
        assert!(self.child.wait().unwrap().success());
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn token(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap().trim().to_owned()
    }

    pub fn text(&self, path: &str) -> String {
        String::from_utf8(self.bytes(path)).unwrap()
    }

    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let path = if path == "metrics" { path.to_owned() } else { format!("api/v1/{path}") };
        let request = ureq::get(format!("{}/{path}", self.url()));
        let mut response =
            request.header("Authorization", format!("Bearer {}", self.token("user.token"))).call().unwrap();
        response.body_mut().with_config().limit(1 << 30).read_to_vec().unwrap()
    }

    pub fn ask(&self, path: &str) -> Value {
        serde_json::from_str(&self.text(path)).unwrap()
    }

    /// A number from the store.
    pub fn rows(&self, query: &str) -> i64 {
        let db = rusqlite::Connection::open(self.file("fleet.db")).unwrap();
        db.query_row(query, [], |row| row.get(0)).unwrap()
    }

    pub fn command(&self, args: &[&str]) -> (i32, String, String) {
        self.command_with_token(args, &self.file("user.token"))
    }

    pub fn command_with_token(&self, args: &[&str], token: &std::path::Path) -> (i32, String, String) {
        let output =
            Command::new(PROGRAM).args(args).args(["--at", &self.url(), "--token-file"]).arg(token).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    dir
}

/// Returns when it listens.
fn launch(dir: &tempfile::TempDir, listen: &str, more: &More) -> (Child, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "--listen", listen, "--dir"]).arg(dir.path()).stdout(Stdio::piped());
    command.args(&more.arguments).envs(more.environment.iter().cloned());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut address = None;
    // The last line: after it nothing is printed.
    for line in lines.by_ref().map_while(Result::ok) {
        if let Some(rest) = line.strip_prefix("at http://") {
            address = rest.split(';').next().map(str::to_owned);
        }
        if line.contains("coroner fleet status") {
            break;
        }
    }
    (child, address.expect("the collector did not start"))
}

pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

pub fn head(node: &str, stream: &str, sequence: u64) -> Value {
    json!({"kind": "batch", "schema": "coroner.report/1", "node": node, "stream": stream, "sequence": sequence, "boot_id": "b",
        "sealed": "2026-01-01T00:00:00Z", "version": "0.1.0"})
}

/// The n-th minute before this program began: each n is a minute of its own.
pub fn minute(n: u64) -> Value {
    static BEGAN: OnceLock<u64> = OnceLock::new();
    let began = BEGAN.get_or_init(|| now_ns() / 60_000_000_000);
    json!({"kind": "minute", "minute": (began - n) * 60_000_000_000, "cores": 2, "zombies_dead": n})
}

pub fn packed(lines: &[Value]) -> Vec<u8> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    zstd::encode_all(text.as_bytes(), 3).unwrap()
}

/// Status and body; status 0 if nobody answered.
pub fn post(url: &str, token: &str, key: &str, body: &[u8]) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().new_agent();
    let request = agent.post(format!("{url}/api/v1/report")).header("Authorization", format!("Bearer {token}"));
    match request.header("Coroner-Node-Key", key).send(body) {
        Ok(mut response) => (response.status().as_u16(), response.body_mut().read_to_string().unwrap_or_default()),
        Err(error) => (0, error.to_string()),
    }
}
