//! Where a ClickHouse is: `clickhouse://user:password@host:port/database?setting=value`.

use anyhow::{Context, bail, ensure};
use std::path::Path;
use std::time::Duration;
use url::Url;

/// The port of ClickHouse's HTTP interface, plain and with TLS.
const PORT: u16 = 8123;
const TLS_PORT: u16 = 8443;
/// Nodes wait 15 s for an answer.
const MOST_BETWEEN_INSERTS: Duration = Duration::from_secs(8);
/// At 10,000 nodes that is 1,000 minutes an insert.
const BETWEEN_INSERTS: Duration = Duration::from_secs(6);

#[derive(Clone)]
pub struct Address {
    /// `http://host:port`, without secrets.
    pub url: String,
    pub user: String,
    pub password: String,
    pub database: String,
    /// Tables are made on this cluster, replicated.
    pub cluster: Option<String>,
    /// At least so long from one insert to the next.
    pub between_inserts: Duration,
    /// ClickHouse's own settings, sent with each statement.
    pub settings: Vec<(String, String)>,
}

impl Address {
    pub fn parse(text: &str, password_file: Option<&Path>) -> anyhow::Result<Address> {
        let url = Url::parse(text).context("--store: not a URL; expected clickhouse://user@host:port/database")?;
        let mut is_secure = match url.scheme() {
            "clickhouse" => false,
            "clickhouses" => true,
            other => bail!("--store: '{other}' is no store; expected clickhouse:// or clickhouses:// (TLS)"),
        };
        let host = url.host_str().filter(|host| !host.is_empty()).context("--store: names no host")?.to_owned();
        let plain = |text: &str| -> anyhow::Result<String> {
            // The pairs of a query are decoded alike; a plus sign is none there.
            let form = format!("x={}", text.replace('+', "%2B"));
            let decoded = url::form_urlencoded::parse(form.as_bytes()).next();
            Ok(decoded.context("--store: cannot be decoded")?.1.into_owned())
        };
        let database = plain(url.path().trim_matches('/'))?;
        ensure!(
            is_name(&database),
            "--store: name a database of letters, digits and _, as in clickhouse://host/coroner"
        );
        let (mut cluster, mut between_inserts, mut settings) = (None, BETWEEN_INSERTS, Vec::new());
        for (name, value) in url.query_pairs() {
            match name.as_ref() {
                "secure" => is_secure = matches!(value.as_ref(), "true" | "1"),
                "cluster" => {
                    ensure!(is_name(&value), "--store: cluster: expected letters, digits, _ and -");
                    cluster = Some(value.into_owned());
                }
                "insert_every" => between_inserts = time(&value)?,
                name => {
                    ensure!(is_name(name), "--store: '{}' is no setting", crate::ingest::printable(name));
                    settings.push((name.to_owned(), value.into_owned()));
                }
            }
        }
        let password = match (url.password(), password_file) {
            (Some(_), Some(_)) => bail!("--store has a password, and --store-password-file names another"),
            (Some(password), None) => plain(password)?,
            (None, Some(file)) => std::fs::read_to_string(file)
                .with_context(|| format!("cannot read the password in {}", file.display()))?
                .trim_end_matches(['\r', '\n'])
                .to_owned(),
            (None, None) => String::new(),
        };
        let user = match url.username() {
            "" => "default".to_owned(),
            name => plain(name)?,
        };
        let (scheme, port) = if is_secure { ("https", TLS_PORT) } else { ("http", PORT) };
        let port = url.port().unwrap_or(port);
        Ok(Address {
            url: format!("{scheme}://{host}:{port}"),
            user,
            password,
            database,
            cluster,
            between_inserts,
            settings,
        })
    }

    /// For people: without the password.
    pub fn shown(&self) -> String {
        format!("ClickHouse at {}, database {}", self.url, self.database)
    }
}

fn is_name(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    (1..=128).contains(&text.len()) && text.bytes().all(is_plain)
}

/// `6s`, `500ms`
fn time(text: &str) -> anyhow::Result<Duration> {
    let expected = || {
        format!(
            "--store: insert_every: expected a time up to {} s, such as 2s or 500ms",
            MOST_BETWEEN_INSERTS.as_secs()
        )
    };
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (text.strip_suffix('s').with_context(expected)?, 1000),
    };
    let number: u32 = number.parse().ok().with_context(expected)?;
    let time = Duration::from_millis(u64::from(number) * unit);
    ensure!(time <= MOST_BETWEEN_INSERTS, expected());
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let plain = Address::parse("clickhouse://db.example/fleet", None).unwrap();
        assert_eq!(
            (plain.url.as_str(), plain.user.as_str(), plain.database.as_str()),
            ("http://db.example:8123", "default", "fleet")
        );
        let full = Address::parse(
            "clickhouse://me:p%40ss+1@[::1]:9123/fleet?secure=true&cluster=c1&insert_every=500ms&insert_quorum=auto",
            None,
        )
        .unwrap();
        assert_eq!(
            (full.url.as_str(), full.user.as_str(), full.password.as_str()),
            ("https://[::1]:9123", "me", "p@ss+1")
        );
        assert_eq!((full.cluster.as_deref(), full.between_inserts), (Some("c1"), Duration::from_millis(500)));
        assert_eq!(full.settings, [("insert_quorum".to_owned(), "auto".to_owned())]);
        assert!(!full.shown().contains("p@ss"));
        assert_eq!(Address::parse("clickhouses://h/d", None).unwrap().url, "https://h:8443");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        std::fs::write(&file, "secret\n").unwrap();
        assert_eq!(Address::parse("clickhouse://me@h/d", Some(&file)).unwrap().password, "secret");
        for bad in [
            "clickhouse://h",
            "clickhouse:///d",
            "postgres://h/d",
            "h:9000/d",
            "clickhouse://h/d'; DROP",
            "clickhouse://h/a/b",
            "clickhouse://h/d?cluster=a'b",
            "clickhouse://h/d?insert_every=1h",
            "clickhouse://h/d?insert_every=60s",
        ] {
            assert!(Address::parse(bad, None).is_err(), "{bad}");
        }
        assert!(Address::parse("clickhouse://me:x@h/d", Some(&file)).is_err());
    }
}
