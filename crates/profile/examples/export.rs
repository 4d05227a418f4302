//! `export PERF.DATA OUT.svg|OUT.pb.gz|OUT.speedscope.json`: writers, for checks by hand.

use coroner_profile::export::{pprof, speedscope, svg};
use coroner_profile::import::{perf_data, perf_script};
use coroner_profile::symbols::Symbols;
use coroner_profile::views::{Filter, flame};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(from), Some(to)) = (arguments.next(), arguments.next()) else {
        return Err("usage: export FILE OUT".into());
    };
    let file = std::fs::File::open(&from)?;
    let (profile, _) = match perf_data::read(&file, &mut Symbols::of_this_machine()) {
        Err(coroner_profile::import::ImportError::NotThisFormat { .. }) => perf_script::profile::read(&file)?,
        other => other?,
    };
    let all = Filter::default();
    let out = std::fs::File::create(&to)?;
    match to {
        _ if to.ends_with(".svg") => {
            let tree = flame::tree(&all.on(&profile), &flame::Options::default());
            svg::write(&tree, &svg::Options { title: from, unit: "ns".to_owned(), ..Default::default() }, out)?;
        }
        _ if to.ends_with(".json") => speedscope::write(&all.on(&profile), &from, out)?,
        _ => pprof::write(&all.on(&profile), out)?,
    }
    Ok(())
}
