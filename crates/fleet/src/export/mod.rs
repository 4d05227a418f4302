//! Rows of the store as CSV or Parquet, for other tools. Written as they are read: what is in memory is bounded, and no query is open while
//! the client takes its time.

mod csv;
mod parquet;
mod rows;

use crate::query::Expr;
use crate::store::Reader;
use crate::store::dump::Node;
use std::io::Write;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Parquet,
    Csv,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum What {
    Nodes,
    Minutes,
    Episodes,
    Incidents,
}

pub struct Export {
    pub what: What,
    pub format: Format,
    /// Only of these nodes.
    pub picked: Option<Expr>,
    pub since: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Count,
    Number,
    Time,
    Flag,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Column {
    name: String,
    kind: Kind,
}

impl Column {
    fn new(name: impl Into<String>, kind: Kind) -> Column {
        Column { name: name.into(), kind }
    }
}

/// One value of a row, of its column's kind.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cell<'a> {
    Missing,
    Text(&'a str),
    Count(i64),
    Number(f64),
    /// Seconds since 1970.
    Time(i64),
    Flag(bool),
}

impl<'a> Cell<'a> {
    fn text(text: Option<&'a str>) -> Cell<'a> {
        text.map_or(Cell::Missing, Cell::Text)
    }

    fn time(seconds: Option<i64>) -> Cell<'a> {
        seconds.map_or(Cell::Missing, Cell::Time)
    }
}

/// Writes a table in one of the formats.
enum Table<W: Write + Send> {
    Csv(csv::Csv<W>),
    Parquet(Box<parquet::Parquet<W>>),
}

impl<W: Write + Send> Table<W> {
    fn begin(format: Format, columns: &[Column], to: W) -> anyhow::Result<Table<W>> {
        Ok(match format {
            Format::Csv => Table::Csv(csv::Csv::begin(columns, to)?),
            Format::Parquet => Table::Parquet(Box::new(parquet::Parquet::begin(columns, to)?)),
        })
    }

    fn row(&mut self, cells: &[Cell<'_>]) -> anyhow::Result<()> {
        match self {
            Table::Csv(csv) => Ok(csv.row(cells)?),
            Table::Parquet(parquet) => parquet.row(cells),
        }
    }

    fn finish(self) -> anyhow::Result<()> {
        match self {
            Table::Csv(csv) => Ok(csv.finish()?),
            Table::Parquet(parquet) => parquet.finish(),
        }
    }
}

/// The nodes whose rows are to be written.
pub use rows::picked;

/// Writes all of it; an error leaves a file that is not complete.
pub fn export(reader: &Reader, export: &Export, nodes: Vec<Node>, to: impl Write + Send) -> anyhow::Result<()> {
    let columns = rows::columns(export.what, &nodes);
    let mut table = Table::begin(export.format, &columns, to)?;
    rows::write(reader, export, &nodes, &columns, &mut table)?;
    table.finish()
}

#[cfg(test)]
mod tests;
