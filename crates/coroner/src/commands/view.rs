//! `coroner view`: serves the page.

use super::stop_on_signals;
use crate::args::view::ViewArgs;
use crate::exit::Exit;
use crate::output::{print, terminal};
use anyhow::Context;
use coroner_http::{ServerOptions, Token, is_loopback, serve};
use coroner_source::directory::{none_runs, the_running_one};
use coroner_source::profile::ProfileSource;
use coroner_web::Page;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Next to the recorder's metrics port.
const PORT: u16 = 9479;
/// How often the stop flag is checked.
const STEP: Duration = Duration::from_millis(100);
/// A browser opens six.
const CONNECTIONS: usize = 64;
/// CPU-heavy answers at a time.
const MOST_HEAVY: usize = 4;

pub fn run(args: ViewArgs) -> anyhow::Result<Exit> {
    let file = what(&args)?;
    let token = args.token_file.as_deref().map(read_token).transpose()?;
    let listener = bind(args.listen)?;
    let address = listener.local_addr().context("cannot determine the address")?;
    let token = match token {
        None if !is_loopback(&address) => Some(new_token()?),
        token => token,
    };
    let stop = stop_on_signals()?;
    if args.until_eof {
        std::thread::Builder::new().name("until-eof".to_owned()).spawn(|| {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            // At once: a question that takes long must not keep it.
            std::process::exit(0);
        })?;
    }
    let source = ProfileSource { file, reading: args.reading.reading(), ..ProfileSource::default() };
    let page = Arc::new(Page::open(source)?);
    let served = serve_until(&stop, &args, listener, Arc::clone(&page), token);
    page.end();
    served.map(|()| Exit::NothingWrong)
}

fn serve_until(
    stop: &AtomicBool,
    args: &ViewArgs,
    listener: TcpListener,
    page: Arc<Page>,
    token: Option<Token>,
) -> anyhow::Result<()> {
    let address = listener.local_addr().context("cannot determine the address")?;
    let heavy = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_HEAVY);
    let (names, users) = (names(), users());
    let options =
        ServerOptions { name: "coroner-view", token: token.clone(), names, users, connections: CONNECTIONS, heavy };
    let server = serve(listener, page, options).with_context(|| format!("{address}: cannot serve the page there"))?;
    let url = url(server.address, token.as_ref());
    print(&told(args, &url, server.address))?;
    if !args.no_open {
        open_browser(&url);
    }
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(STEP);
    }
    drop(server);
    Ok(())
}

/// The named file, or the running recorder's directory.
fn what(args: &ViewArgs) -> anyhow::Result<PathBuf> {
    match &args.file {
        Some(file) => Ok(file.clone()),
        None => the_running_one().map_err(|several| several.choose("coroner view"))?.with_context(|| {
            format!(
                "{}; start one (coroner record --dir DIR) or name what to show: coroner view FILE|DIR (a recording, a \
                     recorder's directory, perf.data, perf script text …)",
                none_runs()
            )
        }),
    }
}

fn bind(wanted: Option<SocketAddr>) -> anyhow::Result<TcpListener> {
    let usual = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    // [::ffff:127.0.0.1] is 127.0.0.1: guard and print it as such.
    let wanted = wanted.map(|wanted| SocketAddr::new(wanted.ip().to_canonical(), wanted.port()));
    match (TcpListener::bind(wanted.unwrap_or(usual)), wanted) {
        (Ok(listener), _) => Ok(listener),
        (Err(error), Some(address)) => Err(error)
            .with_context(|| format!("--listen {address}: cannot listen there; choose another port, or 0 for any")),
        // Another page already uses the port.
        (Err(_), None) => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("127.0.0.1: no port is available"),
    }
}

fn read_token(path: &Path) -> anyhow::Result<Token> {
    let mut text = String::new();
    let file = std::fs::File::open(path).with_context(|| format!("--token-file {}", path.display()))?;
    file.take(4096).read_to_string(&mut text).with_context(|| format!("--token-file {}", path.display()))?;
    Token::new(&text).with_context(|| {
        format!(
            "--token-file {}: expected at least 16 letters, digits or any of -_.~ in one line (openssl rand -hex 16 makes one)",
            path.display()
        )
    })
}

fn new_token() -> anyhow::Result<Token> {
    let mut bytes = [0u8; 16];
    let random = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    random.context("/dev/urandom: cannot be read, so no token can be made; pass one with --token-file")?;
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Token::new(&text).context("cannot create a token")
}

/// Host names of this machine.
fn names() -> Vec<String> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_string_lossy().into_owned();
    let short = name.split('.').next().unwrap_or_default().to_owned();
    [name, short].into_iter().filter(|name| !name.is_empty()).collect()
}

/// Who may see the page: everybody on the machine can reach loopback, but the data may be readable by root only.
fn users() -> Vec<u32> {
    let us = rustix::process::geteuid().as_raw();
    // Behind sudo, the browser or ssh belongs to the user.
    let behind_sudo = std::env::var("SUDO_UID").ok().filter(|_| us == 0).and_then(|uid| uid.parse().ok());
    [Some(0), Some(us), behind_sudo].into_iter().flatten().collect()
}

fn url(address: SocketAddr, token: Option<&Token>) -> String {
    let address = match address.ip().is_unspecified() {
        true => format!("{}:{}", names().first().map_or("localhost", String::as_str), address.port()),
        false => address.to_string(),
    };
    match token {
        Some(token) => format!("http://{address}/?token={}", token.text()),
        None => format!("http://{address}/"),
    }
}

fn told(args: &ViewArgs, url: &str, address: SocketAddr) -> String {
    let mut text = format!("{url}\n");
    if std::env::var_os("SSH_CONNECTION").is_some() && is_loopback(&address) {
        let (port, host) = (address.port(), names().into_iter().next().unwrap_or_else(|| "NODE".to_owned()));
        let query = url.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
        text.push_str(&format!(
            "from your machine: ssh -L {port}:{address} {host}\nthen open          http://localhost:{port}/{query}\n"
        ));
    }
    if !is_loopback(&address) {
        text.push_str("anybody who knows this address can see the page; it is not encrypted in transit\n");
    }
    let what = args.file.as_ref().map_or("the recorder running here".to_owned(), |file| file.display().to_string());
    text.push_str(&terminal::dim(&format!("showing {}; press Ctrl-C to stop\n", what)));
    text
}

/// Only with a display. Errors do not matter: the address was printed.
fn open_browser(url: &str) {
    if std::env::var_os("DISPLAY").is_none() && std::env::var_os("WAYLAND_DISPLAY").is_none() {
        return;
    }
    use std::process::{Command, Stdio};
    let mut browser = Command::new("xdg-open");
    browser.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    if let Ok(mut child) = browser.spawn() {
        std::thread::spawn(move || child.wait());
    }
}
