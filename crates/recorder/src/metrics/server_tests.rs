use super::*;

fn start() -> Server {
    Server::start(([127, 0, 0, 1], 0).into(), Arc::default()).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.address()).unwrap();
    // Longer than the server's own deadline: a test that hangs fails here.
    stream.set_read_timeout(Some(DEADLINE * 4)).unwrap();
    stream
}

fn ask(server: &Server, request: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

#[test]
fn metrics_are_served() {
    let server = start();
    let answer = ask(&server, REQUEST);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
    assert!(body.contains("coroner_build_info{"), "{body}");
    let open =
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text;version=1.0.0\r\n\r\n";
    assert!(ask(&server, open).ends_with("# EOF\n"));
    let head_only = ask(&server, b"HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(head_only.ends_with("\r\n\r\n"), "{head_only}");
}

#[test]
fn clients_that_dawdle_do_not_hold_up_others() {
    let server = start();
    // More than it keeps, each with half a request.
    let dawdlers: Vec<TcpStream> = (0..MOST_CONNECTIONS * 2)
        .map(|_| {
            let mut stream = connect(&server);
            stream.write_all(b"GET /metrics HT").unwrap();
            stream
        })
        .collect();
    let asked = Instant::now();
    assert!(ask(&server, REQUEST).starts_with("HTTP/1.1 200"));
    assert!(asked.elapsed() < DEADLINE / 2, "{:?}", asked.elapsed());
    // In the end all of them are sent away.
    for mut dawdler in dawdlers {
        let mut rest = Vec::new();
        let gone = dawdler.read_to_end(&mut rest);
        assert!(gone.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset) || rest.is_empty());
    }
}

#[test]
fn endless_heads_and_bodies_are_cut_off() {
    let server = start();
    let mut endless = connect(&server);
    let line = b"X-Padding: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n";
    endless.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    let mut written = 0;
    while written < 1 << 20 && endless.write_all(line).is_ok() {
        written += line.len();
    }
    let mut long = connect(&server);
    long.write_all(b"GET /metrics HTTP/1.1\r\n").unwrap();
    for _ in 0..request::LONGEST_HEAD / line.len() + 1 {
        long.write_all(line).unwrap();
    }
    let mut answer = String::new();
    long.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
    let with_body = ask(&server, b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
    assert!(with_body.starts_with("HTTP/1.1 405 "), "{with_body}");
    assert!(ask(&server, REQUEST).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_port_that_is_taken_is_an_error_that_says_so() {
    let server = start();
    let error = Server::start(server.address(), Arc::default()).err().unwrap();
    let text = format!("{error:#}");
    assert!(text.contains(&server.address().to_string()) && text.contains("another port"), "{text}");
}

#[test]
fn dropping_it_frees_the_port() {
    let server = start();
    let address = server.address();
    let idle = connect(&server);
    drop(server);
    assert!(TcpStream::connect(address).is_err());
    drop(idle);
}
