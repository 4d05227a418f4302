//! CSV by RFC 4180, with a header. Times are RFC 3339 in UTC, missing cells are empty.
//!
//! A spreadsheet runs a cell that begins with =, +, - or @ as a formula, and nodes choose their texts: such a text gets a ' in front.

use super::{Cell, Column};
use crate::ingest::fools;
use crate::store::read::wall;
use std::io::{self, Write};

pub struct Csv<W: Write> {
    to: W,
    line: String,
}

impl<W: Write> Csv<W> {
    pub fn begin(columns: &[Column], to: W) -> io::Result<Csv<W>> {
        let mut csv = Csv { to, line: String::new() };
        let names: Vec<Cell<'_>> = columns.iter().map(|column| Cell::Text(&column.name)).collect();
        csv.row(&names)?;
        Ok(csv)
    }

    pub fn row(&mut self, cells: &[Cell<'_>]) -> io::Result<()> {
        self.line.clear();
        for (at, cell) in cells.iter().enumerate() {
            if at > 0 {
                self.line.push(',');
            }
            match cell {
                Cell::Missing => {}
                Cell::Text(text) => push_text(&mut self.line, text),
                Cell::Count(count) => self.line.push_str(&count.to_string()),
                Cell::Number(number) => self.line.push_str(&number.to_string()),
                Cell::Time(seconds) => self.line.push_str(&wall(*seconds).to_string()),
                Cell::Flag(flag) => self.line.push_str(if *flag { "true" } else { "false" }),
            }
        }
        self.line.push_str("\r\n");
        self.to.write_all(self.line.as_bytes())
    }

    pub fn finish(mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn push_text(line: &mut String, text: &str) {
    let is_formula = text.starts_with(['=', '+', '-', '@']);
    let needs_quotes = text.contains([',', '"']) || text.is_empty();
    if needs_quotes {
        line.push('"');
    }
    if is_formula {
        line.push('\'');
    }
    for c in text.chars() {
        match c {
            '"' => line.push_str("\"\""),
            c if fools(c) => line.push('\u{fffd}'),
            c => line.push(c),
        }
    }
    if needs_quotes {
        line.push('"');
    }
}
