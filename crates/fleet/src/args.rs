//! The command line.

use crate::client::AtArgs;
use crate::export::{Format, What};
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
    /// Draw what nodes spend their CPU time on: a flame graph, or how some nodes differ from others.
    Flame(FlameArgs),
    /// Show one node: what it is, what is and was wrong with it, and its incidents.
    Show(ShowArgs),
    /// Say which nodes get into trouble next, and when: by the growth of their dead memory cgroups.
    ///
    /// A node gets there when it has as many as others had when they got zombie-memcgs, slow-memcg-stat or memcg-walk. The growth is that
    /// since its boot, or of the last seven days.
    Next(NextArgs),
    /// Write rows of the store as CSV or Parquet, for other tools.
    ///
    /// Texts come from nodes: in CSV, one that a spreadsheet would run as a formula (it begins with =, +, - or @) gets a ' in front.
    Export(ExportArgs),
    /// Bring the recording of an incident: from the collector, or from its node by the collector.
    ///
    /// The node is asked with its next report, which is a minute away at most, and sends the file at 1 MiB a second; it may refuse by its
    /// configuration (report.files). Read the file with coroner diagnose --from FILE.
    Fetch(FetchArgs),
}

#[derive(Debug, ClapArgs)]
pub struct ServeArgs {
    /// Where the store and the tokens are kept. [default: /var/lib/coroner-fleet; not as root ~/.local/share/coroner-fleet]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,

    /// Store in ClickHouse: clickhouse://user@host:port/database, or clickhouses:// for TLS. Several collectors may share it.
    /// [default: one file in DIR]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,

    /// A file with ClickHouse's password.
    #[arg(long, value_name = "FILE", requires = "store")]
    pub store_password_file: Option<PathBuf>,

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

    /// How long to keep the hours that minutes are rolled up into.
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = parse_time)]
    pub keep_hours: Duration,

    /// How long to keep problems and incidents.
    #[arg(long, value_name = "DURATION", default_value = "400d", value_parser = parse_time)]
    pub keep_problems: Duration,

    /// Where recordings of incidents are kept that somebody fetched: a directory, or s3://BUCKET/PREFIX with credentials, region and
    /// endpoint from the usual variables (AWS_ACCESS_KEY_ID, AWS_REGION, AWS_ENDPOINT_URL and so on). [default: DIR/files]
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX")]
    pub files: Option<String>,

    /// Size limit for them; the oldest go first.
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
    pub files_max: u64,

    /// How long to keep them.
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = parse_time)]
    pub keep_files: Duration,
}

#[derive(Debug, ClapArgs)]
pub struct NodesArgs {
    /// Only nodes for which this holds: 'zone=us-east-1a and zombies>1000', 'problem=nic-reset', 'silent', 'up>5d'.
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub matching: Option<String>,

    /// Order by this field: zombies, busy, up, problems, host, zone. [default: problems]
    #[arg(long, value_name = "FIELD")]
    pub sort: Option<String>,

    /// Print at most so many; 0: all.
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
pub struct FlameArgs {
    /// Only nodes for which this holds, as in `coroner fleet nodes`: 'problem=zombie-memcgs'. [default: all nodes]
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub matching: Option<String>,

    /// Compare them with these nodes: 'not problem=zombie-memcgs'. Red is what they do more, as a share of their samples.
    #[arg(long = "diff-where", value_name = "EXPRESSION")]
    pub diff: Option<String>,

    /// Samples of this time.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_time)]
    pub since: Duration,

    /// Where to write the picture (SVG); `-` for standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub at: AtArgs,
}

#[derive(Debug, ClapArgs)]
pub struct NextArgs {
    /// Only nodes for which this holds, as in `coroner fleet nodes`.
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub matching: Option<String>,

    /// Print at most so many.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub limit: u32,

    #[command(flatten)]
    pub at: AtArgs,
}

#[derive(Debug, ClapArgs)]
pub struct FetchArgs {
    /// As `coroner fleet incidents` prints it.
    #[arg(value_name = "NODE/NUMBER", value_parser = parse_incident)]
    pub incident: (String, u64),

    /// The file to write; it must not exist. [default: NODE-NUMBER.coroner]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Give up when nothing came from the node for this long.
    #[arg(long, value_name = "DURATION", default_value = "3m", value_parser = parse_time)]
    pub timeout: Duration,

    #[command(flatten)]
    pub at: AtArgs,
}

#[derive(Debug, ClapArgs)]
pub struct ExportArgs {
    /// The format of the file.
    #[arg(long, value_enum)]
    pub format: Format,

    /// Which rows: nodes as they are now, their minutes, their problems (from when until when), or their incidents.
    #[arg(long, value_enum, default_value = "minutes")]
    pub what: What,

    /// Only of nodes for which this holds, as in `coroner fleet nodes`.
    #[arg(long = "where", value_name = "EXPRESSION")]
    pub matching: Option<String>,

    /// Only rows of this time; of nodes, those that reported within it.
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = parse_time)]
    pub since: Duration,

    /// The file to write; it is replaced when all of it has arrived. [default: CSV to stdout]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,

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

/// `NODE/NUMBER`
fn parse_incident(text: &str) -> Result<(String, u64), String> {
    let parsed = text.rsplit_once('/').and_then(|(node, number)| Some((node.to_owned(), number.parse().ok()?)));
    parsed
        .filter(|(node, _)| !node.is_empty())
        .ok_or_else(|| "expected NODE/NUMBER, as coroner fleet incidents prints it".to_owned())
}

/// `500M`, `10G`, `1TiB`: powers of 1024.
fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || "expected a size such as 500M or 10G".to_owned();
    let text = text.strip_suffix("iB").or(text.strip_suffix('B')).unwrap_or(text);
    let digits = text.trim_end_matches(['K', 'M', 'G', 'T']);
    let shift = match &text[digits.len()..] {
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(expected()),
    };
    let number: u64 = digits.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).filter(|size| *size > 0).ok_or_else(expected)
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
    fn sizes_have_a_unit_and_incidents_a_number() {
        assert_eq!((parse_size("10G"), parse_size("2MiB")), (Ok(10 << 30), Ok(2 << 20)));
        for bad in ["", "G", "10", "0G", "10X", "99999999999T", "1KM"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_incident("a/b/3"), Ok(("a/b".to_owned(), 3)));
        for bad in ["", "3", "/3", "a/", "a/x", "a/-1"] {
            assert!(parse_incident(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_have_a_unit() {
        assert_eq!(parse_time("7d").unwrap().as_secs(), 7 * 86_400);
        for bad in ["", "7", "d", "7w", "-1d", "0s", "4000000000d", "7é"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
