//! Parquet: every column optional, compressed with Snappy. Rows are gathered by column and written group by group.

use super::{Cell, Column, Kind};
use crate::ingest::fools;
use anyhow::{Context, bail};
use parquet::basic::{Compression, LogicalType, Repetition, TimeUnit, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::io::Write;
use std::sync::Arc;

/// Rows and bytes of a group, which is kept in memory.
const ROWS: usize = 65_536;
const BYTES: usize = 16 << 20;

pub struct Parquet<W: Write + Send> {
    file: SerializedFileWriter<W>,
    columns: Vec<Gathered>,
    rows: usize,
    bytes: usize,
}

/// What a column has in this group: 1 where there is a value, and the values.
struct Gathered {
    present: Vec<i16>,
    values: Values,
}

enum Values {
    Texts(Vec<ByteArray>),
    Counts(Vec<i64>),
    Numbers(Vec<f64>),
    /// In milliseconds.
    Times(Vec<i64>),
    Flags(Vec<bool>),
}

impl<W: Write + Send> Parquet<W> {
    pub fn begin(columns: &[Column], to: W) -> anyhow::Result<Parquet<W>> {
        let fields = columns.iter().map(|column| {
            let (physical, logical) = match column.kind {
                Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
                Kind::Count => (Physical::INT64, None),
                Kind::Number => (Physical::DOUBLE, None),
                Kind::Time => (Physical::INT64, Some(LogicalType::timestamp(true, TimeUnit::MILLIS))),
                Kind::Flag => (Physical::BOOLEAN, None),
            };
            let field = Type::primitive_type_builder(&column.name, physical).with_logical_type(logical);
            Ok(Arc::new(field.with_repetition(Repetition::OPTIONAL).build()?))
        });
        let fields = fields.collect::<Result<Vec<_>, parquet::errors::ParquetError>>()?;
        let schema = Type::group_type_builder("coroner").with_fields(fields).build()?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_created_by(concat!("coroner ", env!("CARGO_PKG_VERSION")).to_owned());
        let gathered = columns.iter().map(|column| Gathered {
            present: Vec::new(),
            values: match column.kind {
                Kind::Text => Values::Texts(Vec::new()),
                Kind::Count => Values::Counts(Vec::new()),
                Kind::Number => Values::Numbers(Vec::new()),
                Kind::Time => Values::Times(Vec::new()),
                Kind::Flag => Values::Flags(Vec::new()),
            },
        });
        Ok(Parquet {
            columns: gathered.collect(),
            file: SerializedFileWriter::new(to, Arc::new(schema), Arc::new(properties.build()))?,
            rows: 0,
            bytes: 0,
        })
    }

    pub fn row(&mut self, cells: &[Cell<'_>]) -> anyhow::Result<()> {
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.present.push(i16::from(*cell != Cell::Missing));
            self.bytes += 10;
            match (&mut column.values, cell) {
                (_, Cell::Missing) => {}
                (Values::Texts(texts), Cell::Text(text)) => {
                    let text: String = text.chars().map(|c| if fools(c) { '\u{fffd}' } else { c }).collect();
                    // A value has a header beside its bytes.
                    self.bytes += text.len() + 40;
                    texts.push(ByteArray::from(text.into_bytes()));
                }
                (Values::Counts(counts), Cell::Count(count)) => counts.push(*count),
                (Values::Numbers(numbers), Cell::Number(number)) => numbers.push(*number),
                (Values::Times(times), Cell::Time(seconds)) => times.push(seconds.saturating_mul(1000)),
                (Values::Flags(flags), Cell::Flag(flag)) => flags.push(*flag),
                (_, cell) => bail!("a column got {cell:?}, which is not of its kind"),
            }
        }
        self.rows += 1;
        if self.rows >= ROWS || self.bytes >= BYTES {
            self.write_group()?;
        }
        Ok(())
    }

    fn write_group(&mut self) -> anyhow::Result<()> {
        let mut group = self.file.next_row_group()?;
        for Gathered { present, values } in &mut self.columns {
            let mut column = group.next_column()?.context("fewer columns than the schema has")?;
            match values {
                Values::Texts(texts) => column.typed::<ByteArrayType>().write_batch(texts, Some(present), None),
                Values::Counts(counts) => column.typed::<Int64Type>().write_batch(counts, Some(present), None),
                Values::Numbers(numbers) => column.typed::<DoubleType>().write_batch(numbers, Some(present), None),
                Values::Times(times) => column.typed::<Int64Type>().write_batch(times, Some(present), None),
                Values::Flags(flags) => column.typed::<BoolType>().write_batch(flags, Some(present), None),
            }?;
            column.close()?;
            present.clear();
            match values {
                Values::Texts(texts) => texts.clear(),
                Values::Counts(counts) | Values::Times(counts) => counts.clear(),
                Values::Numbers(numbers) => numbers.clear(),
                Values::Flags(flags) => flags.clear(),
            }
        }
        group.close()?;
        (self.rows, self.bytes) = (0, 0);
        Ok(())
    }

    pub fn finish(mut self) -> anyhow::Result<()> {
        if self.rows > 0 {
            self.write_group()?;
        }
        self.file.close()?;
        Ok(())
    }
}
