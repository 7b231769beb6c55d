//! `when`: which tags a server wants, and whether they are active.

use super::node::Value;
use super::reader::Reader;
use super::scope::{self, Tags};
use crate::spelling;

/// The tags that a server wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct When {
    /// One of these, if it says so at all.
    pub any: Option<Vec<String>>,
    /// All of these.
    pub all: Vec<String>,
    /// None of these.
    pub not: Vec<String>,
}

impl When {
    /// Reads `when`; `None` if there is none, and for a bad one, which has been reported.
    pub(super) fn read(reader: &mut Reader<'_>, name: &str, tags: &Tags) -> Option<Self> {
        let Some(node) = reader.value("when") else {
            reader.take("when");
            return None;
        };
        let is_list = matches!(node.value, Value::Array(_));
        let mut when = Self::default();
        if is_list {
            when.any = names(reader, "when", tags);
        } else {
            let mut table = reader.table("when")?;
            when.any = names(&mut table, "any", tags);
            when.all = names(&mut table, "all", tags).unwrap_or_default();
            when.not = names(&mut table, "not", tags).unwrap_or_default();
            table.finish();
        }
        if when.any.as_ref().is_some_and(Vec::is_empty) {
            let message = format!("`{name}` is never on: it wants one of no tags");
            reader.note(
                node.span.start,
                message,
                "name a tag, or leave `when` out for a server that is always on",
            );
        }
        Some(when)
    }

    /// Every tag that is to be active.
    pub fn wanted(&self) -> Vec<String> {
        let mut tags: Vec<String> = self.any.iter().flatten().chain(&self.all).cloned().collect();
        tags.sort();
        tags.dedup();
        tags
    }

    /// Whether it is satisfied, and what says so.
    pub(super) fn judge(&self, tags: &Tags) -> Result<String, String> {
        let is_active = |tag: &&String| tags.active.contains_key(*tag);
        if let Some(tag) = self.not.iter().find(is_active) {
            return Err(format!("the tag {} is active, and it must not be", because(tag, tags)));
        }
        if let Some(tag) = self.not.iter().find(|tag| tags.uncertain.contains(*tag)) {
            return Err(format!("the tag `{tag}` must not be active, and nobody can say whether it is"));
        }
        if let Some(tag) = self.all.iter().find(|tag| !is_active(tag)) {
            return Err(format!("the tag `{tag}` is not active"));
        }
        let mut reasons: Vec<String> = self.all.iter().map(|tag| because(tag, tags)).collect();
        match self.any.as_deref() {
            None => {}
            Some([]) => return Err("it wants one of no tags".to_owned()),
            Some(any) => match any.iter().find(is_active) {
                Some(tag) => reasons.push(because(tag, tags)),
                None if any.len() == 1 => return Err(format!("the tag `{}` is not active", any[0])),
                None => return Err(format!("none of the tags {} is active", quoted(any))),
            },
        }
        Ok(match (reasons.is_empty(), self.not.is_empty()) {
            (false, _) => format!("active: {}", reasons.join(", ")),
            (true, false) => format!("not active: {}", quoted(&self.not)),
            (true, true) => "it wants no tag".to_owned(),
        })
    }
}

fn because(tag: &str, tags: &Tags) -> String {
    let by = tags.active.get(tag).and_then(|by| by.first());
    by.map_or_else(|| format!("`{tag}`"), |by| format!("`{tag}` ({by})"))
}

fn quoted(tags: &[String]) -> String {
    tags.iter().map(|tag| format!("`{tag}`")).collect::<Vec<_>>().join(", ")
}

fn names(reader: &mut Reader<'_>, key: &'static str, tags: &Tags) -> Option<Vec<String>> {
    Some(list(reader, key, tags)?.into_iter().map(|(_, tag)| tag).collect())
}

/// A list of tags, each with its place. One that no scope has is mentioned.
pub(super) fn list(reader: &mut Reader<'_>, key: &'static str, tags: &Tags) -> Option<Vec<(usize, String)>> {
    let mut wanted = Vec::new();
    for (node, tag) in reader.strings(key)? {
        if !scope::is_tag(tag) {
            let hint = "a tag is 1 to 64 letters, digits, `-` and `_`";
            reader.wrong(node.span.start, format!("`{tag}` cannot be a tag"), hint);
        } else if !tags.known.contains(tag) {
            let hint = match spelling::nearest(tag, tags.known.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    format!("write `[scopes.NAME]` with `tags = [\"{tag}\"]`, or set `TOOLCRIB_TAGS={tag}`")
                }
            };
            reader.note(node.span.start, format!("no scope has the tag `{tag}`"), hint);
        }
        wanted.push((node.span.start, tag.to_owned()));
    }
    Some(wanted)
}
