use super::*;
use crate::{Answer, Asset};
use std::sync::atomic::{AtomicBool, Ordering};

/// Answers `light` at once, and `heavy` when told to or when cancelled.
#[derive(Default)]
struct Site {
    go_on: AtomicBool,
    was_cancelled: AtomicBool,
}

impl Api for Site {
    fn version(&self, _: &ApiQuery) -> Option<u64> {
        None
    }

    fn is_light(&self, ask: &ApiQuery) -> bool {
        ask.path == "light"
    }

    fn asset(&self, _: &str) -> Option<Asset> {
        None
    }

    fn answer(&self, ask: &ApiQuery) -> Result<Answer, Refusal> {
        match ask.path.as_str() {
            "light" => {}
            "heavy" => {
                while !self.go_on.load(Ordering::Relaxed) && !ask.is_cancelled() {
                    thread::sleep(Duration::from_millis(5));
                }
                self.was_cancelled.fetch_or(ask.is_cancelled(), Ordering::Relaxed);
            }
            _ => panic!("this is a test of what a panic does"),
        }
        Ok(Answer::of("text/plain", ask.path.clone()))
    }
}

const CONNECTIONS: usize = 8;
const REQUEST: &[u8] = b"GET /light HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

fn start() -> (Running, Arc<Site>) {
    let site = Arc::new(Site::default());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let options =
        ServerOptions { name: "test", token: None, names: vec![], users: vec![], connections: CONNECTIONS, heavy: 1 };
    (serve(listener, Arc::clone(&site) as Arc<dyn Api>, options).unwrap(), site)
}

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.address).unwrap();
    // Longer than all of the server's own limits, so that a hung test fails here.
    stream.set_read_timeout(Some(ANSWER_WITHIN * 2)).unwrap();
    stream
}

fn ask(server: &Running, request: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < until, "not within 60 s: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_connection_serves_several_requests() {
    let (server, _) = start();
    let mut stream = connect(&server);
    // The second and the start of the third in one write.
    stream.write_all(b"GET /light HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    stream.write_all(b"HEAD /light HTTP/1.1\r\nHost: localhost\r\n\r\nGET /light HTTP/1.1\r\nHost: loc").unwrap();
    stream.write_all(b"alhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK\r\n").count(), 3, "{answers}");
    assert_eq!(answers.matches("Content-Length: 5\r\n").count(), 3, "{answers}");
    assert_eq!(answers.matches("\r\n\r\nlight").count(), 2, "HEAD has no body: {answers}");
    assert_eq!(answers.matches("Connection: close").count(), 1, "{answers}");
}

#[test]
fn slow_clients_make_room_for_others() {
    let (server, _) = start();
    // More than the limit, each with half a request.
    let dawdlers: Vec<TcpStream> = (0..CONNECTIONS * 2)
        .map(|_| {
            let mut stream = connect(&server);
            stream.write_all(b"GET /light HT").unwrap();
            stream
        })
        .collect();
    assert!(ask(&server, REQUEST).starts_with("HTTP/1.1 200"));
    // In the end all of them are disconnected.
    for mut dawdler in dawdlers {
        let mut rest = Vec::new();
        let gone = dawdler.read_to_end(&mut rest);
        assert!(gone.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset) || rest.is_empty());
    }
}

#[test]
fn endless_heads_and_bodies_are_cut_off() {
    let (server, _) = start();
    let line = b"X-Padding: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
    let mut endless = connect(&server);
    endless.write_all(b"GET /light HTTP/1.1\r\n").unwrap();
    let mut written = 0;
    while written < 16 << 20 && endless.write_all(line).is_ok() {
        written += line.len();
    }
    assert!(written < 16 << 20, "the server read all of it");
    let mut long = connect(&server);
    long.write_all(b"GET /light HTTP/1.1\r\n").unwrap();
    for _ in 0..LONGEST_HEAD / line.len() + 1 {
        long.write_all(line).unwrap();
    }
    let mut answer = String::new();
    long.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let smuggled = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 46\r\n\r\nGET /light HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let refused = ask(&server, smuggled);
    assert!(refused.starts_with("HTTP/1.1 405 ") && refused.matches("HTTP/1.1 ").count() == 1, "{refused}");
    assert!(ask(&server, b"\x16\x03\x01\n\n").starts_with("HTTP/1.1 400 "));
    assert!(ask(&server, REQUEST).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_disconnect_and_a_panic_both_free_the_turn() {
    let (server, site) = start();
    let mut first = connect(&server);
    first.write_all(b"GET /heavy HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    drop(first);
    wait_for("the answer is cancelled", || site.was_cancelled.load(Ordering::Relaxed));
    let panicked = ask(&server, b"GET /panic HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(panicked.starts_with("HTTP/1.1 500 "), "{panicked}");
    // The only turn for heavy answers is free again.
    site.go_on.store(true, Ordering::Relaxed);
    let heavy = ask(&server, b"GET /heavy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(heavy.ends_with("\r\n\r\nheavy"), "{heavy}");
}

#[test]
fn dropping_the_server_frees_the_port_and_closes_connections() {
    let (server, _) = start();
    let address = server.address;
    let mut idle = connect(&server);
    idle.write_all(b"GET /light HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut some = [0; 16];
    idle.read_exact(&mut some).unwrap();
    drop(server);
    assert!(TcpStream::connect(address).is_err());
    let mut rest = Vec::new();
    let _ = idle.read_to_end(&mut rest);
}
