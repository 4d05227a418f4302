//! `unit_files DIR`: the units of a tree, their state, preset and package, and what it cost to tell.

use coroner_probes::tree::Tree;
use coroner_probes::{Root, packages, root, unit_files};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "/".to_owned());
    let tree = Tree::open(&Root::at(directory))?;
    let read = unit_files::read_tree(&tree);
    let after_units = root::own_cpu();
    let mut units = read.units;
    let unseen = packages::name_packages(&tree, &mut units);
    for unit in &units {
        let package = unit.package.as_ref().map(|p| format!("{} {}", p.name, p.version.as_deref().unwrap_or("?")));
        println!(
            "{:45} {:9} {:9} {}",
            unit.name,
            unit.enablement,
            unit.preset.map_or("-", |p| p.as_str()),
            package.as_deref().unwrap_or("-")
        );
    }
    for unseen in read.unseen.iter().chain(&unseen) {
        println!("not seen: {}: {}", unseen.what, unseen.why);
    }
    let all = root::own_cpu();
    println!("{} units in {after_units:?}, packages in {:?}", units.len(), all.saturating_sub(after_units));
    Ok(())
}
