//! Writes the SVG file.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use super::SvgOptions;
use super::boxes::{BoxKind, Picture, SHADES, Shape, Span};
use super::text::{escape, json, percent, shorten, shown};

/// Any two kinds differ by at least 11 (CIE 1976), also for protanopes, deuteranopes and tritanopes (Machado 2009).
const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");

const ROW: u32 = 18;
/// Height of title, subtitle and details.
const HEAD: u32 = 88;
/// Height of the legend.
const LEGEND: u32 = 44;
const NOTE: u32 = 18;
/// Approximate width of a letter; the script measures it.
const LETTER: f64 = 7.3;
/// Narrower boxes, as a share of the width, are drawn only by the script.
const LEAST: f64 = 0.001;
/// How full a row must be, as a share of the width, to be shown before zooming; as in the script.
const ROW_LEAST: f64 = 0.004;
/// The graph's share of the page width; the rest is margin.
const INNER: f64 = 0.98;

/// The text around the picture.
pub(super) struct Words {
    /// After the subtitle.
    pub(super) facts: Vec<String>,
    /// Below the picture.
    pub(super) notes: Vec<String>,
    /// The change that the deepest colour of a difference means.
    pub(super) scale: Option<String>,
}

/// Buffers formatted text.
struct Out<W> {
    to: W,
    text: String,
}

impl<W: Write> Out<W> {
    fn flush_if_long(&mut self) -> io::Result<()> {
        if self.text.len() > 1 << 18 {
            self.to.write_all(self.text.as_bytes())?;
            self.text.clear();
        }
        Ok(())
    }
}

pub(super) fn write(picture: &Picture<'_>, options: &SvgOptions, words: &Words, to: impl Write) -> io::Result<()> {
    let mut out = Out { to, text: String::with_capacity(1 << 18) };
    let width = options.width.clamp(300, 10_000);
    let levels = levels(picture);
    let graph = levels * ROW;
    let height = HEAD + graph + LEGEND + words.notes.len() as u32 * NOTE;
    let title = escape(&options.title);
    let facts = words.facts.join(" · ");
    let subtitle = if options.subtitle.is_empty() { facts } else { format!("{} · {facts}", options.subtitle) };
    let _ = write!(
        out.text,
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"flame\" \
         width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n<g class=\"head\">\
         <text class=\"title\" x=\"1%\" y=\"30\">{title}</text><text class=\"subtitle\" x=\"1%\" y=\"52\">{}</text></g>\n\
         <svg class=\"frames\" x=\"1%\" y=\"{HEAD}\" width=\"98%\" height=\"{graph}\">\n",
        escape(&subtitle),
    );
    let letters = f64::from(width) * INNER / LETTER;
    for shape in &picture.boxes {
        draw(picture, shape, levels, options.icicle, letters, &mut out.text);
        out.flush_if_long()?;
    }
    let _ = writeln!(out.text, "</svg>\n<svg class=\"foot\" x=\"1%\" y=\"{}\" overflow=\"visible\">", HEAD + graph);
    match &words.scale {
        None => legend(picture, &mut out.text),
        Some(scale) => scale_legend(scale, &mut out.text),
    }
    for (at, note) in words.notes.iter().enumerate() {
        let y = LEGEND + at as u32 * NOTE;
        let _ = writeln!(out.text, "<text class=\"note\" y=\"{y}\">{}</text>", escape(note));
    }
    out.text.push_str("</svg>\n<metadata class=\"data\">");
    data(picture, levels, options, &subtitle, words.scale.is_some(), &mut out)?;
    let _ = write!(out.text, "</metadata>\n<script><![CDATA[\n{SCRIPT}]]></script>\n</svg>\n");
    out.to.write_all(out.text.as_bytes())?;
    out.to.flush()
}

/// Rows up to the last one with visible content. Stacks with few samples may be far deeper than all others: the script draws them
/// when zoomed.
fn levels(picture: &Picture<'_>) -> u32 {
    let mut filled = vec![0.0; picture.levels.max(1) as usize];
    for shape in &picture.boxes {
        filled[shape.level as usize] += placed(picture, shape).2;
    }
    filled.iter().rposition(|share| *share >= ROW_LEAST).map_or(1, |level| level as u32 + 1)
}

/// The position of a box, the total, and the box's share of it.
fn placed(picture: &Picture<'_>, shape: &Shape<'_>) -> (Span, f64, f64) {
    // If now is empty, show the baseline.
    let (span, total) = if picture.total > 0 || picture.total_was == 0 {
        (shape.now, picture.total)
    } else {
        (shape.was, picture.total_was)
    };
    let total = total.max(1) as f64;
    (span, total, if shape.level == 0 { 1.0 } else { span.total as f64 / total })
}

/// Draws a box if it is wide enough to be seen.
fn draw(picture: &Picture<'_>, shape: &Shape<'_>, levels: u32, icicle: bool, letters: f64, out: &mut String) {
    let (span, total, share) = placed(picture, shape);
    if share < LEAST || shape.level >= levels {
        return;
    }
    let (left, wide) = (span.left as f64 / total * 100.0, share * 100.0);
    let y = ROW * if icicle { shape.level } else { levels - 1 - shape.level };
    let _ = write!(
        out,
        "<g class=\"{} s{}\"><title>{} {}</title><rect x=\"{left:.3}%\" y=\"{y}\" width=\"{wide:.3}%\" height=\"17\"/>",
        shape.kind.letter(),
        shape.shade,
        escape(shape.name),
        percent(share),
    );
    // Half a letter on each side.
    let fit = share * letters - 1.0;
    if fit >= 3.0 {
        let text = escape(&shorten(&shown(shape.name), fit as usize));
        let _ = write!(out, "<text x=\"{left:.3}%\" y=\"{}\" dx=\"4\">{text}</text>", y + 13);
    }
    out.push_str("</g>\n");
}

