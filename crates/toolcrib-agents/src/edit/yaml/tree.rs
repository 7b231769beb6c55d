//! A YAML document as a tree of nodes that know their position in the text.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};
use serde_json::Value as Json;
use toolcrib::util::maps::collect_map;

use super::super::entry::EditError;

/// Limit on the number of values, which aliases can multiply.
const MAX_NODES: usize = 100_000;
const MAX_DEPTH: usize = 64;

/// A value and its byte range in the text.
#[derive(Debug, Clone)]
pub(super) struct YamlNode {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) kind: YamlKind,
}

#[derive(Debug, Clone)]
pub(super) enum YamlKind {
    Scalar(Json),
    List { flow: bool, items: Vec<YamlNode> },
    Mapping { flow: bool, members: Vec<(YamlKey, YamlNode)> },
}

/// A key of a mapping and its byte range in the text.
#[derive(Debug, Clone)]
pub(super) struct YamlKey {
    pub(super) name: String,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Indentation.
    pub(super) column: usize,
}

impl YamlNode {
    /// Returns the members of a mapping.
    pub(super) fn as_mapping(&self) -> Option<&[(YamlKey, YamlNode)]> {
        match &self.kind {
            YamlKind::Mapping { members, .. } => Some(members),
            _ => None,
        }
    }

    /// Returns the end of the last token of the value. A block's own `end` is where the next token starts, possibly far
    /// below.
    pub(super) fn last_byte(&self) -> usize {
        match &self.kind {
            YamlKind::List { flow: false, items } => items.last().map_or(self.start, Self::last_byte),
            YamlKind::Mapping { flow: false, members } => {
                members.last().map_or(self.start, |(key, value)| value.last_byte().max(key.end))
            }
            _ => self.end,
        }
    }

    /// Converts the value to JSON.
    pub(super) fn to_json(&self) -> Json {
        match &self.kind {
            YamlKind::Scalar(value) => value.clone(),
            YamlKind::List { items, .. } => items.iter().map(Self::to_json).collect::<Vec<_>>().into(),
            YamlKind::Mapping { members, .. } => Json::Object(collect_map(
                members.iter().map(|(key, value)| (key.name.clone(), value.to_json())),
            )),
        }
    }
}

/// Parses a text with one document; `None` if it is empty.
pub(super) fn parse(text: &str) -> Result<Option<YamlNode>, EditError> {
    let char_offsets = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
    let reader = YamlReader {
        text,
        char_offsets,
        parser: Parser::new_from_str(text),
        anchors: HashMap::new(),
        count: 0,
    };
    reader.read_document()
}

struct YamlReader<'a> {
    text: &'a str,
    /// Byte offset of each character, since the parser counts characters.
    char_offsets: Vec<usize>,
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, YamlNode>,
    count: usize,
}

impl<'a> YamlReader<'a> {
    fn read_document(mut self) -> Result<Option<YamlNode>, EditError> {
        let mut root = None;
        loop {
            let (event, span) = self.next_event()?;
            match event {
                Event::StreamEnd => return Ok(root),
                Event::DocumentStart(_) if root.is_some() => {
                    return Err(self.error_at(span, "the file has more than one YAML document"));
                }
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
                event => {
                    let node = self.read_node(event, span, 0)?;
                    root = Some(node).filter(|node| !matches!(node.kind, YamlKind::Scalar(Json::Null)));
                }
            }
        }
    }

    fn next_event(&mut self) -> Result<(Event<'a>, Span), EditError> {
        let end = || EditError::unsupported("unexpected end of file");
        let next = self.parser.next_event().ok_or_else(end)?;
        next.map_err(|error| {
            EditError::at_byte(self.text, self.byte_offset(error.marker().index()), error.info().to_owned())
        })
    }

    fn byte_offset(&self, character: usize) -> usize {
        self.char_offsets.get(character).copied().unwrap_or(self.text.len())
    }

    /// Returns the end of a list or mapping. The parser's end event of a flow container starts at its closing bracket.
    fn container_end(&self, span: Span) -> usize {
        let start = self.byte_offset(span.start.index());
        if self.text[start..].starts_with([']', '}']) {
            start + 1
        } else {
            self.byte_offset(span.end.index())
        }
    }

