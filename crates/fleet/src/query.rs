//! Expressions that pick nodes: `zone=us-east-1a and zombies>1000`, `problem=nic-reset or silent`, `not (cluster=a and up<2d)`.
//!
//! An answer is yes, no or unknown: a node whose zone is not known is neither in a zone nor outside it.

use crate::answers::NodeSummary;
use crate::ingest::printable;
use crate::store::read::{NUMBERS, number_names};
use coroner_report::Code;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

const MOST_TOKENS: usize = 200;
const DEEPEST: usize = 20;

#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    /// A field and what it is compared with.
    Is(String, Compare, String),
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    More,
    AtMost,
    AtLeast,
}

/// What is wrong with an expression, and what may be written instead.
#[derive(Debug, PartialEq, Eq)]
pub struct BadExpr(pub String);

impl std::error::Error for BadExpr {}

impl fmt::Display for BadExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}. Expected FIELD=VALUE, FIELD!=VALUE, or FIELD<N, <=, >, >= joined by and, or, not and parentheses, such as \
             'zone=us-east-1a and zombies>1000'. Fields: attributes (coroner fleet show NODE lists them), label:NAME, host, node, \
             problem (a code or key), silent, up (5d, 12h), and {}",
            self.0,
            number_names().collect::<Vec<_>>().join(", ")
        )
    }
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Word(String),
    Compare(Compare),
    Open,
    Close,
}

fn tokens(text: &str) -> Result<Vec<Token>, BadExpr> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(&c) = chars.peek() {
        if tokens.len() >= MOST_TOKENS {
            return Err(BadExpr("the expression is too long".to_owned()));
        }
        match c {
            c if c.is_whitespace() => {
                chars.next();
            }
            '(' | ')' => {
                chars.next();
                tokens.push(if c == '(' { Token::Open } else { Token::Close });
            }
            '=' | '!' | '<' | '>' => {
                chars.next();
                let or_equal = chars.next_if_eq(&'=').is_some();
                tokens.push(Token::Compare(match (c, or_equal) {
                    ('=', _) => Compare::Equal,
                    ('!', true) => Compare::NotEqual,
                    ('<', false) => Compare::Less,
                    ('>', false) => Compare::More,
                    ('<', true) => Compare::AtMost,
                    ('>', true) => Compare::AtLeast,
                    _ => return Err(BadExpr("a single '!'".to_owned())),
                }));
            }
            '"' | '\'' => {
                chars.next();
                let mut word = String::new();
                loop {
                    match chars.next() {
                        Some(end) if end == c => break,
                        Some(other) => word.push(other),
                        None => return Err(BadExpr("a quote that does not end".to_owned())),
                    }
                }
                tokens.push(Token::Word(word));
            }
            _ => {
                let mut word = String::new();
                while let Some(c) = chars.next_if(|c| !c.is_whitespace() && !"()=!<>\"'".contains(*c)) {
                    word.push(c);
                }
                tokens.push(Token::Word(word));
            }
        }
    }
    Ok(tokens)
}

pub fn parse(text: &str) -> Result<Expr, BadExpr> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
    let expr = parser.either()?;
    match parser.tokens.get(parser.at) {
        None => Ok(expr),
        Some(token) => Err(BadExpr(format!("unexpected {}", shown(token)))),
    }
}

fn shown(token: &Token) -> String {
    match token {
        Token::Word(word) => format!("'{}'", printable(word)),
        Token::Compare(_) => "comparison".to_owned(),
        Token::Open => "'('".to_owned(),
        Token::Close => "')'".to_owned(),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn next(&mut self) -> Option<Token> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned()
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_it = matches!(self.tokens.get(self.at), Some(Token::Word(w)) if w.eq_ignore_ascii_case(word));
        self.at += usize::from(is_it);
        is_it
    }

    fn either(&mut self) -> Result<Expr, BadExpr> {
        let mut left = self.both()?;
        while self.takes("or") {
            left = Expr::Or(Box::new(left), Box::new(self.both()?));
        }
        Ok(left)
    }

    fn both(&mut self) -> Result<Expr, BadExpr> {
        let mut left = self.one()?;
        while self.takes("and") {
            left = Expr::And(Box::new(left), Box::new(self.one()?));
        }
        Ok(left)
    }

    fn one(&mut self) -> Result<Expr, BadExpr> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(BadExpr("too many parentheses".to_owned()));
        }
        let expr = self.one_inside();
        self.depth -= 1;
        expr
    }

    fn one_inside(&mut self) -> Result<Expr, BadExpr> {
        if self.takes("not") {
            return Ok(Expr::Not(Box::new(self.one()?)));
        }
        match self.next() {
            Some(Token::Open) => {
                let inner = self.either()?;
                match self.next() {
                    Some(Token::Close) => Ok(inner),
                    _ => Err(BadExpr("a parenthesis that does not end".to_owned())),
                }
            }
            Some(Token::Word(field)) => match self.tokens.get(self.at).cloned() {
                Some(Token::Compare(compare)) => {
                    self.at += 1;
                    match self.next() {
                        Some(Token::Word(value)) => checked(field, compare, value),
                        _ => Err(BadExpr(format!("nothing to compare {field} with"))),
                    }
                }
                _ if field.eq_ignore_ascii_case("silent") => Ok(Expr::Silent),
                _ => Err(BadExpr(format!(
                    "'{0}' is compared with nothing: write {0}=VALUE (also !=, <, >, <=, >=; and, or, not, parentheses)",
                    printable(&field)
                ))),
            },
            Some(token) => Err(BadExpr(format!("unexpected {}", shown(&token)))),
            None => Err(BadExpr("the expression ends too early".to_owned())),
        }
    }
}

