//! Routes requests to documents.

use super::loading::Loading;
use super::question::{count, range, selection};
use super::shown::Shown;
use super::{cores, export, flame, owners, source, temporary, timeline};
use crate::assets::Assets;
use crate::documents;
use coroner_diagnosis::diagnose;
use coroner_diagnosis::units::audit;
use coroner_diagnosis::waits::sums::{By, sum_up};
use coroner_diagnosis::zombies::counted;
use coroner_http::{Answer, Api, ApiQuery, Asset, Refusal};
use coroner_source::moment::parse_span;
use coroner_source::profile::select::Selection;
use coroner_source::profile::{ProfileSource, heatmap as counted_heatmap, monopolies as found};
use coroner_source::{directory, incident_report};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Samples read for one answer, which takes tenths of a second; of more, an even part is read unless `exact` asks for all.
const MOST_READ: u64 = 200_000;

/// How many samples may be read for this request.
pub fn most_read(ask: &ApiQuery) -> u64 {
    if ask.is_set("exact") { u64::MAX } else { MOST_READ }
}

pub struct Page {
    assets: Assets,
    loading: Arc<Loading>,
}

impl Page {
    pub fn open(source: ProfileSource) -> anyhow::Result<Page> {
        temporary::remove_stale();
        Ok(Page { assets: Assets::from_environment(), loading: Loading::start(source)? })
    }

    /// Stops loading and removes temporary files.
    pub fn end(&self) {
        self.loading.end();
    }
}

/// Maps an error to a refusal. Having nothing to show is not a server error.
pub fn refused(error: anyhow::Error) -> Refusal {
    Refusal::absent(
        format!("{error:#}"),
        "choose another time range or fewer filters; /api/v1/source describes the source",
    )
}

fn no_evidence(shown: &Shown) -> Refusal {
    Refusal::absent(
        format!("{}: a CPU profile has no data about a node", shown.name),
        "record a node with coroner record; heatmaps and flame graphs are available",
    )
}

impl Api for Page {
    fn version(&self, ask: &ApiQuery) -> Option<u64> {
        if name(ask) == Some("progress") {
            return None;
        }
        // No cached answers once the file was replaced.
        self.loading.shown()?.ok().filter(|shown| shown.replaced().is_none())?.version()
    }

    fn asset(&self, name: &str) -> Option<Asset> {
        self.assets.get(name)
    }

    fn is_light(&self, ask: &ApiQuery) -> bool {
        matches!(name(ask), Some("source" | "progress" | "incidents"))
    }

    fn answer(&self, ask: &ApiQuery) -> Result<Answer, Refusal> {
        let Some(name) = name(ask) else {
            return Err(Refusal::absent(
                format!("not found: {:?}", ask.path),
                "the page is at /, its data at /api/v1/ (docs/api.md)",
            ));
        };
        if name == "progress" {
            return Ok(Answer::json(&source::progress(&self.loading)));
        }
        let shown = match self.loading.shown() {
            Some(Ok(shown)) => shown,
            Some(Err(why)) => return Err(Refusal::failed(why)),
            None if name == "source" => return Ok(Answer::json(&source::not_yet(&self.loading))),
            None => {
                return Err(Refusal::not_yet(
                    "the profile is still being read",
                    "try again; /api/v1/progress shows the progress",
                ));
            }
        };
        match shown.replaced() {
            Some(why) => Err(Refusal::gone(why, "restart coroner view to see the current content")),
            None => answer(shown, name, ask),
        }
    }
}

/// The name of a document: `flame`, `incidents/3`.
fn name(ask: &ApiQuery) -> Option<&str> {
    ask.path.strip_prefix("api/v1/")
}

