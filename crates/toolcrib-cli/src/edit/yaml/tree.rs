//! `Node`: a YAML document as a tree in which everything knows where it was written.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};
use serde_json::Value as Json;

use super::super::entry::Mistake;

/// Aliases make small files large; no file of settings has this many values.
const MOST: usize = 100_000;
/// Nothing is nested deeper.
const DEEPEST: usize = 64;

/// A value and the bytes it was written in.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: Kind,
}

/// What a value is.
#[derive(Debug, Clone)]
pub(super) enum Kind {
    Scalar(Json),
    List { flow: bool, items: Vec<Node> },
    Mapping { flow: bool, members: Vec<(Key, Node)> },
}

/// A key of a mapping.
#[derive(Debug, Clone)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) start: usize,
    pub(super) end: usize,
    /// How far it is indented.
    pub(super) column: usize,
}

impl Key {
    pub(super) fn is(&self, name: &str) -> bool {
        self.name == name
    }
}

impl Node {
    /// The members, if it is a mapping.
    pub(super) fn mapping(&self) -> Option<&[(Key, Node)]> {
        match &self.kind {
            Kind::Mapping { members, .. } => Some(members),
            _ => None,
        }
    }

    /// The last byte that is surely its own: a block ends where the next thing begins, which may be far below.
    pub(super) fn last(&self) -> usize {
        match &self.kind {
            Kind::List { flow: false, items } => items.last().map_or(self.start, Self::last),
            Kind::Mapping { flow: false, members } => {
                members.last().map_or(self.start, |(key, value)| value.last().max(key.end))
            }
            _ => self.end,
        }
    }

    /// What it says.
    pub(super) fn to_json(&self) -> Json {
        match &self.kind {
            Kind::Scalar(value) => value.clone(),
            Kind::List { items, .. } => items.iter().map(Self::to_json).collect::<Vec<_>>().into(),
            Kind::Mapping { members, .. } => {
                Json::Object(members.iter().map(|(key, value)| (key.name.clone(), value.to_json())).collect())
            }
        }
    }
}

/// Reads the one document of a text; `None` if there is nothing in it.
pub(super) fn parse(text: &str) -> Result<Option<Node>, Mistake> {
    let bytes = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
    let reader =
        Reader { text, bytes, parser: Parser::new_from_str(text), anchors: HashMap::new(), count: 0 };
    reader.document()
}

struct Reader<'a> {
    text: &'a str,
    /// Where each character starts: the parser counts characters.
    bytes: Vec<usize>,
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    count: usize,
}

impl<'a> Reader<'a> {
    fn document(mut self) -> Result<Option<Node>, Mistake> {
        let mut found = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return Ok(found),
                Event::DocumentStart(_) if found.is_some() => {
                    return Err(self.mistake(span, "there is more than one document in this file"));
                }
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                event => {
                    let node = self.node(event, span, 0)?;
                    found = Some(node).filter(|node| !matches!(node.kind, Kind::Scalar(Json::Null)));
                }
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Span), Mistake> {
        let end = || Mistake::unsuitable("the file ends too early");
        let next = self.parser.next_event().ok_or_else(end)?;
        next.map_err(|error| {
            Mistake::at(self.text, self.byte(error.marker().index()), error.info().to_owned())
        })
    }

    fn byte(&self, character: usize) -> usize {
        self.bytes.get(character).copied().unwrap_or(self.text.len())
    }

    /// Where a list or mapping ends: right behind its bracket, which the parser says together with what follows.
    fn closed(&self, span: Span) -> usize {
        let start = self.byte(span.start.index());
        if self.text[start..].starts_with([']', '}']) { start + 1 } else { self.byte(span.end.index()) }
    }

    fn mistake(&self, span: Span, message: impl Into<String>) -> Mistake {
        Mistake::at(self.text, self.byte(span.start.index()), message)
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Mistake> {
        self.count += 1;
        if self.count > MOST || depth > DEEPEST {
            return Err(self.mistake(span, "there is too much in this file"));
        }
        let (start, end) = (self.byte(span.start.index()), self.byte(span.end.index()));
        let (anchor, node) = match event {
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                let known =
                    known.ok_or_else(|| self.mistake(span, "this refers to something that is not there"))?;
                self.count += count(&known);
                (0, Node { start, end, ..known })
            }
            Event::Scalar(text, style, anchor, _) => {
                let value =
                    if style == ScalarStyle::Plain { plain(&text) } else { Json::from(text.into_owned()) };
                (anchor, Node { start, end, kind: Kind::Scalar(value) })
            }
            Event::SequenceStart(anchor, _) => (anchor, self.list(start, depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.mapping(start, depth)?),
            _ => return Err(self.mistake(span, "this cannot be read")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, start: usize, depth: usize) -> Result<Node, Mistake> {
        let (flow, mut items) = (self.text[start..].starts_with('['), Vec::new());
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(Node { start, end: self.closed(span), kind: Kind::List { flow, items } });
            }
            items.push(self.node(event, span, depth + 1)?);
        }
    }

    fn mapping(&mut self, start: usize, depth: usize) -> Result<Node, Mistake> {
        let flow = self.text[start..].starts_with('{');
        let mut members: Vec<(Key, Node)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Node { start, end: self.closed(span), kind: Kind::Mapping { flow, members } });
            }
            let Event::Scalar(name, ..) = &event else {
                return Err(self.mistake(span, "this cannot be a key"));
            };
            let (start, end) = (self.byte(span.start.index()), self.byte(span.end.index()));
            let key = Key { name: name.to_string(), start, end, column: span.start.col() };
            if members.iter().any(|(other, _)| other.is(&key.name)) {
                return Err(self.mistake(span, format!("`{}` is there twice", key.name)));
            }
            let (event, span) = self.next()?;
            members.push((key, self.node(event, span, depth + 1)?));
        }
    }
}

fn count(node: &Node) -> usize {
    match &node.kind {
        Kind::Scalar(_) => 1,
        Kind::List { items, .. } => items.iter().map(count).sum::<usize>() + 1,
        Kind::Mapping { members, .. } => members.iter().map(|(_, value)| count(value)).sum::<usize>() + 1,
    }
}

/// A word without quotes, in the sense of YAML 1.2.
fn plain(text: &str) -> Json {
    let radix = |prefix: &str, radix| {
        text.strip_prefix(prefix).and_then(|digits| i64::from_str_radix(digits, radix).ok())
    };
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Json::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        _ => {
            let whole = text.parse::<i64>().ok().or_else(|| radix("0x", 16)).or_else(|| radix("0o", 8));
            let number =
                text.starts_with(|letter: char| letter.is_ascii_digit() || matches!(letter, '-' | '+' | '.'));
            let float =
                || Some(text).filter(|_| number).and_then(|text| text.parse::<f64>().ok()).map(Json::from);
            whole.map(Json::from).or_else(float).unwrap_or_else(|| text.into())
        }
    }
}
