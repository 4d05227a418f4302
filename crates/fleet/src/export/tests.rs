use super::*;

const COLUMNS: [(&str, Kind); 5] =
    [("name", Kind::Text), ("count", Kind::Count), ("share", Kind::Number), ("at", Kind::Time), ("silent", Kind::Flag)];

fn written(format: Format, rows: &[[Cell<'_>; 5]]) -> Vec<u8> {
    let columns = COLUMNS.map(|(name, kind)| Column::new(name, kind));
    let mut bytes = Vec::new();
    let mut table = Table::begin(format, &columns, &mut bytes).unwrap();
    rows.iter().for_each(|row| table.row(row).unwrap());
    table.finish().unwrap();
    bytes
}

#[test]
fn csv_cells_are_quoted_and_are_no_formulas() {
    let row =
        |text| [Cell::Text(text), Cell::Count(-3), Cell::Number(0.25), Cell::Time(1_790_000_000), Cell::Flag(true)];
    let text = String::from_utf8(written(Format::Csv, &[row("a \"b\", c"), row("=1+1"), row("@x,y"), row("+1\r\n-2")]))
        .unwrap();
    let rest = ",-3,0.25,2026-09-21T14:13:20.000Z,true";
    let expected = [
        "name,count,share,at,silent".to_owned(),
        format!("\"a \"\"b\"\", c\"{rest}"),
        format!("'=1+1{rest}"),
        format!("\"'@x,y\"{rest}"),
        format!("'+1\u{fffd}\u{fffd}-2{rest}"),
    ];
    assert_eq!(text.split("\r\n").collect::<Vec<_>>()[..5], expected);
    let missing = written(
        Format::Csv,
        &[[Cell::Missing; 5], [Cell::Text(""), Cell::Missing, Cell::Missing, Cell::Missing, Cell::Missing]],
    );
    assert!(missing.ends_with(b"\r\n,,,,\r\n\"\",,,,\r\n"), "a missing text is not an empty one");
}

#[test]
fn parquet_is_written_in_groups() {
    let rows = vec![[Cell::Text("n"), Cell::Count(1), Cell::Number(0.5), Cell::Time(1), Cell::Flag(false)]; 200_000];
    let bytes = written(Format::Parquet, &rows);
    assert!(bytes.starts_with(b"PAR1") && bytes.ends_with(b"PAR1"));
    // The format's own reader is another one: see tests/fleet/export.rs.
    assert!(bytes.len() < 100_000, "{} bytes for the same row again and again", bytes.len());
    assert!(written(Format::Parquet, &[]).ends_with(b"PAR1"), "no rows are a table, too");
}

#[test]
fn a_cell_of_another_kind_is_an_error() {
    let columns = [Column::new("name", Kind::Text)];
    let mut table = Table::begin(Format::Parquet, &columns, Vec::new()).unwrap();
    assert!(table.row(&[Cell::Count(1)]).is_err());
}
