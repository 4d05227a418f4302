//! The profile engine against its peers, in one run: `cargo xtask bench profile`. CPU seconds according to the kernel, the tools
//! alternating so that a busy machine affects all of them alike, the minimum of several turns. Peers are installed by their package
//! managers into target/peers, never linked.

pub mod monopolies;
pub mod peers;
mod perf;
mod perf_data;
pub mod ranges;
mod same_lines;
mod samply;
pub mod text;
pub mod vary;

use crate::bench::yes;
use std::path::Path;

/// A line of the table.
#[derive(Default)]
pub struct Row {
    pub work: String,
    pub ours: String,
    pub peer: String,
    pub ratio: String,
    pub bar: String,
    pub met: bool,
}

impl Row {
    /// Without a peer.
    pub fn alone() -> Row {
        Row { peer: "–".to_owned(), ratio: "–".to_owned(), ..Row::default() }
    }
}

type Measure = fn(&Path, u32) -> anyhow::Result<Vec<Row>>;

/// `binaries` has the release build of coroner. `part` is one of text, perf-data, ranges, monopolies, or empty for all.
pub fn run(binaries: &Path, part: &str, runs: u32) -> anyhow::Result<()> {
    let parts: [(&str, Measure); 4] =
        [("text", text::run), ("perf-data", perf_data::run), ("ranges", ranges::run), ("monopolies", monopolies::run)];
    println!("| work | ours | peer | ratio | bar | met |");
    println!("|---|---|---|---|---|---|");
    let (mut met, mut all, mut failed) = (0, 0, Vec::new());
    for (name, measure) in parts {
        if !name.contains(part) {
            continue;
        }
        // Go on: the others are still worth measuring.
        let rows = measure(binaries, runs).unwrap_or_else(|error| {
            failed.push(name);
            let why = format!("not measured: {error:#}").replace(['|', '\n'], " ");
            vec![Row { work: name.to_owned(), ours: why, ..Row::default() }]
        });
        for row in rows {
            all += 1;
            met += u32::from(row.met);
            let met = yes(row.met);
            println!("| {} | {} | {} | {} | {} | {met} |", row.work, row.ours, row.peer, row.ratio, row.bar);
        }
    }
    println!("\n{met} of {all} bars are met.");
    anyhow::ensure!(failed.is_empty(), "not measured: {}", failed.join(", "));
    Ok(())
}
