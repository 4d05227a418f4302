//! The command line.

use crate::client::AtArgs;
use clap::{Args as ClapArgs, Parser, Subcommand};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// Collects what recorders report, and says what the sick nodes have in common.
///
/// Start a collector with `coroner fleet serve`; it prints the line that makes a node report to it. Nothing is sent without that.
///
/// Exit codes: 0 answered, 2 it could not be.
#[derive(Debug, Parser)]
#[command(name = "coroner fleet", bin_name = "coroner fleet", version, max_term_width = 110)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a collector.
    Serve(ServeArgs),
    /// Say how many nodes there are, which are silent, and what is wrong now.
    Status(AtArgs),
    /// List nodes.
    Nodes(NodesArgs),
    /// Say what the nodes with a problem have in common that the others lack.
    Why(WhyArgs),
    /// List incidents of all nodes, newest first.
    Incidents(IncidentsArgs),
    /// Show one node: what it is, what is and was wrong with it, and its incidents.
    Show(ShowArgs),
}

#[derive(Debug, ClapArgs)]
pub struct ServeArgs {
    /// Where the store and the tokens are kept. [default: /var/lib/coroner-fleet; not as root ~/.local/share/coroner-fleet]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Address to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8478")]
    pub listen: SocketAddr,

    /// A file with the token that nodes present. [default: DIR/agent.token, made if it does not exist]
    #[arg(long, value_name = "FILE")]
    pub agent_token_file: Option<PathBuf>,

    /// A file with the token that people present. [default: DIR/user.token, made if it does not exist]
    #[arg(long, value_name = "FILE")]
    pub user_token_file: Option<PathBuf>,

    /// Serve HTTPS with this certificate chain (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// The private key of that certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,

    /// How long to keep minutes.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_time)]
    pub keep_minutes: Duration,

    /// How long to keep problems and incidents.
    #[arg(long, value_name = "DURATION", default_value = "400d", value_parser = parse_time)]
    pub keep_problems: Duration,
}

#[derive(Debug, ClapArgs)]
pub struct NodesArgs {
    /// Only nodes for which this holds: 'zone=us-east-1a and zombies>1000', 'problem=nic-reset', 'silent', 'up>5d'.
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub matching: Option<String>,

    /// Order by this field: zombies, busy, up, problems, host, zone.
    #[arg(long, value_name = "FIELD")]
    pub sort: Option<String>,

    /// Print at most so many.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u32,

    #[command(flatten)]
    pub at: AtArgs,
}

#[derive(Debug, ClapArgs)]
pub struct WhyArgs {
    /// A problem's code (nic-reset) or key, or an expression ('zombies>1000'). [default: every problem of warning or worse]
    #[arg(value_name = "CODE|KEY|EXPRESSION")]
    pub condition: Option<String>,

    /// Nodes that had the problem within this time count as sick.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_time)]
    pub since: Duration,

    #[command(flatten)]
    pub at: AtArgs,
}

#[derive(Debug, ClapArgs)]
pub struct IncidentsArgs {
    /// Only those of this time.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_time)]
    pub since: Duration,

    #[command(flatten)]
    pub at: AtArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ShowArgs {
    /// Its host name or machine id.
    #[arg(value_name = "NODE")]
    pub node: String,

    #[command(flatten)]
    pub at: AtArgs,
}

/// `30s`, `10m`, `12h`, `7d`; at most some years.
fn parse_time(text: &str) -> Result<Duration, String> {
    let expected = || "expected a time such as 30m, 12h or 7d".to_owned();
    let (number, unit) = text.split_at(text.len() - text.chars().next_back().map_or(0, char::len_utf8));
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(expected()),
    };
    let number: u32 = number.parse().map_err(|_| expected())?;
    let time = Duration::from_secs(u64::from(number).saturating_mul(seconds));
    if time.is_zero() || time > Duration::from_secs(10 * 365 * 86_400) {
        return Err("expected more than nothing and at most 3650d".to_owned());
    }
    Ok(time)
}

/// Where a collector keeps its store unless told otherwise.
pub fn default_directory() -> PathBuf {
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|about| std::os::unix::fs::MetadataExt::uid(&about) == 0);
    match std::env::var_os("HOME") {
        Some(home) if !is_root => PathBuf::from(home).join(".local/share/coroner-fleet"),
        _ => PathBuf::from("/var/lib/coroner-fleet"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(parse_time("7d").unwrap().as_secs(), 7 * 86_400);
        for bad in ["", "7", "d", "7w", "-1d", "0s", "4000000000d", "7é"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
