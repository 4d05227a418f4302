//! Recordings in a bucket: moto's server from PyPI, in a venv under target/.

use crate::collector::{Collector, More};
use crate::export::venv;
use crate::files::{Fetch, put, report, sha256};
use crate::wait_for;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Moto {
    child: Child,
    url: String,
}

impl Moto {
    fn start() -> Option<Moto> {
        let mut command = Command::new(venv("moto-venv", "moto[server]>=5")?.join("moto_server"));
        command.args(["-H", "127.0.0.1", "-p", "0"]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut url = None;
        let mut line = String::new();
        while url.is_none() && said.read_line(&mut line).unwrap() > 0 {
            url = line.split_once("Running on ").map(|(_, url)| url.trim().to_owned());
            line.clear();
        }
        // It goes on to tell of each request, and must not wait for a reader.
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        Some(Moto { child, url: url.expect("moto does not listen") })
    }

    fn names(&self) -> String {
        ureq::get(format!("{}/fleet?list-type=2", self.url)).call().unwrap().body_mut().read_to_string().unwrap()
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "fleet tier: installs moto from PyPI: ./check fleet"]
fn recordings_are_kept_in_a_bucket() {
    let Some(moto) = Moto::start() else { return };
    ureq::put(format!("{}/fleet", moto.url)).send_empty().unwrap();
    let set = |name, value: &str| (name, value.to_owned());
    let collector = Collector::start_with(More {
        arguments: ["--files", "s3://fleet/some/prefix", "--files-max", "30M"].map(str::to_owned).to_vec(),
        environment: vec![
            set("AWS_ENDPOINT_URL", &moto.url),
            set("AWS_ACCESS_KEY_ID", "x"),
            set("AWS_SECRET_ACCESS_KEY", "y"),
            set("AWS_REGION", "us-east-1"),
        ],
    });
    report(&collector, 1);
    let dir = tempfile::tempdir().unwrap();
    // More than one part of a multipart upload.
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let sum = sha256(&bytes);
    let token = collector.token("agent.token");
    let send = |number: u64, offset: usize| {
        let end = bytes.len().min(offset + (256 << 10));
        let query = format!("{number}/file?node=n1&size={}&sha256={sum}&offset={offset}", bytes.len());
        (put(&collector, &token, "key-1", &query, &bytes[offset..end]), end)
    };
    let mut sequence = 1;
    let mut wanted = |number: u64| {
        wait_for("the wish to arrive", Duration::from_secs(60), || {
            sequence += 1;
            let wanted = report(&collector, sequence)["wanted"].clone();
            (wanted == json!([{"incident": number}])).then_some(()).ok_or(wanted.to_string())
        });
    };
    let fetched = |number: u64, wanted: &mut dyn FnMut(u64)| {
        let output = dir.path().join(format!("{number}.coroner"));
        let fetch = Fetch::start(&collector, &[&format!("n1/{number}"), "-o", output.to_str().unwrap()]);
        wanted(number);
        let mut offset = 0;
        while offset < bytes.len() {
            let ((status, said), end) = send(number, offset);
            assert_eq!(status, 200, "{said}");
            offset = end;
        }
        let (code, _, err) = fetch.ended();
        assert_eq!(code, 0, "{err}");
        assert!(std::fs::read(&output).unwrap() == bytes);
    };
    fetched(7, &mut wanted);
    let names = moto.names();
    assert!(names.contains("some/prefix/") && names.contains(&format!("-{sum}.coroner")), "{names}");
    // It is in the bucket: the node is not asked again.
    let again = dir.path().join("again.coroner");
    let (code, _, err) = Fetch::start(&collector, &["n1/7", "-o", again.to_str().unwrap()]).ended();
    assert!(code == 0 && std::fs::read(&again).unwrap() == bytes, "{err}");
    // There is room for one of them.
    fetched(8, &mut wanted);
    let names = moto.names();
    assert!(names.matches("<Key>").count() == 1 && names.contains("/8-"), "{names}");

    // While the bucket is away, nothing is acknowledged that is not there.
    let fetch =
        Fetch::start(&collector, &["n1/7", "-o", dir.path().join("away.coroner").to_str().unwrap(), "--timeout", "5s"]);
    wanted(7);
    let last = bytes.len() / (256 << 10) * (256 << 10);
    let mut offset = 0;
    while offset < last {
        offset = send(7, offset).1;
    }
    drop(moto);
    let ((status, said), _) = send(7, last);
    assert!(status == 503 && said.contains("bucket"), "{status} {said}");
    let (code, _, err) = fetch.ended();
    assert!(code == 2 && !dir.path().join("away.coroner").exists(), "{err}");
}
