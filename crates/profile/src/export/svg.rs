//! A flame graph as one SVG file that needs nothing else: click to zoom, search with a regular expression, in any browser.

use std::fmt::Write as _;
use std::io::{self, Write};

use crate::model::Place;
use crate::views::diff::DiffTree;
use crate::views::flame::FlameTree;

#[derive(Clone, Debug)]
pub struct Options {
    pub title: String,
    /// Pixels.
    pub width: u32,
    /// Root at the top.
    pub icicle: bool,
    /// What the weights are, for the tooltips: "ns", "samples".
    pub unit: String,
}

impl Default for Options {
    fn default() -> Options {
        Options { title: "Flame graph".to_owned(), width: 1200, icicle: false, unit: "samples".to_owned() }
    }
}

const ROW: u32 = 17;
const TOP: u32 = 58;
const BOTTOM: u32 = 30;
const SIDE: u32 = 10;
/// Narrower boxes cannot be seen and are left out; zooming does not bring them back.
const MIN_WIDTH: f64 = 0.1;
/// About what a letter of the font is wide.
const LETTER: f64 = 6.6;

/// One box.
struct Rect<'a> {
    /// Shares of the whole width.
    left: f64,
    width: f64,
    level: u32,
    name: &'a str,
    tip: String,
    colour: (u8, u8, u8),
}

/// Draws a flame graph.
pub fn write(tree: &FlameTree, options: &Options, to: impl Write) -> io::Result<()> {
    let total = tree.total().max(1) as f64;
    let least = MIN_WIDTH / f64::from(options.width - 2 * SIDE);
    let mut rects = Vec::new();
    let mut open = vec![(0u32, 0.0f64, 0u32)];
    while let Some((at, left, level)) = open.pop() {
        let node = &tree.nodes[at as usize];
        let width = node.total as f64 / total;
        if width < least {
            continue;
        }
        let name = tree.name(at);
        let tip = format!("{name} ({} {}, {:.2} %)", thousands(node.total), options.unit, width * 100.0);
        rects.push(Rect { left, width, level, name, tip, colour: colour(name, node.place) });
        let mut left = left;
        for child in &node.children {
            open.push((*child, left, level + 1));
            left += tree.nodes[*child as usize].total as f64 / total;
        }
    }
    draw(rects, options, to)
}

