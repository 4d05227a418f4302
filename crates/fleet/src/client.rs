//! Asks a collector.

use anyhow::{Context, bail};
use coroner_report::reach::what_to_do;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::config::ConfigBuilder;
use ureq::http::Response;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::typestate::AgentScope;
use ureq::{Agent, Body, BodyReader, RequestBuilder};

const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const MOST_ANSWERED: u64 = 256 << 20;
/// Of an error.
const MOST_SAID: u64 = 1 << 20;

/// Where the collector is, and how to get in.
const DEFAULT_AT: &str = "http://127.0.0.1:8478";

#[derive(Debug, Clone, clap::Args)]
pub struct AtArgs {
    /// The collector's URL.
    #[arg(long, value_name = "URL", env = "CORONER_FLEET", default_value = DEFAULT_AT)]
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

impl AtArgs {
    /// The options that name the collector, for a command that is suggested; those of the environment need not be said.
    pub fn given(&self) -> String {
        let from = |name: &str| std::env::var(name).ok();
        let mut given = String::new();
        if from("CORONER_FLEET").as_deref() != Some(&self.at) && self.at != DEFAULT_AT {
            given.push_str(&format!(" --at {}", self.at));
        }
        for (option, variable, file) in [
            ("--token-file", "CORONER_FLEET_TOKEN_FILE", &self.token_file),
            ("--ca-file", "CORONER_FLEET_CA_FILE", &self.ca_file),
        ] {
            if let Some(file) = file.as_ref().filter(|file| from(variable).as_deref() != file.to_str()) {
                given.push_str(&format!(" {option} {}", file.display()));
            }
        }
        given
    }
}

/// The answer to a question, as text.
pub fn ask(at: &AtArgs, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<String> {
    let agent = agent(at, |config| config.timeout_global(Some(ANSWER_WITHIN)))?;
    let mut body = sent(at, with(agent.get(url(at, path)), at, parameters)?.call())?.into_body();
    Ok(body.with_config().limit(MOST_ANSWERED).read_to_string()?)
}

/// Asks for something to be done; the answer.
pub fn post(at: &AtArgs, path: &str) -> anyhow::Result<String> {
    let agent = agent(at, |config| config.timeout_global(Some(ANSWER_WITHIN)))?;
    let mut body = sent(at, with(agent.post(url(at, path)), at, &[])?.send_empty())?.into_body();
    Ok(body.with_config().limit(MOST_ANSWERED).read_to_string()?)
}

/// An answer of any size, as it comes.
pub fn open(at: &AtArgs, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<Response<BodyReader<'static>>> {
    let agent = agent(at, |config| config.timeout_per_read(Some(ANSWER_WITHIN)))?;
    let answer = sent(at, with(agent.get(url(at, path)), at, parameters)?.call())?;
    Ok(answer.map(|body| body.into_with_config().limit(u64::MAX).reader()))
}

type Config = ConfigBuilder<AgentScope>;

fn agent(at: &AtArgs, limits: impl FnOnce(Config) -> Config) -> anyhow::Result<Agent> {
    let mut tls = TlsConfig::builder();
    if let Some(file) = &at.ca_file {
        tls = tls.root_certs(authorities(file)?);
    }
    let config = Agent::config_builder().tls_config(tls.build()).http_status_as_error(false);
    Ok(limits(config).build().new_agent())
}

/// A collector takes no longer line.
const LONGEST_PARAMETER: usize = 8192;

fn url(at: &AtArgs, path: &str) -> String {
    format!("{}/api/v1/{path}", at.at.trim_end_matches('/'))
}

fn with<B>(
    mut request: RequestBuilder<B>,
    at: &AtArgs,
    parameters: &[(&str, &str)],
) -> anyhow::Result<RequestBuilder<B>> {
    let default = crate::args::default_directory().join("user.token");
    let file = at.token_file.as_deref().unwrap_or(&default);
    let token = std::fs::read_to_string(file).with_context(|| {
        format!(
            "cannot read the token {}; name it with --token-file (the collector printed where it is)",
            file.display()
        )
    })?;
    for (name, value) in parameters {
        anyhow::ensure!(
            value.len() <= LONGEST_PARAMETER,
            "{name}: {} bytes; at most {LONGEST_PARAMETER} are taken",
            value.len()
        );
        request = request.query(name, value);
    }
    Ok(request.header("Authorization", format!("Bearer {}", token.trim())))
}

/// The answer, or why there is none.
fn sent(at: &AtArgs, answer: Result<Response<Body>, ureq::Error>) -> anyhow::Result<Response<Body>> {
    let response = answer.map_err(|error| anyhow::anyhow!("{}", no_answer(&at.at, &error)))?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    let text = response.into_body().with_config().limit(MOST_SAID).read_to_string().unwrap_or_default();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    match (json["error"].as_str(), json["what_to_do"].as_str()) {
        (Some(error), Some(what_to_do)) => bail!("{}: {what_to_do}", safe(error)),
        _ => bail!("{} answered {status}; is it a collector of coroner?", at.at),
    }
}

fn no_answer(at: &str, error: &ureq::Error) -> String {
    let is_url = matches!(at.split_once("://"), Some(("https" | "http", _)));
    if !is_url {
        return format!("--at {at}: expected the collector's URL: https://HOST[:PORT] or http://HOST[:PORT]");
    }
    let error = error.to_string();
    let what_to_do = what_to_do(at, &error).unwrap_or("does `coroner fleet serve` run there?");
    format!("no answer from {at}: {error}: {what_to_do}")
}

/// A part of a path: nothing in it separates.
pub fn encoded(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    name.bytes().map(|byte| if is_plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
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