/// A code or key that no version of coroner has would match nothing, which reads as if all were well.
pub fn known_code(code_or_key: &str) -> Result<(), String> {
    let code = code_or_key.split(':').next().unwrap_or_default();
    if Code::parse(code).is_some() {
        return Ok(());
    }
    let shared = |known: &&str| known.bytes().zip(code.bytes()).take_while(|(a, b)| a == b).count();
    let near = Code::ALL.iter().map(Code::as_str).max_by_key(shared).filter(|near| shared(near) >= 3);
    let near = near.map_or_else(String::new, |near| format!("; did you mean {near}?"));
    Err(format!("no problem is called '{}'{near} (coroner fleet status lists those that nodes have)", printable(code)))
}

/// A number must be compared with a number, and `up` with a time.
fn checked(field: String, compare: Compare, value: String) -> Result<Expr, BadExpr> {
    if field.eq_ignore_ascii_case("silent") {
        return Err(BadExpr("silent is compared with nothing: write silent, or not silent".to_owned()));
    }
    let is_number = number_names().any(|name| name == field);
    if (is_number || field == "up") && number(&field, &value).is_none() {
        let expected = if field == "up" { "a time, such as 5d or 12h" } else { "a number" };
        return Err(BadExpr(format!("{field} is compared with {expected}, not with '{}'", printable(&value))));
    }
    let is_share = NUMBERS.iter().any(|(name, _, unit)| *name == field && *unit < 1.0);
    if is_share && number(&field, &value).is_some_and(|share| share > 1.0) {
        return Err(BadExpr(format!("{field} is a share of 1, so never more than {value}: write {value}%")));
    }
    Ok(Expr::Is(field, compare, value))
}

/// The number that a text stands for; times are in seconds.
fn number(field: &str, text: &str) -> Option<f64> {
    let unit = |unit: &str, seconds: f64| text.strip_suffix(unit)?.parse::<f64>().ok().map(|n| n * seconds);
    let plain = text.parse::<f64>().ok();
    let of_time =
        || unit("d", 86_400.0).or_else(|| unit("h", 3600.0)).or_else(|| unit("m", 60.0)).or_else(|| unit("s", 1.0));
    let percent = || unit("%", 0.01);
    let number = if field == "up" { of_time() } else { plain.or_else(percent) };
    number.filter(|number| number.is_finite())
}

impl Expr {
    pub fn fields(&self) -> Vec<&str> {
        self.comparisons().into_iter().map(|(field, _)| field).collect()
    }

    fn comparisons(&self) -> Vec<(&str, Compare)> {
        match self {
            Expr::And(a, b) | Expr::Or(a, b) => [a.comparisons(), b.comparisons()].concat(),
            Expr::Not(inner) => inner.comparisons(),
            Expr::Is(field, compare, _) => vec![(field, *compare)],
            Expr::Silent => Vec::new(),
        }
    }