/// Draws a difference: widths are what is now, red grew, blue shrank, the deeper the more.
pub fn write_diff(tree: &DiffTree, options: &Options, to: impl Write) -> io::Result<()> {
    let least = MIN_WIDTH / f64::from(options.width - 2 * SIDE);
    let largest = tree.nodes.iter().map(|node| node.change().abs()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    // Without anything now, show what was.
    let after = tree.total_after > 0;
    let width_of = |at: u32| if after { tree.nodes[at as usize].after } else { tree.nodes[at as usize].before };
    let mut rects = Vec::new();
    let mut open = if tree.nodes.is_empty() { Vec::new() } else { vec![(0u32, 0.0f64, 0u32)] };
    while let Some((at, left, level)) = open.pop() {
        let node = &tree.nodes[at as usize];
        let width = width_of(at);
        if width < least {
            continue;
        }
        let name = tree.labels.get(node.label);
        let tip = format!(
            "{name} ({:.2} % → {:.2} %, {:+.2})",
            node.before * 100.0,
            node.after * 100.0,
            node.change() * 100.0
        );
        let fade = (255.0 - 175.0 * (node.change().abs() / largest)) as u8;
        let colour = if node.change() >= 0.0 { (255, fade, fade) } else { (fade, fade, 255) };
        rects.push(Rect { left, width, level, name, tip, colour });
        let mut left = left;
        for child in &node.children {
            open.push((*child, left, level + 1));
            left += width_of(*child);
        }
    }
    draw(rects, options, to)
}

fn draw(rects: Vec<Rect<'_>>, options: &Options, mut to: impl Write) -> io::Result<()> {
    let levels = rects.iter().map(|rect| rect.level).max().unwrap_or(0) + 1;
    let width = options.width.max(200);
    let height = TOP + levels * ROW + BOTTOM;
    let inner = f64::from(width - 2 * SIDE);
    let mut out = String::with_capacity(rects.len() * 160 + 8192);
    let title = escape(&options.title);
    let _ = write!(
        out,
        "<?xml version=\"1.0\" standalone=\"no\"?>\n<svg xmlns=\"http://www.w3.org/2000/svg\" version=\"1.1\" width=\"{width}\" \
         height=\"{height}\" viewBox=\"0 0 {width} {height}\" data-side=\"{SIDE}\" data-inner=\"{inner}\">\n<title>{title}</title>\n\
         <style>{STYLE}</style>\n<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"title\" x=\"{}\" y=\"26\">{title}</text>\n<text id=\"reset\" class=\"button hidden\" x=\"{SIDE}\" y=\"26\">Reset zoom</text>\n\
         <text id=\"search\" class=\"button\" x=\"{}\" y=\"26\">Search (Ctrl-F)</text>\n<text id=\"matched\" class=\"note\" x=\"{}\" y=\"46\"></text>\n\
         <text id=\"details\" class=\"note\" x=\"{SIDE}\" y=\"{}\"> </text>\n<g id=\"frames\">\n",
        width / 2,
        width - SIDE,
        width - SIDE,
        height - 10,
    );
    for rect in &rects {
        let y = if options.icicle { TOP + rect.level * ROW } else { TOP + (levels - 1 - rect.level) * ROW };
        let (x, w) = (f64::from(SIDE) + rect.left * inner, rect.width * inner);
        let letters = (w / LETTER) as usize;
        let text = if letters >= 3 { shorten(rect.name, letters) } else { String::new() };
        let (red, green, blue) = rect.colour;
        let _ = writeln!(
            out,
            "<g data-l=\"{:.8}\" data-w=\"{:.8}\" data-d=\"{}\" data-n=\"{}\"><title>{}</title><rect x=\"{x:.2}\" y=\"{y}\" \
             width=\"{w:.2}\" height=\"{}\" fill=\"rgb({red},{green},{blue})\" rx=\"2\"/><text x=\"{:.2}\" y=\"{}\">{}</text></g>",
            rect.left,
            rect.width,
            rect.level,
            escape(rect.name),
            escape(&rect.tip),
            ROW - 1,
            x + 3.0,
            y + 12,
            escape(&text),
        );
        if out.len() > 1 << 20 {
            to.write_all(out.as_bytes())?;
            out.clear();
        }
    }
    let _ = write!(out, "</g>\n<script><![CDATA[\n{SCRIPT}\n]]></script>\n</svg>\n");
    to.write_all(out.as_bytes())?;
    to.flush()
}

/// Warm for programs, orange for the kernel, green for generated code, grey for what has no name; the same name has always the same
/// shade.
fn colour(name: &str, place: Option<Place>) -> (u8, u8, u8) {
    // FNV-1a: the picture must not change from run to run.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let (a, b) = ((hash >> 16 & 0x3f) as u8, (hash >> 32 & 0x1f) as u8);
    match place {
        None => (200 + b, 200 + b, 205 + b),
        Some(_) if name.starts_with('[') => (190 + b, 185 + b, 180 + b),
        Some(Place::User) => (215 + b, 95 + a, 60 + b),
        Some(Place::Jit) => (90 + a, 180 + b, 90 + b),
        Some(Place::Kernel) => (230 + b / 2, 150 + a, 40 + b),
    }
}

fn shorten(name: &str, letters: usize) -> String {
    if name.chars().count() <= letters {
        return name.to_owned();
    }
    name.chars().take(letters.saturating_sub(2)).chain("..".chars()).collect()
}

fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// For text and attributes. Control characters are not allowed in XML at all.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if (c as u32) < 0x20 || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

const STYLE: &str = include_str!("flame.css");
const SCRIPT: &str = include_str!("flame.js");
