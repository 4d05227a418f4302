//! What an image on disk would run, without booting it.

use crate::root::{ReadError, Root};
use crate::tree::Tree;
use crate::{agent_files, identity, packages, unit_files};
use coroner_evidence::{Evidence, FileQuestion, Node, UnitFile};

/// Nothing in the directory is executed, and no link leads out of it. `questions` says which files matter for these units.
pub fn read(
    root: &Root,
    name: &str,
    questions: impl Fn(&[UnitFile]) -> Vec<FileQuestion>,
) -> Result<Evidence, ReadError> {
    let tree = Tree::open(root)?;
    let mut evidence = Evidence { image: Some(name.to_owned()), ..Evidence::default() };
    let unit_files::UnitFiles { mut units, unseen } = unit_files::read_tree(&tree);
    evidence.unseen.extend(unseen);
    evidence.unseen.extend(packages::name_packages(&tree, &mut units));
    evidence.agent_files = agent_files::answer(&tree, &questions(&units));
    evidence.unit_files = units;
    evidence.node = Some(Node { os: identity::os_of(&tree), ..Node::default() });
    Ok(evidence)
}
