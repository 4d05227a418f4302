use super::*;

const DEPLOYED: &str = include_str!("../../../../deploy/coroner.toml");

fn parse(text: &str) -> anyhow::Result<Config> {
    Config::parse(text, Path::new("coroner.toml"))
}

fn refusal(text: &str) -> String {
    format!("{:#}", parse(text).unwrap_err())
}

#[test]
fn the_shipped_file_lists_every_key_with_its_default() {
    assert_eq!(parse(DEPLOYED).unwrap(), Config::default(), "as shipped");
    // Prose begins with "# ", a commented-out key with "#" alone.
    let is_key = |line: &str| line.starts_with(|c: char| c.is_ascii_lowercase()) && line.contains(" = ");
    let uncommented: Vec<&str> = DEPLOYED
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(key) if is_key(key) => key,
            _ => line,
        })
        .collect();
    assert_eq!(parse(&uncommented.join("\n")).unwrap(), Config::default(), "with every key uncommented");

    let keys = uncommented.iter().filter(|line| is_key(line)).count();
    assert_eq!(keys, 3 + 9 + 8 + 2 + 1 + 10, "a key is missing in deploy/coroner.toml or in this count");
}

#[test]
fn a_file_changes_what_it_names_and_nothing_else() {
    let config = parse(
        "max_size = \"512MB\"\nrate = 0\n[incidents]\nbefore = \"2m\"\nhook = [\"/bin/logger\", \"incident\"]\n\
         [triggers]\ncore_saturated = \"0s\"\noom_kill = false\n[metrics]\nlisten = \"off\"\n",
    )
    .unwrap();
    let mut expected = Config { max_size: 512_000_000, rate: 0, ..Config::default() };
    expected.incidents.before = Duration::from_secs(120);
    expected.incidents.hook = vec!["/bin/logger".to_owned(), "incident".to_owned()];
    expected.triggers.core_saturated = Duration::ZERO;
    expected.triggers.oom_kill = false;
    expected.metrics.listen = None;
    assert_eq!(config, expected);
}

#[test]
fn errors_name_the_file_the_line_and_what_is_expected() {
    let unknown = refusal("rate = 49\n[incidents]\nbefor = \"120s\"\n");
    assert!(unknown.starts_with("coroner.toml:3: unknown field `befor`"), "{unknown}");
    assert!(unknown.contains("`before`") && unknown.contains("befor = \"120s\""), "{unknown}");

    let without_unit = refusal("[incidents]\nbefore = 120\n");
    assert!(without_unit.starts_with("coroner.toml:2: "), "{without_unit}");
    assert!(without_unit.contains("\"120s\""), "{without_unit}");

    let size = refusal("\nmax_size = \"2 potatoes\"\n");
    assert!(size.starts_with("coroner.toml:2: ") && size.contains("2GiB"), "{size}");
    assert!(refusal("max_size = -1").contains("expected a size"), "{}", refusal("max_size = -1"));
    assert!(refusal("max_size = 17").contains("at least 8MiB"));
    assert!(refusal("[report]\nstacks_every = \"48h\"").contains("\"0s\" (never)"));
    assert!(refusal("rate = 100000").contains("at most 999 "));
    assert!(refusal("[incidents]\nquiet = \"25h\"").contains("at most 24h"));
    assert!(refusal("[incidents]\nhook = [\"logger\"]").contains("absolute path"));
    assert!(refusal("rate = ").starts_with("coroner.toml:1: "), "{}", refusal("rate = "));
}

#[test]
fn metrics_stay_on_the_node() {
    for public in ["0.0.0.0:9478", "[::]:9478", "10.1.2.3:9478"] {
        let refused = refusal(&format!("[metrics]\nlisten = \"{public}\"\n"));
        assert!(refused.starts_with("coroner.toml:2: ") && refused.contains("ssh -L 9478"), "{refused}");
    }
    assert!(parse("[metrics]\nlisten = \"[::1]:9999\"\n").is_ok());
    assert!(refusal("[metrics]\nlisten = \"localhost:9478\"\n").contains("127.0.0.1:9478"));
}

#[test]
fn sizes_are_what_people_write() {
    assert_eq!(parse_size("2GiB"), Ok(2 << 30));
    assert_eq!(parse_size("64 MiB"), Ok(64 << 20));
    assert_eq!(parse_size("512MB"), Ok(512_000_000));
    assert_eq!(parse_size("1g"), Ok(1 << 30));
    assert_eq!(parse_size("1048576"), Ok(1 << 20));
    for wrong in ["", "GiB", "-1", "1.5GiB", "2 potatoes", "99999999999TiB", "18446744073709551616"] {
        assert!(parse_size(wrong).is_err(), "{wrong:?} was accepted");
    }
}

#[test]
fn a_missing_file_is_an_error_only_if_it_was_named() {
    let missing = Config::read(Some(Path::new("/nonexistent/coroner.toml"))).unwrap_err();
    assert!(format!("{missing:#}").starts_with("cannot read /nonexistent/coroner.toml: "), "{missing:#}");
}
