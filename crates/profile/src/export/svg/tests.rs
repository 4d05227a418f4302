use super::{SvgOptions, write, write_diff};
use crate::import::folded;
use crate::model::{EventId, Profile};
use crate::views::diff::diff;
use crate::views::flame::{self, FlameTree};

fn tree(text: &str) -> FlameTree {
    let (profile, _) = Profile::collect(|take| folded::read(text.as_bytes(), take)).expect("text");
    flame::tree(&profile.names, &profile.sums(), EventId(0), &flame::FlameOptions::default())
}

fn svg(text: &str, options: &SvgOptions) -> String {
    let mut out = Vec::new();
    write(&tree(text), options, &mut out).expect("memory");
    String::from_utf8(out).expect("text")
}

fn svg_diff(before: &str, after: &str) -> String {
    let mut out = Vec::new();
    write_diff(&diff(&tree(before), &tree(after)), &SvgOptions::default(), &mut out).expect("memory");
    String::from_utf8(out).expect("text")
}

/// The data the script draws from.
fn data(svg: &str) -> serde_json::Value {
    let (_, rest) = svg.split_once("<metadata class=\"data\">").expect("the data");
    let (data, _) = rest.split_once("</metadata>").expect("its end");
    serde_json::from_str(data).expect("JSON")
}

fn names(data: &serde_json::Value) -> Vec<&str> {
    let all = data["names"].as_array().expect("names");
    let ids = data["name"].as_array().expect("name");
    ids.iter().map(|id| all[id.as_u64().expect("a number") as usize].as_str().expect("a string")).collect()
}

#[test]
fn boxes_have_their_position_and_kind() {
    let svg =
        svg("sh;main;read_[k] 30\nsh;main 20\nsh;main;[unknown] 10\njava;Foo_[j];Bar_[i] 40\n", &SvgOptions::default());
    for want in [
        "<g class=\"c s", // java and sh
        "<title>read 30.00 %</title><rect x=\"50.000%\"",
        "<title>[unknown] 10.00 %</title><rect x=\"40.000%\"",
        "<title>main 60.00 %</title><rect x=\"40.000%\"",
        "7 frames",
        "100 samples",
        "All 8 boxes are in this file.",
    ] {
        assert!(svg.contains(want), "{want} is not in {svg}");
    }
    for legend in ["program", "kernel", "JIT", "inlined", "command", "no symbol"] {
        assert!(svg.contains(&format!(">{legend}</text>")), "{legend}");
    }
    let data = data(&svg);
    assert_eq!(names(&data), ["all", "java", "Foo", "Bar", "sh", "main", "[unknown]", "read"]);
    assert_eq!(data["kind"], "ccjicuxk");
    assert_eq!(data["now"]["own"], serde_json::json!([0, 0, 0, 40, 0, 20, 10, 30]));
    assert_eq!(data["now"]["gap"], serde_json::json!([0, 0, 0, 0, 0, 0, 0, 0]));
}

#[test]
fn the_widest_boxes_are_kept_in_place_and_the_rest_is_mentioned() {
    let text = "a;b 5\na;c 60\na;d 5\na;e 30\n";
    let svg = svg(text, &SvgOptions { max_boxes: 4, ..SvgOptions::default() });
    assert!(svg.contains("The widest 4 of 6 boxes. Omitted: boxes of at most 5.00 %, 10.00 % together"), "{svg}");
    let data = data(&svg);
    assert_eq!(names(&data), ["all", "a", "c", "e"]);
    assert_eq!(data["now"]["gap"], serde_json::json!([0, 0, 5, 5]));
    // Boxes too narrow to be seen initially are there for zooming, but not as shapes.
    let svg = self::svg("a;wide 99999\na;narrow 1\n", &SvgOptions::default());
    assert!(!svg.contains("<title>narrow") && svg.contains("\"narrow\""));
}

#[test]
fn names_are_escaped_whatever_they_contain() {
    let hostile =
        "a;</title><script>alert(1)</script> 1\na;]]></metadata><script>x</script> 1\na;\u{202e}\"'&\u{7}\\ 1\n";
    let svg = svg(
        hostile,
        &SvgOptions { title: "</title><script>".to_owned(), subtitle: "]]>\u{0}".to_owned(), ..SvgOptions::default() },
    );
    assert_eq!(svg.matches("<script>").count(), 1);
    assert_eq!(svg.matches("]]>").count(), 1);
    assert!(!svg.contains(['\u{202e}', '\u{7}', '\u{0}']));
    assert!(svg.contains(r#"\u{202e}&quot;'&amp;\u{7}\"#));
    assert_eq!(names(&data(&svg))[3], "]]></metadata><script>x</script>");
}

#[test]
fn a_box_costs_at_most_120_bytes_beyond_its_name() {
    // 1,500 boxes wide enough to be drawn as shapes too, and 18,000 that are not.
    let mut text = String::new();
    for a in 0..500 {
        for b in 0..36 {
            text.push_str(&format!("cmd;{a:03};{a:03};{a:03};{b:02} {}\n", 1_000_003 + a * b));
        }
    }
    let boxes = 1 + 1 + 500 * 3 + 500 * 36;
    let options = SvgOptions { unit: "ns".to_owned(), ..SvgOptions::default() };
    let whole = svg(&text, &options).len();
    let nothing = svg("cmd 1\n", &options).len();
    let each = (whole - nothing) / boxes;
    assert!(each <= 120, "{each} bytes");
    assert!(nothing < 24_000, "{nothing} bytes around the picture");
}

#[test]
fn a_difference_has_both_shares_and_names_what_is_gone() {
    // The second recording is twice as long: an unchanged share is no difference.
    let svg = svg_diff("a;same 50\na;gone_[k] 30\na;shrank 20\n", "a;same 100\na;grew 90\na;shrank 10\n");
    assert!(svg.contains("Only in the baseline: gone 30.00 %."), "{svg}");
    assert!(svg.contains("grew by 45.00 points"));
    let data = data(&svg);
    assert_eq!(names(&data), ["all", "a", "gone", "grew", "same", "shrank"]);
    assert_eq!(data["kind"], "eempem");
    assert_eq!(data["was"]["total"], serde_json::json!([100, 100, 30, 0, 50, 20]));
    assert_eq!(data["now"]["total"], serde_json::json!([200, 200, 0, 90, 100, 10]));
    assert!(svg.contains("<title>grew 45.00 %</title>") && !svg.contains("<title>gone"));
}

#[test]
fn empty_sides_are_drawn_and_mentioned() {
    let empty = svg("", &SvgOptions::default());
    assert!(empty.contains("0 samples") && empty.contains("<title>all 100.00 %</title>"));
    let gone = svg_diff("a;b 3\n", "");
    assert!(gone.contains("The other side has no samples.") && gone.contains("<title>b 100.00 %</title>"));
    assert!(svg_diff("", "a;b 3\n").contains("The baseline has no samples."));
    svg_diff("", "");
}

#[test]
fn extreme_numbers_do_no_harm() {
    svg(&format!("a;b {0}\na;c {0}\nd {0}\n", u64::MAX), &SvgOptions { width: 0, max_boxes: 0, ..Default::default() });
    svg_diff(&format!("a;b {0}\na;c {0}\n", u64::MAX), &format!("a;c {0}\n", u64::MAX));
}
