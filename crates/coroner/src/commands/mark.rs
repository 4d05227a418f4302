//! `coroner mark`.

use super::incidents::running_directory;
use crate::args::recorder::MarkArgs;
use crate::exit::Exit;
use crate::output::print;
use coroner_recorder::control;

pub fn run(args: MarkArgs) -> anyhow::Result<Exit> {
    let directory = running_directory(&args.directory)?;
    control::mark(&directory, &args.text)?;
    print(&format!("marked; freezing the minutes around it: coroner incidents --dir {}\n", directory.display()))?;
    Ok(Exit::NothingWrong)
}