fn answer(shown: &Shown, name: &str, ask: &ApiQuery) -> Result<Answer, Refusal> {
    match name {
        "source" => Ok(Answer::json(&source::document(shown))),
        "diagnosis" => of_evidence(shown, ask, |evidence| {
            documents::diagnosis::document(&diagnose(evidence)).map_err(anyhow::Error::from)
        }),
        "incidents" => incidents(shown),
        "cores" => cores::answer(shown, ask),
        "timeline" => timeline::answer(shown, ask),
        "heatmap" => heatmap(shown, ask),
        "flame" => flame::answer(shown, ask),
        "flame-difference" => flame::difference(shown, ask),
        "monopolies" => monopolies(shown, ask),
        "export" => export::answer(shown, ask),
        "zombies" => zombies(shown, ask),
        "units" => {
            of_evidence(shown, ask, |evidence| Ok(documents::units::document(&audit(evidence), evidence, None, None)))
        }
        "waits" => waits(shown, ask),
        "owners" => owners::answer(shown, ask),
        path => match path.strip_prefix("incidents/").map(str::parse) {
            Some(Ok(number)) => incident(shown, number),
            Some(Err(_)) => Err(Refusal::bad(format!("{path}: expected a number"), "/api/v1/incidents lists them")),
            None => Err(Refusal::absent(format!("not found: {path:?}"), "docs/api.md lists the documents")),
        },
    }
}

fn of_evidence(
    shown: &Shown,
    ask: &ApiQuery,
    document: impl FnOnce(&coroner_evidence::Evidence) -> anyhow::Result<Value>,
) -> Result<Answer, Refusal> {
    if !shown.has_evidence() {
        return Err(no_evidence(shown));
    }
    let evidence = shown.evidence(range(ask, shown)?).map_err(refused)?;
    let document = document(&evidence).map_err(refused)?;
    Ok(Answer::json(&with_window(document, shown, &evidence)))
}

/// Adds the evidence's window on the axis.
fn with_window(mut document: Value, shown: &Shown, evidence: &coroner_evidence::Evidence) -> Value {
    if let (Some(fields), Some(window)) = (document.as_object_mut(), evidence.window()) {
        let ends = json!({ "from": shown.on_axis(window.from, evidence), "to": shown.on_axis(window.to, evidence) });
        fields.insert("axis".to_owned(), ends);
    }
    document
}

fn zombies(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let growth = timeline::growth(shown, ask)?;
    let wanted = documents::zombies::ZombieDetail { list: ask.is_set("list"), all: ask.is_set("all") };
    of_evidence(shown, ask, |evidence| {
        // The report needs a scan; without one there is only a count.
        let mut counted;
        let evidence = match evidence.zombie_scans.is_empty() {
            true => {
                counted = evidence.clone();
                counted::count_if_not_named(&mut counted);
                &counted
            }
            false => evidence,
        };
        let report = coroner_diagnosis::zombies::report(evidence);
        let report = report.ok_or_else(|| anyhow::anyhow!("this recording has no memory cgroups"))?;
        let mut document = documents::zombies::document(&report, evidence, &wanted);
        document["growth"] = growth;
        Ok(document)
    })
}

/// Rows of an answer: who lost most comes first.
const MOST_WAITERS: usize = 300;

fn waits(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let by = ask.get("by").unwrap_or("process");
    let known = By::ALL.into_iter().find(|known| known.as_str() == by);
    let by = known.ok_or_else(|| {
        Refusal::bad(format!("by={by}: expected thread, process, cgroup, unit or pod"), "see docs/api.md")
    })?;
    of_evidence(shown, ask, |evidence| {
        let mut sums = sum_up(evidence, by).ok_or_else(|| anyhow::anyhow!(documents::waits::not_seen(evidence)))?;
        sums.rows.retain(|row| row.lost_ns() >= documents::waits::LEAST_LOSS_NS);
        let left_out = sums.rows.len().saturating_sub(MOST_WAITERS);
        sums.rows.truncate(MOST_WAITERS);
        let mut document = documents::waits::document(&sums, evidence, true);
        document["left_out"] = json!(left_out);
        Ok(document)
    })
}

fn incidents(shown: &Shown) -> Result<Answer, Refusal> {
    let Some(place) = shown.directory() else {
        return Ok(Answer::json(&source::own_incident(shown)));
    };
    let listed = incident_report::listed(place).map_err(refused)?;
    let mut document = documents::incidents::list(place, directory::is_live(place), &listed);
    if let Some(entries) = document["incidents"].as_array_mut() {
        for (entry, listed) in entries.iter_mut().zip(&listed) {
            let incident = &listed.incident;
            let (triggered, from, to) = (incident.triggered, incident.from, incident.until);
            entry["trigger_ns"] = json!(source::on_axis(shown, triggered));
            entry["from"] = json!(source::on_axis(shown, from));
            entry["to"] = json!(source::on_axis(shown, to));
        }
    }
    Ok(Answer::json(&document))
}