    /// An error if no node has a field, or none has one with more and less: nobody would match, which reads as if all were well.
    pub fn check<'a>(&self, nodes: impl Iterator<Item = &'a NodeSummary>) -> Result<(), BadExpr> {
        // And whether a value has an order.
        let mut names: BTreeMap<String, bool> = BTreeMap::new();
        let mut had: BTreeSet<&str> = BTreeSet::new();
        for node in nodes {
            for (name, value) in &node.attributes {
                match names.get_mut(name) {
                    Some(has) => *has |= has_order(value),
                    None => drop(names.insert(name.clone(), has_order(value))),
                }
            }
            had.extend(node.problems.iter().flat_map(|problem| [problem.code.as_str(), problem.key.as_str()]));
        }
        if names.is_empty() {
            return Ok(());
        }
        names.extend(["node", "host", "problem"].map(|name| (name.to_owned(), false)));
        names.extend(number_names().chain(["up"]).map(|name| (name.to_owned(), true)));
        for (field, value) in self.values() {
            if field == "problem" && !had.contains(value) {
                known_code(value).map_err(BadExpr)?;
            }
        }
        for (field, compare) in self.comparisons() {
            let Some(has_order) = names.get(field).or_else(|| names.get(&format!("label:{field}"))) else {
                let start: String = field.chars().take(3).collect();
                let near = names.keys().filter(|name| name.trim_start_matches("label:").starts_with(&start));
                let near: Vec<&str> = near.map(String::as_str).take(5).collect();
                let near = match near.is_empty() {
                    true => format!(
                        "; there is {}",
                        names.keys().take(12).map(String::as_str).collect::<Vec<_>>().join(", ")
                    ),
                    false => format!("; did you mean {}?", near.join(", ")),
                };
                return Err(BadExpr(printable(&format!("no node has a field '{field}'{near}"))));
            };
            if !has_order && !matches!(compare, Compare::Equal | Compare::NotEqual) {
                let why = format!("'{field}' is text, which is neither more nor less: write {field}=… or {field}!=…");
                return Err(BadExpr(printable(&why)));
            }
        }
        Ok(())
    }

    fn values(&self) -> Vec<(&str, &str)> {
        match self {
            Expr::And(a, b) | Expr::Or(a, b) => [a.values(), b.values()].concat(),
            Expr::Not(inner) => inner.values(),
            Expr::Is(field, _, value) => vec![(field, value)],
            Expr::Silent => Vec::new(),
        }
    }

    /// `None`: unknown.
    pub fn matches(&self, node: &NodeSummary, now_s: i64) -> Option<bool> {
        match self {
            Expr::And(a, b) => match (a.matches(node, now_s), b.matches(node, now_s)) {
                (Some(false), _) | (_, Some(false)) => Some(false),
                (Some(true), Some(true)) => Some(true),
                _ => None,
            },
            Expr::Or(a, b) => match (a.matches(node, now_s), b.matches(node, now_s)) {
                (Some(true), _) | (_, Some(true)) => Some(true),
                (Some(false), Some(false)) => Some(false),
                _ => None,
            },
            Expr::Not(inner) => inner.matches(node, now_s).map(|matches| !matches),
            Expr::Silent => Some(node.is_silent),
            Expr::Is(field, compare, value) => is(node, field, *compare, value, now_s),
        }
    }
}

fn is(node: &NodeSummary, field: &str, compare: Compare, value: &str, now_s: i64) -> Option<bool> {
    if field == "problem" {
        node.diagnosed_until?;
        let has = node.problems.iter().any(|problem| problem.code == value || problem.key == value);
        return Some(has == (compare == Compare::Equal));
    }
    let up = || node.booted.map(|booted| (now_s - (booted.0 / 1_000_000_000) as i64) as f64);
    let known = if field == "up" { up() } else { node.numbers.get(field).copied() };
    if field == "up" || number_names().any(|name| name == field) {
        return Some(compared(known?.partial_cmp(&number(field, value)?)?, compare));
    }
    let text = match field {
        "node" => Some(node.node.as_str()),
        "host" => node.host.as_deref(),
        _ => node.attributes.get(field).or_else(|| node.attributes.get(&format!("label:{field}"))).map(String::as_str),
    }?;
    match compare {
        Compare::Equal => Some(text == value),
        Compare::NotEqual => Some(text != value),
        // `none` is neither more nor less than 5.
        _ if !has_order(text) => None,
        _ => Some(compared(in_parts(text, value), compare)),
    }
}

