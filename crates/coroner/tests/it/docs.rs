//! docs/ agrees with the code.

use crate::support::project;
use coroner_diagnosis::Code;
use coroner_diagnosis::verdict::{causes, links};

fn verdicts() -> String {
    std::fs::read_to_string(project().join("docs/verdicts.md")).unwrap()
}

/// The first cells of each row of the table below a comment.
fn rows(page: &str, comment: &str, cells: usize) -> Vec<Vec<String>> {
    let (_, below) = page.split_once(comment).unwrap_or_else(|| panic!("no {comment}"));
    let table = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cell = |row: &str| row.split('|').skip(1).take(cells).map(|cell| cell.trim().to_owned()).collect();
    table.skip(2).map(cell).collect()
}

fn words(codes: &[Code]) -> String {
    codes.iter().map(|code| code.as_str()).collect::<Vec<_>>().join(", ")
}

#[test]
fn every_cause_and_link_is_documented_and_nothing_else() {
    let page = verdicts();
    let mut causes: Vec<Vec<String>> = causes::ALL.iter().map(|cause| vec![words(cause.codes)]).collect();
    let mut links: Vec<Vec<String>> = links::ALL.iter().map(|link| vec![words(link.from), words(link.to)]).collect();
    let mut told_causes = rows(&page, "<!-- causes:", 1);
    let mut told_links = rows(&page, "<!-- links:", 2);
    for list in [&mut causes, &mut links, &mut told_causes, &mut told_links] {
        list.sort();
    }
    assert_eq!(told_causes, causes, "docs/verdicts.md, the table of causes");
    assert_eq!(told_links, links, "docs/verdicts.md, the table of links");
}

#[test]
fn code_in_the_docs_is_in_the_source() {
    let page = verdicts();
    let mut shown = 0;
    for (before, code) in page.split("```rust\n").collect::<Vec<_>>().windows(2).map(|two| (two[0], two[1])) {
        let file = before.trim_end().trim_end_matches("`:").rsplit('`').next().unwrap();
        let source = std::fs::read_to_string(project().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let code = code.split("```").next().unwrap().trim();
        assert!(source.contains(code), "docs/verdicts.md shows code that is not in {file}:\n{code}");
        shown += 1;
    }
    assert!(shown >= 3, "no code is shown");
}
