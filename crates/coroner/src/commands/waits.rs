//! `coroner waits`.

use super::{WATCH_FOR, watch};
use crate::args::WaitsArgs;
use crate::exit::Exit;
use crate::output::with_line;
use crate::output::{json_text, print, waits_text};
use anyhow::Context;
use coroner_diagnosis::waits::sums::sum_up;
use coroner_probes::watch::{NameZombies, WatchOptions};
use coroner_probes::zombies::Bpf;
use coroner_source::recorded::{self, with_recorder};
use coroner_web::documents;

pub fn run(args: WaitsArgs) -> anyhow::Result<Exit> {
    let is_watch = args.duration.is_some() || args.no_bpf || args.node.is_asked();
    let mut recorded = recorded::read(&args.recorded.query(), is_watch)?;
    let evidence = match &mut recorded {
        Some(recorded) => {
            args.node.must_not_be_asked()?;
            std::mem::take(&mut recorded.evidence)
        }
        None => {
            let bpf = if args.no_bpf { Bpf::No } else { Bpf::Best };
            let options = WatchOptions { bpf, ..args.node.node().watch_options(NameZombies::IfMany, None) };
            watch(args.node.node().root(), options, args.duration.unwrap_or(WATCH_FOR))?
        }
    };
    let sums = sum_up(&evidence, args.by.by()).with_context(|| documents::waits::not_seen(&evidence))?;
    let text = if args.json {
        json_text(&with_recorder(documents::waits::document(&sums, &evidence, args.verbose), recorded.as_ref()))
    } else {
        with_line(waits_text::render(&sums, &evidence, args.verbose), recorded.as_ref())
    };
    print(&text)?;
    Ok(Exit::NothingWrong)
}
