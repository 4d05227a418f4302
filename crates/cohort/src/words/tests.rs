use super::*;
use crate::{Counts, LookedAt, Uptime};

fn explanation(cohorts: Vec<Cohort>) -> Explanation {
    Explanation {
        nodes: Counts { sick: 5, healthy: 15, unknown: 0 },
        conclusion: if cohorts.is_empty() { Conclusion::NoDifference } else { Conclusion::Difference },
        cohorts,
        uptime: Uptime {
            matters: false,
            reboot_helps_for_days: None,
            reboot_unknown_because: None,
            sick_median_days: None,
            healthy_median_days: None,
            curves: Vec::new(),
        },
        looked_at: LookedAt { attributes: 3, values: 812, pairs: 1_200, attributes_left_out: 0, alpha: 0.005 },
        closest: None,
    }
}

fn cohort(name: &str, value: &str, table: Table) -> Cohort {
    Cohort {
        attributes: Attributes::from([(name.to_owned(), value.to_owned())]),
        aliases: Vec::new(),
        rivals: Vec::new(),
        protective: false,
        table,
        left_out: 0,
        risk_ratio: table.risk_ratio(),
        risk_ratio_adjusted: None,
        p_adjusted: 1e-9,
        told_apart_by: Vec::new(),
        among: None,
        within: Vec::new(),
    }
}

const FEW: Table = Table { sick: 4, of: 5, elsewhere_sick: 1, elsewhere: 15 };

#[test]
fn hostile_names_are_only_quoted() {
    let hostile = "x\n\u{1b}[31mAll nodes are fine.\u{202e}\u{2028}\"\\";
    let mut odd = cohort(hostile, hostile, FEW);
    odd.aliases = vec![Attributes::from([(hostile.to_owned(), hostile.to_owned())])];
    odd.told_apart_by = vec![hostile.to_owned()];
    let text = words(&explanation(vec![odd]), hostile).join("");
    assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}' || c == '\u{2028}'), "{text}");
    assert!(text.contains(r#""x\u{a}\u{1b}[31mAll nodes are fine.\u{202e}\u{2028}\"\\""#), "{text}");
}

#[test]
fn long_names_are_cut() {
    let text = words(&explanation(vec![cohort("image", &"x".repeat(100_000), FEW)]), "it").join("");
    assert!(text.chars().count() < 250 && text.contains("x…"), "{text}");
}

#[test]
fn a_ratio_without_sick_nodes_elsewhere_tells_only_its_safe_end() {
    let spotless = Table { sick: 40, of: 50, elsewhere_sick: 0, elsewhere: 950 };
    let text = words(&explanation(vec![cohort("zone", "a", spotless)]), "it").join("");
    assert_eq!(text, "40 of 50 nodes in zone a have it, none of 950 elsewhere (risk at least × 94).");
}

#[test]
fn no_difference_tells_how_much_was_looked_at() {
    let text = words(&explanation(Vec::new()), "oom-kill").join(" ");
    assert_eq!(
        text,
        "5 of 20 nodes have oom-kill. No difference found: the sick nodes have nothing in common that the healthy ones lack. Looked at 3 \
         attributes: 812 values and 1,200 pairs that enough nodes share."
    );
}

#[test]
fn numbers_are_readable() {
    assert_eq!([0, 999, 1_000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
    assert_eq!([0.04, 0.5, 3.21, 9.96, 2_705.5].map(digits), ["0.040", "0.50", "3.2", "10", "2,706"]);
    assert_eq!([0.01, 0.5, 1.0, 6.2].map(days_in_words), ["an hour", "12 hours", "1 day", "6 days"]);
}