    fn error_at(&self, span: Span, message: impl Into<String>) -> EditError {
        EditError::at_byte(self.text, self.byte_offset(span.start.index()), message)
    }

    fn read_node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<YamlNode, EditError> {
        self.count += 1;
        if self.count > MAX_NODES || depth > MAX_DEPTH {
            return Err(self.error_at(span, "the file has too many values or is nested too deeply"));
        }
        let start = self.byte_offset(span.start.index());
        let end = self.byte_offset(span.end.index());
        let (anchor, node) = match event {
            Event::Alias(anchor) => {
                let target = self.anchors.get(&anchor).cloned();
                let target = target.ok_or_else(|| self.error_at(span, "unknown alias"))?;
                self.count += count_nodes(&target);
                (0, YamlNode { start, end, ..target })
            }
            Event::Scalar(text, style, anchor, _) => {
                let value = if style == ScalarStyle::Plain {
                    parse_plain_scalar(&text)
                } else {
                    Json::from(text.into_owned())
                };
                (anchor, YamlNode { start, end, kind: YamlKind::Scalar(value) })
            }
            Event::SequenceStart(anchor, _) => (anchor, self.read_list(start, depth)?),
            Event::MappingStart(anchor, _) => (anchor, self.read_mapping(start, depth)?),
            _ => return Err(self.error_at(span, "unexpected YAML syntax")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn read_list(&mut self, start: usize, depth: usize) -> Result<YamlNode, EditError> {
        let flow = self.text[start..].starts_with('[');
        let mut items = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(YamlNode {
                    start,
                    end: self.container_end(span),
                    kind: YamlKind::List { flow, items },
                });
            }
            items.push(self.read_node(event, span, depth + 1)?);
        }
    }

    fn read_mapping(&mut self, start: usize, depth: usize) -> Result<YamlNode, EditError> {
        let flow = self.text[start..].starts_with('{');
        let mut members: Vec<(YamlKey, YamlNode)> = Vec::new();
        loop {
            let (event, span) = self.next_event()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(YamlNode {
                    start,
                    end: self.container_end(span),
                    kind: YamlKind::Mapping { flow, members },
                });
            }
            let Event::Scalar(name, ..) = &event else {
                return Err(self.error_at(span, "only strings are supported as keys"));
            };
            let start = self.byte_offset(span.start.index());
            let end = self.byte_offset(span.end.index());
            let key = YamlKey { name: name.to_string(), start, end, column: span.start.col() };
            if members.iter().any(|(other, _)| other.name == key.name) {
                return Err(self.error_at(span, format!("duplicate key `{}`", key.name)));
            }
            let (event, span) = self.next_event()?;
            members.push((key, self.read_node(event, span, depth + 1)?));
        }
    }
}

fn count_nodes(node: &YamlNode) -> usize {
    match &node.kind {
        YamlKind::Scalar(_) => 1,
        YamlKind::List { items, .. } => items.iter().map(count_nodes).sum::<usize>() + 1,
        YamlKind::Mapping { members, .. } => {
            members.iter().map(|(_, value)| count_nodes(value)).sum::<usize>() + 1
        }
    }
}

/// Parses an unquoted scalar by the core schema of YAML 1.2.
fn parse_plain_scalar(text: &str) -> Json {
    let radix = |prefix: &str, radix| {
        text.strip_prefix(prefix).and_then(|digits| i64::from_str_radix(digits, radix).ok())
    };
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Json::Null,
        "true" | "True" | "TRUE" => true.into(),
        "false" | "False" | "FALSE" => false.into(),
        _ => {
            let integer = text.parse::<i64>().ok().or_else(|| radix("0x", 16)).or_else(|| radix("0o", 8));
            let is_numeric = text.starts_with(|character: char| {
                character.is_ascii_digit() || matches!(character, '-' | '+' | '.')
            });
            let float = || text.parse::<f64>().ok().filter(|_| is_numeric);
            integer.map(Json::from).or_else(|| float().map(Json::from)).unwrap_or_else(|| text.into())
        }
    }
}
