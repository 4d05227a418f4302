//! The statistics against an independent implementation: scipy and statsmodels, installed from PyPI into a venv under target/.

mod fleet;

use coroner_cohort::{
    Life, Ratio, Table, benjamini_hochberg, kaplan_meier, ln_tail, pooled_odds_ratio, pooled_risk_ratio,
};
use fleet::Rng;
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn python() -> PathBuf {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("scipy-venv");
    let python = venv.join("bin/python");
    let run = |program: &Path, arguments: &[&str]| {
        let status = Command::new(program).args(arguments).status().unwrap();
        assert!(status.success(), "{program:?} {arguments:?}: {status}");
    };
    if !python.exists() {
        run(Path::new("python3"), &["-m", "venv", venv.to_str().unwrap()]);
    }
    run(&python, &["-m", "pip", "install", "--quiet", "scipy>=1.11", "numpy", "statsmodels"]);
    python
}

fn answers(cases: &Value) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference.py");
    let mut child = Command::new(python()).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(cases.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The largest difference between numbers, as a share of theirs.
#[derive(Default)]
struct Worst(f64, usize);

impl Worst {
    fn compare(&mut self, ours: f64, theirs: &Value, limit: f64, what: &dyn std::fmt::Debug) {
        let theirs = theirs.as_f64().unwrap();
        let share = (ours - theirs).abs() / theirs.abs().max(1e-290);
        assert!(share <= limit, "{what:?}: {ours}, but scipy says {theirs}");
        self.0 = self.0.max(share);
        self.1 += 1;
    }

    fn ratio(&mut self, ours: Ratio, theirs: &Value, what: &dyn std::fmt::Debug) {
        for (index, ours) in [ours.value, ours.low, ours.high].into_iter().enumerate() {
            self.compare(ours, &theirs[index], 1e-9, what);
        }
    }

    fn tell(&self, what: &str) {
        println!("{what}: {} numbers, at most {:.1e} apart", self.1, self.0);
    }
}

fn table(rng: &mut Rng, largest: usize) -> Table {
    let mut side = || {
        let nodes = 1 + rng.below(largest);
        let risk = rng.share() * rng.share();
        ((0..nodes).filter(|_| rng.chance(risk)).count() as u32, nodes as u32)
    };
    let ((sick, of), (elsewhere_sick, elsewhere)) = (side(), side());
    Table { sick, of, elsewhere_sick, elsewhere }
}

fn lives(rng: &mut Rng, late: bool) -> Vec<Life> {
    let life = |_| {
        let entered_after_hours = if late && rng.chance(0.6) { rng.below(20) as f64 } else { 0.0 };
        Life { hours: entered_after_hours + 1.0 + rng.below(40) as f64, onset: rng.chance(0.6), entered_after_hours }
    };
    (0..80).map(life).collect()
}

#[test]
#[ignore = "scipy tier: installs scipy and statsmodels from PyPI: cargo test --release -p coroner-cohort --test scipy -- --ignored"]
fn the_statistics_are_those_of_scipy() {
    let mut rng = Rng(2_026);
    let mut tables: Vec<Table> = (0..600).map(|i| table(&mut rng, [8, 60, 500, 6_000][i % 4])).collect();
    tables.push(Table { sick: 438, of: 512, elsewhere_sick: 3, elsewhere: 9_488 });
    tables.push(Table { sick: 0, of: 512, elsewhere_sick: 300, elsewhere: 9_488 });
    let strata: Vec<Vec<Table>> =
        (0..200).map(|i| (0..2 + rng.below(20)).map(|_| table(&mut rng, [6, 40, 200][i % 3])).collect()).collect();
    let p: Vec<f64> = (0..300).map(|_| rng.share().powi(3)).collect();
    let lives: Vec<Vec<Life>> = (0..40).map(|i| lives(&mut rng, i % 2 == 1)).collect();
    let theirs = answers(&json!({ "tables": tables, "strata": strata, "p": p, "lives": lives }));

    let (mut fisher, mut ratios) = (Worst::default(), Worst::default());
    for (index, table) in tables.iter().enumerate() {
        // scipy treats probabilities as equal within 1e-14 and we within 1e-7; below 1e-290 it has no digits left.
        if theirs["fisher"][index].as_f64().unwrap() > 1e-290 {
            fisher.compare(table.fisher_ln_p().exp(), &theirs["fisher"][index], 1e-6, table);
        }
        ratios.ratio(table.risk_ratio(), &theirs["risk_ratio"][index], table);
    }
    fisher.tell("Fisher's exact test");
    ratios.tell("risk ratio and its interval");

    let mut adjusted = Worst::default();
    let ln_p: Vec<f64> = p.iter().map(|p| p.ln()).collect();
    for (index, ours) in benjamini_hochberg(&ln_p, p.len()).iter().enumerate() {
        adjusted.compare(ours.exp(), &theirs["adjusted"][index], 1e-9, &index);
    }
    adjusted.tell("Benjamini and Hochberg");

    let (mut pooled, mut tails) = (Worst::default(), Worst::default());
    for (index, tables) in strata.iter().enumerate() {
        let expected = &theirs["pooled"][index];
        if let Some(ratio) = pooled_risk_ratio(tables) {
            pooled.ratio(ratio, &expected["risk_ratio"], tables);
        }
        let odds_ratio = pooled_odds_ratio(tables);
        if odds_ratio.is_finite() {
            pooled.compare(odds_ratio, &expected["odds_ratio"], 1e-9, tables);
        }
        for (side, more) in [true, false].into_iter().enumerate() {
            // Only small tails matter; the sum of products keeps its digits as long as no product underflows.
            let exact = theirs["tails"][index][side].as_f64().unwrap();
            if (1e-200..0.05).contains(&exact) {
                tails.compare(ln_tail(tables, more).exp(), &theirs["tails"][index][side], 0.08, tables);
            }
        }
    }
    pooled.tell("Mantel and Haenszel's ratios");
    tails.tell("tails over strata (saddlepoint)");

    let mut curves = Worst::default();
    for (index, lives) in lives.iter().enumerate() {
        let expected = &theirs["curves"][index];
        let ours = kaplan_meier(lives);
        assert_eq!(ours.len(), expected.as_array().unwrap().len());
        for (point, expected) in ours.iter().zip(expected.as_array().unwrap()) {
            curves.compare(point.hours, &expected[0], 1e-12, point);
            curves.compare(point.survival + 1.0, &json!(expected[1].as_f64().unwrap() + 1.0), 1e-9, point);
            curves.compare(point.at_risk as f64, &expected[2], 0.0, point);
        }
    }
    curves.tell("Kaplan and Meier");
}
