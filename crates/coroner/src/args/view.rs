//! The command line of the page.

use super::profile::ReadingArgs;
use clap::Args as ClapArgs;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "On another machine's node: run it there, then on yours `ssh -L 9479:127.0.0.1:9479 NODE` (coroner \
    prints the line), and open http://localhost:9479/. The page changes nothing; only you and root are served on loopback."
)]
pub struct ViewArgs {
    /// A recording, an incident's file, the directory of a recorder (also while it writes), or a CPU profile: perf.data, the text
    /// of `perf script`, folded stacks, each also compressed by gzip. [default: the recorder that runs on this node]
    #[arg(value_name = "FILE|DIR")]
    pub file: Option<PathBuf>,

    /// Where to serve the page. Beyond loopback whoever asks must know a token.
    /// [default: 127.0.0.1:9479, or another port if that is taken]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    pub listen: Option<SocketAddr>,

    /// Open no browser.
    #[arg(long)]
    pub no_open: bool,

    /// Demand the token in this file, also on loopback. [default: a new one each time, beyond loopback only]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    #[command(flatten)]
    pub reading: ReadingArgs,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.trim_start_matches(':');
        match (port.parse::<u16>(), text.strip_prefix("localhost:")) {
            (Ok(port), _) => format!("an address is missing, as in 127.0.0.1:{port} or 0.0.0.0:{port}"),
            (_, Some(port)) => format!("expected an IP address and a port, as in 127.0.0.1:{port}"),
            _ => "expected an IP address and a port, as in 127.0.0.1:9479 or [::1]:9479".to_owned(),
        }
    })
}
