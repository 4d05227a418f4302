//! The page's server, with real recordings and connections.

use crate::support::*;
use coroner_lab::HostLock;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const INCIDENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/the-incident.coroner");
/// With stacks.
const STACKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../browser-tests/testdata/zombie-reclaim.coroner");
const SECOND: u64 = 1_000_000_000;

struct Server {
    child: Child,
    address: String,
    /// The first line it printed.
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Got {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Got {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.head, String::from_utf8_lossy(&self.body)))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

impl Server {
    fn start(what: &Path, listen: &str, more: &[&str]) -> Server {
        let mut child = Command::new(CORONER)
            .arg("view")
            .arg(what)
            .args(["--no-open", "--listen", listen])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("coroner view starts");
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim().to_owned();
        let port = url.split('/').nth(2).and_then(|host| host.rsplit(':').next()).unwrap_or_default();
        Server { child, address: format!("127.0.0.1:{port}"), url: url.clone() }
    }

    fn of(what: &Path) -> Server {
        Server::start(what, "127.0.0.1:0", &[])
    }

    fn raw(&self, request: &str) -> Got {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream.write_all(request.as_bytes()).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        let end = response.windows(4).position(|four| four == b"\r\n\r\n").expect("a response");
        let head = String::from_utf8_lossy(&response[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        Got { status, head, body: response.split_off(end + 4) }
    }

    fn ask(&self, path: &str, headers: &[(&str, &str)]) -> Got {
        let mut request = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request.push_str("Host: localhost\r\n");
        }
        headers.iter().for_each(|(name, value)| request.push_str(&format!("{name}: {value}\r\n")));
        self.raw(&(request + "\r\n"))
    }

    /// A document. Retries while a profile is being read, as the page does.
    fn get(&self, path: &str) -> Value {
        let until = Instant::now() + Duration::from_secs(180);
        loop {
            let got = self.ask(&format!("/api/v1/{path}"), &[]);
            match got.status {
                200 => return got.json(),
                503 if Instant::now() < until => std::thread::sleep(Duration::from_millis(20)),
                status => panic!("{path}: {status} {}", String::from_utf8_lossy(&got.body)),
            }
        }
    }
}

#[test]
fn the_page_has_the_same_diagnosis_as_the_command() {
    let server = Server::of(Path::new(INCIDENT));
    let source = server.get("source");
    assert_eq!((&source["kind"], &source["live"]), (&"recording".into(), &false.into()));
    assert_eq!(source["cores"], serde_json::json!([0, 1]));
    let told = Command::new(CORONER).args(["diagnose", "--from", INCIDENT, "--json"]).output().unwrap();
    let told: Value = serde_json::from_slice(&told.stdout).unwrap();
    let mut shown = server.get("diagnosis");
    assert!(shown.as_object_mut().unwrap().remove("axis").is_some());
    assert_eq!(shown, told);
    assert_eq!(server.get("units")["schema"], "coroner.units/1");
    let zombies = server.get("zombies");
    let growth = zombies["growth"]["dead"].as_array().unwrap();
    assert!(growth.len() > 5 && growth.last().unwrap().as_u64() > growth[0].as_u64(), "{growth:?}");
}

#[test]
fn the_starved_core_comes_first_with_its_owner() {
    let server = Server::of(Path::new(INCIDENT));
    let grid = server.get("cores?columns=10");
    assert_eq!((&grid["source"], &grid["columns"], &grid["from"]), (&"time".into(), &10.into(), &0.into()));
    let worst = &grid["cores"][0];
    assert_eq!(worst["core"], 1);
    assert!(worst["busy"].as_array().unwrap().iter().all(|busy| busy.as_u64() >= Some(95)), "{worst}");
    let owner = &grid["owners"][worst["owner"][5].as_u64().unwrap() as usize];
    assert!(owner["comm"].as_str().unwrap().starts_with("memwatch"), "{owner}");
    assert!(worst["serves"][0].as_str().unwrap().ends_with("rx-0"), "{worst}");
    let timeline = server.get("timeline");
    let kinds: Vec<&str> = timeline["events"].as_array().unwrap().iter().map(|e| e["kind"].as_str().unwrap()).collect();
    assert!(kinds.contains(&"unit-restart") && kinds.iter().any(|kind| kind.starts_with("nic")), "{kinds:?}");
    // This recording has no samples, and the answer says so.
    let flame = server.ask("/api/v1/flame", &[]);
    assert_eq!(flame.status, 404);
    assert!(flame.json()["what_to_do"].as_str().unwrap().contains("--rate"));
}

/// Two cores for two seconds at 100 Hz; in the second half `hog` has core 1.
fn perf_text() -> String {
    let mut text = String::new();
    for tick in 0..200u64 {
        let time = format!("{}.{:06}", 500 + tick / 100, tick % 100 * 10_000);
        let (comm, symbol) = if tick < 100 { ("calm", "wait_a_little") } else { ("hog", "spin_for_ever") };
        text.push_str(&format!(
            "swapper 0 [000] {time}: 10000000 cpu-clock:ppp: \n\tffffffff81000004 do_idle+0x1 ([kernel.kallsyms])\n\n"
        ));
        text.push_str(&format!("{comm} 66/66 [001] {time}: 10000000 cpu-clock:ppp: \n\t7f0000001000 {symbol}+0x3 (/bin/x)\n\t7f0000001100 main+0x3 (/bin/x)\n\n"));
    }
    text
}

fn names(flame: &Value) -> Vec<&str> {
    flame["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
}

#[test]
fn a_profile_opens_and_a_selection_has_its_own_flame_graph() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("perf.txt");
    fs::write(&text, perf_text()).unwrap();
    let server = Server::of(&text);
    let all = server.get("flame");
    assert!(names(&all).contains(&"hog") && names(&all).contains(&"calm"), "{:?}", names(&all));
    assert_eq!((&all["samples"], &all["idle"], &all["part"]), (&200.into(), &200.into(), &1.0.into()));
    assert_eq!(all["nodes"]["parent"][0], -1);
    let source = server.get("source");
    assert_eq!(
        (&source["kind"], &source["format"], &source["samples"]),
        (&"profile".into(), &"perf-script".into(), &400.into())
    );
    let second = server.get(&format!("flame?from={}&to={}", SECOND, 2 * SECOND));
    assert!(names(&second).contains(&"spin_for_ever") && !names(&second).contains(&"calm"), "{:?}", names(&second));
    let difference = server.get(&format!("flame-difference?from={}&to={}&base=rest", SECOND, 2 * SECOND));
    assert_eq!(difference["risers"][0]["name"], "hog");
    let heatmap = server.get("heatmap?rows=10");
    assert_eq!((&heatmap["axis_ns"], heatmap["columns"].as_array().unwrap().len()), (&0.into(), 2));
    let grid = server.get(&format!("cores?columns=4&from=0&to={}", 2 * SECOND));
    assert_eq!((&grid["source"], &grid["cores"][0]["core"]), (&"samples".into(), &1.into()));
    let file = server.ask("/api/v1/export?format=folded&comm=hog", &[]);
    assert_eq!(String::from_utf8_lossy(&file.body), "hog;main;spin_for_ever 1000000000\n");
    assert!(file.header("content-disposition").unwrap().contains("perf.folded"));
    assert_eq!(server.ask("/api/v1/flame?from=x", &[]).status, 400);
    assert_eq!(server.ask("/api/v1/flame?comm=nobody", &[]).status, 404);
}

#[test]
fn answers_are_compressed_and_not_sent_again_if_unchanged() {
    let server = Server::of(Path::new(INCIDENT));
    let first = server.ask("/api/v1/units", &[("Accept-Encoding", "gzip")]);
    assert_eq!((first.status, first.header("content-encoding")), (200, Some("gzip")));
    let tag = first.header("etag").unwrap();
    let again = server.ask("/api/v1/units", &[("If-None-Match", tag)]);
    assert_eq!((again.status, again.body.len()), (304, 0));
    assert_eq!(server.ask("/api/v1/zombies", &[("If-None-Match", tag)]).status, 200);
}

#[test]
fn strangers_are_refused() {
    let server = Server::of(Path::new(INCIDENT));
    assert_eq!(server.ask("/api/v1/source", &[("Host", "evil.example")]).status, 421);
    assert_eq!(server.ask("/", &[("Host", "evil.example:80")]).status, 421);
    assert_eq!(server.ask("/api/v1/source", &[("Sec-Fetch-Site", "cross-site")]).status, 403);
    let post =
        server.raw("POST /api/v1/source HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
    for path in [
        "/../../etc/passwd",
        "/assets/../../Cargo.toml",
        "/assets/%2e%2e/%2e%2e/etc/passwd",
        "/api/v1/../../etc/passwd",
        "/api/v1/incidents/../../1",
    ] {
        let got = server.ask(path, &[]);
        assert!((400..=404).contains(&got.status), "{path}: {}", got.status);
    }
    let page = server.ask("/", &[]);
    assert_eq!(page.status, 200);
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
}

#[test]
fn a_token_is_required_beyond_loopback() {
    let server = Server::start(Path::new(INCIDENT), "0.0.0.0:0", &[]);
    let token = server.url.split_once("?token=").expect("the token is in the address").1;
    assert!(token.len() >= 32, "{}", server.url);
    assert_eq!(server.ask("/api/v1/source", &[]).status, 401);
    assert_eq!(server.ask("/", &[]).status, 401);
    let bearer = format!("Bearer {token}");
    assert_eq!(server.ask("/api/v1/source", &[("Authorization", &bearer)]).status, 200);
    let with_cookie = server.ask(&format!("/?token={token}"), &[]);
    assert_eq!((with_cookie.status, with_cookie.header("location")), (303, Some("/")));
    let cookie = with_cookie.header("set-cookie").unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    let cookie = cookie.split(';').next().unwrap();
    assert_eq!(server.ask("/api/v1/source", &[("Cookie", cookie)]).status, 200);
}

#[test]
fn a_running_recorder_is_shown_and_grows() {
    let Some(_host) = HostLock::share_as_root() else { return };
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("recorded");
    let recorder = Command::new(CORONER)
        .args(["record", "--metrics", "off", "--dir"])
        .arg(&place)
        .env("CORONER_RUNNING", dir.path().join("running"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _recorder = Server { child: recorder, address: String::new(), url: String::new() };
    let until = Instant::now() + Duration::from_secs(180);
    // Until it has something to show.
    let server = loop {
        let server = Server::of(&place);
        if server.url.starts_with("http://") && server.get("source")["samples"].as_u64() > Some(0) {
            break server;
        }
        assert!(Instant::now() < until, "nothing was recorded");
        std::thread::sleep(Duration::from_millis(200));
    };
    let before = server.get("source");
    assert_eq!((&before["kind"], &before["live"]), (&"recorder".into(), &true.into()));
    assert_eq!(server.ask("/api/v1/source", &[]).header("cache-control"), Some("no-store"));
    while server.get("source")["length_ns"].as_u64() <= before["length_ns"].as_u64() {
        assert!(Instant::now() < until, "it does not grow");
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(server.get("source")["start_ns"], before["start_ns"], "the axis does not move");
    assert!(!names(&server.get("flame?idle=1")).is_empty());
    assert_eq!(server.get("cores?columns=10")["owner_source"], "samples");
    assert_eq!(server.get("incidents")["recorder_runs"], true);
}

#[test]
fn a_missing_recorder_and_a_taken_port_are_errors_with_advice() {
    let dir = tempfile::tempdir().unwrap();
    let alone = Command::new(CORONER).args(["view", "--no-open"]).env("CORONER_RUNNING", dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert_eq!(alone.status.code(), Some(2));
    assert!(said.contains("no recorder is running") && said.contains("coroner view FILE|DIR"), "{said}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let refused = Command::new(CORONER).args(["view", INCIDENT, "--no-open", "--listen", &address]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another port"));
}

#[test]
fn a_replaced_file_gives_no_mixed_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (shown, other) = (dir.path().join("a.coroner"), dir.path().join("b.coroner"));
    fs::copy(INCIDENT, &shown).unwrap();
    fs::copy(Path::new(INCIDENT).with_file_name("idle.coroner"), &other).unwrap();
    let server = Server::of(&shown);
    let units = server.ask("/api/v1/units", &[]);
    assert_eq!(units.status, 200);
    fs::rename(&other, &shown).unwrap();
    let tag = units.header("etag").unwrap();
    for (path, headers) in
        [("source", vec![]), ("cores", vec![]), ("units", vec![]), ("units", vec![("If-None-Match", tag)])]
    {
        let got = server.ask(&format!("/api/v1/{path}"), &headers);
        assert_eq!(got.status, 410, "{path} {headers:?}");
        let told = got.json();
        assert!(told["error"].as_str().unwrap().contains("replaced"), "{told}");
        assert!(told["what_to_do"].as_str().unwrap().contains("restart coroner view"), "{told}");
    }
}

#[test]
fn new_segments_in_a_directory_are_shown() {
    let dir = tempfile::tempdir().unwrap();
    let golden = |name: &str| Path::new(INCIDENT).with_file_name(format!("{name}.coroner"));
    fs::copy(golden("idle"), dir.path().join("2026-11-16T18-00-00Z.coroner")).unwrap();
    let server = Server::of(dir.path());
    let before = server.get("source");
    assert_eq!((before["segments"].as_array().unwrap().len(), &before["live"]), (1, &false.into()));
    let unfinished = dir.path().join("unfinished");
    fs::copy(golden("the-incident"), &unfinished).unwrap();
    fs::rename(unfinished, dir.path().join("2026-11-16T19-00-00Z.coroner")).unwrap();
    let until = Instant::now() + Duration::from_secs(180);
    while server.get("source")["segments"].as_array().unwrap().len() < 2 {
        assert!(Instant::now() < until, "the change is not noticed");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(server.get("source")["start_ns"], before["start_ns"], "the axis does not move");
}

#[test]
fn a_replaced_or_removed_segment_leaves_no_old_names() {
    let dir = tempfile::tempdir().unwrap();
    let segment = dir.path().join("2026-11-16T22-23-42Z.coroner");
    fs::copy(STACKS, &segment).unwrap();
    let server = Server::start(dir.path(), "127.0.0.1:0", &["--no-symbols"]);
    let names = || {
        let got = server.ask("/api/v1/flame?min=0", &[]);
        let document = got.json();
        let has = |name: &str| {
            document["names"].as_array().is_some_and(|names| names.iter().any(|known| known.as_str() == Some(name)))
        };
        (got.status, has("walCheckpoint"), has("walCheckpoint_of_another"))
    };
    let becomes = |wanted: (u16, bool, bool), before: (u16, bool, bool)| {
        let until = Instant::now() + Duration::from_secs(180);
        loop {
            match names() {
                now if now == wanted => return,
                // Either one or the other, never a mix.
                now => assert_eq!(now, before),
            }
            assert!(Instant::now() < until, "the change is not noticed");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let (first, second, none) = ((200, true, false), (200, false, true), (404, false, false));
    assert_eq!(names(), first);
    let other = dir.path().join("unfinished");
    fs::copy(STACKS, &other).unwrap();
    let rename = "UPDATE profile_frames SET symbol = 'walCheckpoint_of_another' WHERE symbol = 'walCheckpoint'";
    assert!(Command::new("sqlite3").arg(&other).arg(rename).status().expect("sqlite3").success());
    fs::rename(&other, &segment).unwrap();
    becomes(second, first);
    fs::remove_file(&segment).unwrap();
    becomes(none, second);
    fs::copy(STACKS, &other).unwrap();
    fs::rename(&other, &segment).unwrap();
    becomes(first, none);
}

#[test]
fn loopback_by_another_name_is_loopback() {
    let server = Server::start(Path::new(INCIDENT), "[::ffff:127.0.0.1]:0", &[]);
    assert!(server.url.starts_with("http://127.0.0.1:") && !server.url.contains("token"), "{}", server.url);
    assert_eq!(server.ask("/api/v1/source", &[]).status, 200);
    assert_eq!(server.ask("/api/v1/source", &[("Host", "10.0.0.1")]).status, 421);
    let everywhere = Server::start(Path::new(INCIDENT), "[::ffff:0.0.0.0]:0", &[]);
    assert!(everywhere.url.contains("?token="), "{}", everywhere.url);
    assert_eq!(everywhere.ask("/api/v1/source", &[]).status, 401);
}

#[test]
fn errors_say_what_to_write_instead() {
    let view = |listen: &str| {
        let refused = Command::new(CORONER).args(["view", INCIDENT, "--no-open", "--listen", listen]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{listen}");
        String::from_utf8_lossy(&refused.stderr).into_owned()
    };
    assert!(view("8080").contains("127.0.0.1:8080"), "{}", view("8080"));
    assert!(view("localhost:80").contains("127.0.0.1:80"), "{}", view("localhost:80"));
    assert!(view("here").contains("127.0.0.1:9479"), "{}", view("here"));
    let dir = tempfile::tempdir().unwrap();
    let profile = dir.path().join("perf.txt");
    fs::write(&profile, perf_text()).unwrap();
    let refused = Command::new(CORONER).args(["diagnose", "--from"]).arg(&profile).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("coroner view") && said.contains("coroner monopolies"), "{said}");
}
