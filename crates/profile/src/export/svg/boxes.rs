//! Which frames are drawn, and where.

use super::text::{percent, thousands};

/// Determines the colour of a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BoxKind {
    User,
    Kernel,
    Jit,
    Inlined,
    /// A command, or the root.
    Command,
    Unknown,
    Grew,
    Shrank,
    Same,
}

impl BoxKind {
    /// In legend order.
    pub(super) const PLACES: [BoxKind; 6] =
        [BoxKind::User, BoxKind::Kernel, BoxKind::Jit, BoxKind::Inlined, BoxKind::Command, BoxKind::Unknown];

    /// The class in the style sheet.
    pub(super) fn letter(self) -> char {
        self.legend().0
    }

    pub(super) fn word(self) -> &'static str {
        self.legend().1
    }

    fn legend(self) -> (char, &'static str) {
        match self {
            BoxKind::User => ('u', "program"),
            BoxKind::Kernel => ('k', "kernel"),
            BoxKind::Jit => ('j', "JIT"),
            BoxKind::Inlined => ('i', "inlined"),
            BoxKind::Command => ('c', "command"),
            BoxKind::Unknown => ('x', "no symbol"),
            BoxKind::Grew => ('p', "grew"),
            BoxKind::Shrank => ('m', "shrank"),
            BoxKind::Same => ('e', "same"),
        }
    }
}

/// Shades per kind, so that neighbours can be told apart.
pub(super) const SHADES: u8 = 5;

/// The same name always has the same shade.
pub(super) fn shade(name: &str) -> u8 {
    // FNV-1a: the picture must not change from run to run.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    ((hash >> 32) % u64::from(SHADES)) as u8
}

/// The colour of a change in share. Square roots, so that a tenth of the largest change is still visible.
pub(super) fn change(change: f64, largest: f64) -> (BoxKind, u8) {
    // Less than the two digits shown is no change.
    if change.abs() < 0.000_05 || largest <= 0.0 {
        return (BoxKind::Same, SHADES - 1);
    }
    let step = ((change.abs() / largest).sqrt() * f64::from(SHADES)).ceil().clamp(1.0, f64::from(SHADES));
    (if change > 0.0 { BoxKind::Grew } else { BoxKind::Shrank }, step as u8 - 1)
}

/// A label without its `_[k]` mark: the colour shows it.
pub(super) fn without_mark(label: &str) -> &str {
    ["_[k]", "_[j]", "_[i]"].iter().find_map(|mark| label.strip_suffix(mark)).unwrap_or(label)
}

/// A frame of a tree with its weights now and in the baseline: total, and own.
pub(super) struct BoxNode<'t> {
    pub(super) name: &'t str,
    pub(super) kind: BoxKind,
    pub(super) shade: u8,
    pub(super) now: (u64, u64),
    pub(super) was: (u64, u64),
    pub(super) children: &'t [u32],
}

/// Position and size of a box on one side, in units of weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) left: u64,
    pub(super) total: u64,
    pub(super) own: u64,
}

pub(super) struct Shape<'t> {
    pub(super) name: &'t str,
    pub(super) kind: BoxKind,
    pub(super) shade: u8,
    /// The root is 0.
    pub(super) level: u32,
    pub(super) now: Span,
    pub(super) was: Span,
}

/// The boxes that are kept: parents before children, left to right.
pub(super) struct Picture<'t> {
    pub(super) boxes: Vec<Shape<'t>>,
    pub(super) total: u64,
    /// Total of the baseline; 0 without one.
    pub(super) total_was: u64,
    pub(super) levels: u32,
    nodes: usize,
    /// The shares of the widest omitted box and of all omitted boxes.
    widest_out: f64,
    share_out: f64,
}

impl<'t> Picture<'t> {
    /// Keeps the `most` widest of `nodes` nodes. No child is wider than its parent, so none is kept without its parent.
    pub(super) fn new(
        nodes: usize,
        node: impl Fn(u32) -> BoxNode<'t>,
        (total, total_was): (u64, u64),
        most: usize,
    ) -> Picture<'t> {
        let share = |node: &BoxNode<'_>| {
            let of = |weight: u64, total: u64| if total == 0 { 0.0 } else { weight as f64 / total as f64 };
            of(node.now.0, total).max(of(node.was.0, total_was))
        };
        // The root is always kept.
        let most = most.max(1);
        let mut kept = vec![true; nodes];
        let mut widest_out = 0.0;
        if nodes > most {
            let mut order: Vec<(f64, u32)> = (0..nodes as u32).map(|at| (share(&node(at)), at)).collect();
            order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            widest_out = order[most].0;
            order[most..].iter().for_each(|(_, at)| kept[*at as usize] = false);
        }
        let mut picture = Picture { boxes: Vec::new(), total, total_was, levels: 1, nodes, widest_out, share_out: 0.0 };
        let mut open = if nodes == 0 { Vec::new() } else { vec![(0u32, 0u64, 0u64, 0u32)] };
        while let Some((at, left, left_was, level)) = open.pop() {
            let this = node(at);
            if !kept[at as usize] {
                picture.share_out += share(&this);
                continue;
            }
            let first = open.len();
            let (mut next, mut next_was) = (left, left_was);
            for child in this.children {
                open.push((*child, next, next_was, level + 1));
                let child = node(*child);
                next = next.saturating_add(child.now.0);
                next_was = next_was.saturating_add(child.was.0);
            }
            // The leftmost child comes off first.
            open[first..].reverse();
            picture.levels = picture.levels.max(level + 1);
            picture.boxes.push(Shape {
                name: this.name,
                kind: this.kind,
                shade: this.shade,
                level,
                now: Span { left, total: this.now.0, own: this.now.1 },
                was: Span { left: left_was, total: this.was.0, own: this.was.1 },
            });
        }
        picture
    }

    pub(super) fn left_out_note(&self) -> String {
        let (all, kept) = (self.nodes as u64, self.boxes.len() as u64);
        if all == kept {
            return format!("All {} boxes are in this file.", thousands(all));
        }
        format!(
            "The widest {} of {} boxes. Omitted: boxes of at most {}, {} together; search does not find them.",
            thousands(kept),
            thousands(all),
            percent(self.widest_out),
            percent(self.share_out),
        )
    }
}
