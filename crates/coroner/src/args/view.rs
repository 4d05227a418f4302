//! The command line of `coroner view`.

use super::profile::ReadingArgs;
use clap::Args as ClapArgs;
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "For a remote node: run it there, then run `ssh -L 9479:127.0.0.1:9479 NODE` on your machine (coroner prints \
    the command) and open http://localhost:9479/. The page changes nothing; on loopback, only you and root can see it."
)]
pub struct ViewArgs {
    /// A recording, an incident, a recorder's directory (even while it is being written), or a CPU profile: perf.data, `perf
    /// script` text, folded stacks (also gzipped). [default: the recorder running on this node]
    #[arg(value_name = "FILE|DIR")]
    pub file: Option<PathBuf>,

    /// Address to serve the page on. Any address other than loopback needs a token. [default: 127.0.0.1:9479, or another port if
    /// that is taken]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_listen)]
    pub listen: Option<SocketAddr>,

    /// Do not open a browser.
    #[arg(long)]
    pub no_open: bool,

    /// Require the token in this file, even on loopback. [default: none on loopback, otherwise a new one each time]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Stop when standard input ends: for a program that started the page, and takes it along however it ends.
    #[arg(long)]
    pub until_eof: bool,

    #[command(flatten)]
    pub reading: ReadingArgs,
}

fn parse_listen(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| {
        let port = text.trim_start_matches(':');
        match (port.parse::<u16>(), text.strip_prefix("localhost:")) {
            (Ok(port), _) => format!("the IP address is missing, as in 127.0.0.1:{port} or 0.0.0.0:{port}"),
            (_, Some(port)) => format!("expected an IP address and a port, as in 127.0.0.1:{port}"),
            _ => "expected an IP address and a port, as in 127.0.0.1:9479 or [::1]:9479".to_owned(),
        }
    })
}