/// Whether it is more or less than another: a count, a version.
fn has_order(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// As versions are ordered: digits by their value, so that 6.18 comes after 6.8.
fn in_parts(a: &str, b: &str) -> Ordering {
    let parts = |text: &str| -> Vec<(bool, String)> {
        let mut parts: Vec<(bool, String)> = Vec::new();
        for c in text.chars() {
            match parts.last_mut().filter(|(is_number, _)| *is_number == c.is_ascii_digit()) {
                Some((_, part)) => part.push(c),
                None => parts.push((c.is_ascii_digit(), c.to_string())),
            }
        }
        parts
    };
    let (a, b) = (parts(a), parts(b));
    let order = a.iter().zip(&b).map(|((a_is_number, a), (b_is_number, b))| match (a_is_number, b_is_number) {
        (true, true) => {
            let (a, b) = (a.trim_start_matches('0'), b.trim_start_matches('0'));
            a.len().cmp(&b.len()).then_with(|| a.cmp(b))
        }
        _ => a.cmp(b),
    });
    order.fold(Ordering::Equal, Ordering::then).then(a.len().cmp(&b.len()))
}

fn compared(order: Ordering, compare: Compare) -> bool {
    match compare {
        Compare::Equal => order.is_eq(),
        Compare::NotEqual => order.is_ne(),
        Compare::Less => order.is_lt(),
        Compare::More => order.is_gt(),
        Compare::AtMost => order.is_le(),
        Compare::AtLeast => order.is_ge(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers::Episode;
    use coroner_report::Wall;

    fn node() -> NodeSummary {
        let attributes = [("zone", "a"), ("label:pool", "gpu"), ("cores", "96")];
        NodeSummary {
            node: "n1".to_owned(),
            attributes: attributes.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
            numbers: [("zombies".to_owned(), 1500.0), ("busy".to_owned(), 0.4)].into(),
            booted: Some(Wall(1_000_000_000_000_000_000)),
            diagnosed_until: Some(Wall(1)),
            problems: vec![Episode {
                code: "nic-reset".to_owned(),
                key: "nic-reset:ena".to_owned(),
                ..Episode::default()
            }],
            ..NodeSummary::default()
        }
    }

    fn says(text: &str) -> Option<bool> {
        // Ten days after its boot.
        parse(text).unwrap().matches(&node(), 1_000_864_000)
    }

    #[test]
    fn a_field_that_no_node_has_is_an_error_and_so_is_half_a_unit() {
        let node = node();
        let check = |text: &str| parse(text).and_then(|expr| expr.check([&node].into_iter())).map_err(|bad| bad.0);
        assert_eq!(check("zone=b and up>5d and busy>50% and problem=nic-reset"), Ok(()));
        assert!(check("zombie>1 or zone=a").unwrap_err().ends_with("'zombie'; did you mean zombies?"));
        assert!(check("nosuch=1").unwrap_err().contains("'nosuch'; there is "));
        assert!(check("problem=nic-rest").unwrap_err().contains("did you mean nic-reset?"));
        assert!(check("problem=nic-reset:eth0 or not silent").is_ok() && parse("silent=yes").is_err());
        assert!(check("zone>5").unwrap_err().contains("zone=…") && check("problem<x").is_err());
        assert_eq!(check("cores>8 and pool!=x"), Ok(()));
        assert!(check("busy>50").unwrap_err().contains("50%"));
        assert!(check("up>5").unwrap_err().contains("a time"));
        assert!(parse("x=1").unwrap().check(std::iter::empty()).is_ok(), "without nodes nothing is known");
    }

    #[test]
    fn nodes_are_picked_by_attributes_numbers_and_problems() {
        for yes in [
            "zone=a",
            "zone = a and zombies > 1000",
            "zone=b or zombies>=1500",
            "not zone=b",
            "pool=gpu",
            "label:pool=gpu",
            "cores>8",
            "busy<50%",
            "up>5d",
            "up>=240h",
            "problem=nic-reset",
            "problem='nic-reset:ena'",
            "problem!=oom-kill",
            "not silent",
            "(zone=b or zone=a) and not (up<1d)",
            "host=x or zone=a",
        ] {
            assert_eq!(says(yes), Some(true), "{yes}");
        }
        for no in ["zone=b", "zombies<1000", "silent", "zone=a and zombies>2000", "problem!=nic-reset", "up<10d"] {
            assert_eq!(says(no), Some(false), "{no}");
        }
        for unknown in ["image_id=x", "image_id!=x", "drops>0", "not image_id=x", "image_id=x and zone=a"] {
            assert_eq!(says(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn versions_are_ordered_by_their_parts() {
        for (less, more) in [
            ("6.8", "6.18.44-fc"),
            ("5.9", "5.10"),
            ("5.10", "5.10.1"),
            ("007", "8"),
            ("96", "192"),
            ("1.2-a", "1.2-b"),
        ] {
            assert_eq!(
                (in_parts(less, more), in_parts(more, less)),
                (Ordering::Less, Ordering::Greater),
                "{less} {more}"
            );
        }
        assert_eq!(in_parts("6.08", "6.8"), Ordering::Equal);
    }

    #[test]
    fn bad_expressions_are_explained() {
        for (bad, why) in [
            ("", "ends too early"),
            ("zone", "'zone' is compared with nothing"),
            ("zone=", "nothing to compare zone with"),
            ("zombies>many", "a number"),
            ("up>tomorrow", "a time"),
            ("(zone=a", "does not end"),
            ("zone=a zone=b", "unexpected 'zone'"),
            ("zone=a and", "ends too early"),
            ("a='x", "quote"),
            ("a ! b", "single '!'"),
            (")", "unexpected ')'"),
        ] {
            let error = parse(bad).unwrap_err();
            assert!(error.0.contains(why), "{bad}: {}", error.0);
        }
        assert!(parse(&"(".repeat(10_000)).is_err());
        assert!(parse(&"not ".repeat(10_000)).is_err());
    }
}
