//! Asks a collector.

use anyhow::{Context, bail};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::Agent;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const MOST_ANSWERED: u64 = 256 << 20;

/// Where the collector is, and how to get in.
#[derive(Debug, Clone, clap::Args)]
pub struct AtArgs {
    /// The collector's URL.
    #[arg(long, value_name = "URL", env = "CORONER_FLEET", default_value = "http://127.0.0.1:8478")]
    pub at: String,

    /// A file with the token for people. [default: user.token in the default directory of `coroner fleet serve`]
    #[arg(long, value_name = "FILE", env = "CORONER_FLEET_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,

    /// Certificates (PEM) that vouch for the collector, instead of the public authorities.
    #[arg(long, value_name = "FILE", env = "CORONER_FLEET_CA_FILE")]
    pub ca_file: Option<PathBuf>,

    /// Print one JSON document.
    #[arg(long)]
    pub json: bool,
}

/// The answer to a question, as text.
pub fn ask(at: &AtArgs, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<String> {
    let default = crate::args::default_directory().join("user.token");
    let file = at.token_file.as_deref().unwrap_or(&default);
    let token = std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read the token {}; name it with --token-file (the collector printed where it is)",
            file.display()
        )
    })?;
    let mut tls = TlsConfig::builder();
    if let Some(file) = &at.ca_file {
        tls = tls.root_certs(authorities(file)?);
    }
    let agent: Agent = Agent::config_builder()
        .tls_config(tls.build())
        .timeout_global(Some(ANSWER_WITHIN))
        .http_status_as_error(false)
        .build()
        .new_agent();
    let url = format!("{}/api/v1/{path}", at.at.trim_end_matches('/'));
    let mut request = agent.get(&url).header("Authorization", format!("Bearer {}", token.trim()));
    for (name, value) in parameters {
        request = request.query(name, value);
    }
    let mut response =
        request.call().with_context(|| format!("no answer from {}; is `coroner fleet serve` running there?", at.at))?;
    let status = response.status();
    let text = response.body_mut().with_config().limit(MOST_ANSWERED).read_to_string()?;
    if status.is_success() {
        return Ok(text);
    }
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match (json["error"].as_str(), json["what_to_do"].as_str()) {
        (Some(error), Some(what_to_do)) => bail!("{}: {what_to_do}", safe(error)),
        _ => bail!("{} answered {status}; is it a collector of coroner?", at.at),
    }
}

fn safe(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).take(2000).collect()
}

pub fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    serde_json::from_str(text).context("the collector's answer is not what this version expects")
}

fn authorities(file: &Path) -> anyhow::Result<RootCerts> {
    let pem = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut found: Vec<Certificate<'static>> = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) = item.with_context(|| file.display().to_string())? {
            found.push(certificate);
        }
    }
    anyhow::ensure!(!found.is_empty(), "{}: no certificate in it; expected PEM", file.display());
    Ok(RootCerts::from(found))
}