/// Explains the colours that occur.
fn legend(picture: &Picture<'_>, out: &mut String) {
    let mut x = 0;
    for kind in BoxKind::PLACES {
        // The root always exists and has the colour of commands.
        if !picture.boxes.iter().any(|shape| shape.level > 0 && shape.kind == kind) {
            continue;
        }
        let _ = write!(
            out,
            "<g class=\"{} s2\"><rect x=\"{x}\" y=\"10\" width=\"14\" height=\"14\" rx=\"2\"/></g><text x=\"{}\" y=\"21\">{}</text>",
            kind.letter(),
            x + 20,
            kind.word()
        );
        x += 42 + 7 * kind.word().len();
    }
    out.push('\n');
}

/// From shrank most to grew most.
fn scale_legend(scale: &str, out: &mut String) {
    let _ = write!(out, "<text y=\"21\">shrank by {}</text>", escape(scale));
    let start = 7 * (scale.len() as u32 + 10);
    let shades = u32::from(SHADES);
    let steps = (0..shades).rev().map(|shade| (BoxKind::Shrank, shade));
    let steps = steps.chain([(BoxKind::Same, shades - 1)]).chain((0..shades).map(|shade| (BoxKind::Grew, shade)));
    for (at, (kind, shade)) in steps.enumerate() {
        let x = start + at as u32 * 20;
        let _ = write!(
            out,
            "<g class=\"{} s{shade}\"><rect x=\"{x}\" y=\"10\" width=\"19\" height=\"14\"/></g>",
            kind.letter()
        );
    }
    let end = start + (2 * shades + 1) * 20 + 8;
    let _ = writeln!(out, "<text x=\"{end}\" y=\"21\">grew by {}</text>", escape(scale));
}

/// The graph in columns, for the script.
fn data<W: Write>(
    picture: &Picture<'_>,
    levels: u32,
    options: &SvgOptions,
    subtitle: &str,
    diff: bool,
    out: &mut Out<W>,
) -> io::Result<()> {
    let _ = write!(
        out.text,
        "{{\"title\":{},\"subtitle\":{},\"unit\":{},\"icicle\":{},\"diff\":{diff},\"row\":{ROW},\"head\":{HEAD},\"levels\":{},\
         \n\"names\":[",
        json(&options.title),
        json(subtitle),
        json(&options.unit),
        options.icicle,
        levels,
    );
    let mut numbers: HashMap<&str, usize> = HashMap::new();
    let mut ids = Vec::with_capacity(picture.boxes.len());
    for shape in &picture.boxes {
        let next = numbers.len();
        let id = *numbers.entry(shape.name).or_insert(next);
        if id == next {
            out.text.push_str(if next > 0 { ",\n" } else { "" });
            out.text.push_str(&json(shape.name));
            out.flush_if_long()?;
        }
        ids.push(id as u64);
    }
    out.text.push_str("],\n\"kind\":\"");
    out.text.extend(picture.boxes.iter().map(|shape| shape.kind.letter()));
    out.text.push_str("\",\n\"shade\":\"");
    out.text.extend(picture.boxes.iter().map(|shape| char::from(b'0' + shape.shade)));
    out.text.push('"');
    column("name", ids.into_iter(), out)?;
    column("level", picture.boxes.iter().map(|shape| u64::from(shape.level)), out)?;
    side("now", picture.total, picture, |shape| shape.now, out)?;
    if diff {
        side("was", picture.total_was, picture, |shape| shape.was, out)?;
    }
    out.text.push('}');
    Ok(())
}

fn side<W: Write>(
    name: &str,
    all: u64,
    picture: &Picture<'_>,
    span: impl Fn(&Shape<'_>) -> Span,
    out: &mut Out<W>,
) -> io::Result<()> {
    let _ = write!(out.text, ",\n\"{name}\":{{\"all\":{all}");
    column("total", picture.boxes.iter().map(|shape| span(shape).total), out)?;
    column("own", picture.boxes.iter().map(|shape| span(shape).own), out)?;
    // Omitted width between a box and its left neighbour or its parent's edge; mostly 0.
    let mut edges = vec![0u64; picture.levels as usize + 1];
    let gaps = picture.boxes.iter().map(|shape| {
        let (level, span) = (shape.level as usize, span(shape));
        let gap = span.left.saturating_sub(edges[level]);
        edges[level] = span.left.saturating_add(span.total);
        edges[level + 1] = span.left;
        gap
    });
    column("gap", gaps, out)?;
    out.text.push('}');
    Ok(())
}

fn column<W: Write>(name: &str, values: impl Iterator<Item = u64>, out: &mut Out<W>) -> io::Result<()> {
    let _ = write!(out.text, ",\n\"{name}\":[");
    for (at, value) in values.enumerate() {
        let _ = if at == 0 { write!(out.text, "{value}") } else { write!(out.text, ",{value}") };
        out.flush_if_long()?;
    }
    out.text.push(']');
    Ok(())
}