fn incident(shown: &Shown, number: u64) -> Result<Answer, Refusal> {
    let Some(place) = shown.directory() else {
        return Err(Refusal::absent(format!("no incident {number}"), "incidents are in the recorder's directory"));
    };
    let report = incident_report::report(place, number, true).map_err(refused)?;
    Ok(Answer::json(&documents::incidents::report(&report).map_err(refused)?))
}

fn must_have_samples(shown: &Shown) -> Result<(), Refusal> {
    match shown.has_samples() {
        true => Ok(()),
        false => Err(Refusal::absent(
            format!("{}: this recording has no CPU samples", shown.name),
            "coroner record takes samples, unless --rate is 0 or the kernel does not allow it",
        )),
    }
}

/// The source to read the requested samples from, and the fraction that is read.
pub fn samples(
    shown: &Shown,
    ask: &ApiQuery,
    selection: &Selection,
    most: u64,
) -> Result<(ProfileSource, f64), Refusal> {
    must_have_samples(shown)?;
    let (source, part) = shown.samples(selection, most);
    Ok((ProfileSource { stop: Some(ask.stop()), ..source }, part))
}

/// Limit for a heatmap by core: memory follows the number of cells, and this may run on a sick node.
const MOST_COLUMNS: u128 = 4000;

fn heatmap(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let selection = selection(ask, shown, "")?;
    let axis = Some(shown.axis());
    match ask.get("by").unwrap_or("offset") {
        "offset" => {
            let rows = count(ask, "rows", 50, 1..=1000)?;
            let (source, _) = samples(shown, ask, &selection, u64::MAX)?;
            let (read, map, idle) = counted_heatmap::by_offset(&source, &selection, rows).map_err(refused)?;
            Ok(Answer::text(documents::heatmap::by_offset(&read, &map, idle, axis)))
        }
        "core" => {
            let step = ask.get("step").unwrap_or("1s");
            let step =
                parse_span(step).map_err(|why| Refusal::bad(format!("step={step}: {why}"), "e.g. step=100ms"))?;
            let whole = shown.whole();
            let number = |name: &str| ask.get(name).and_then(|text| text.parse::<u64>().ok());
            let length =
                number("to").unwrap_or(whole.end.since(whole.start)).saturating_sub(number("from").unwrap_or(0));
            if u128::from(length) > step.as_nanos() * MOST_COLUMNS {
                return Err(Refusal::bad(
                    format!("step={}: more than {MOST_COLUMNS} columns", ask.get("step").unwrap_or("1s")),
                    "choose a shorter time (from, to) or a longer step",
                ));
            }
            let (source, _) = samples(shown, ask, &selection, u64::MAX)?;
            let (read, map, asked) =
                counted_heatmap::by_core(&source, &selection, step.as_nanos() as u64).map_err(refused)?;
            Ok(Answer::text(documents::heatmap::by_core(&read, &map, asked.as_ref(), axis)))
        }
        by => Err(Refusal::bad(format!("by={by}: expected offset or core"), "see docs/api.md")),
    }
}

fn monopolies(shown: &Shown, ask: &ApiQuery) -> Result<Answer, Refusal> {
    let selection = selection(ask, shown, "")?;
    let threshold = match ask.get("threshold") {
        None => Duration::from_millis(100),
        Some(text) => {
            parse_span(text).map_err(|why| Refusal::bad(format!("threshold={text}: {why}"), "e.g. threshold=100ms"))?
        }
    };
    // Needs every sample: a run must have no others in between.
    let (source, _) = samples(shown, ask, &selection, u64::MAX)?;
    let (read, found, coverage) = found::find(&source, &selection, threshold).map_err(refused)?;
    let axis = Some(shown.axis());
    Ok(Answer::text(documents::monopolies::document(&read, &found, &coverage, threshold, axis)))
}
