//! Reads and evaluates `when`: the condition on active tags under which a server is on.

use super::node::ConfigValue;
use super::reader::TableReader;
use super::scope::{self, ActiveTags};
use crate::util::format;

/// A condition on active tags.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TagCondition {
    /// At least one of these is active, if present.
    pub any: Option<Vec<String>>,
    /// All of these are active.
    pub all: Vec<String>,
    /// None of these is active.
    pub not: Vec<String>,
}

/// A tag and the offset where it is written.
pub(super) struct WrittenTag {
    pub(super) name: String,
    pub(super) offset: usize,
}

impl TagCondition {
    /// Reads `when` of a server. Returns `None` if it is absent or invalid; the latter has been reported.
    pub(super) fn read(reader: &mut TableReader<'_>, server: &str, tags: &ActiveTags) -> Option<Self> {
        let Some(node) = reader.peek("when") else {
            reader.take("when");
            return None;
        };
        let mut when = Self::default();
        if matches!(node.value, ConfigValue::Array(_)) {
            when.any = read_names(reader, "when", tags);
        } else {
            let mut table = reader.table("when")?;
            when.any = read_names(&mut table, "any", tags);
            when.all = read_names(&mut table, "all", tags).unwrap_or_default();
            when.not = read_names(&mut table, "not", tags).unwrap_or_default();
            table.finish();
        }
        if when.any.as_ref().is_some_and(Vec::is_empty) {
            let message = format!("server `{server}` is never on: its `when` is an empty list of tags");
            reader.note(
                node.span.start,
                message,
                "add a tag, or remove `when` so that the server is always on",
            );
        }
        Some(when)
    }

    /// Returns every tag that must be active, sorted.
    pub fn required_tags(&self) -> Vec<String> {
        let mut tags: Vec<String> = self.any.iter().flatten().chain(&self.all).cloned().collect();
        tags.sort();
        tags.dedup();
        tags
    }

    /// Returns the reason why the condition holds, or the reason why it does not.
    pub(super) fn evaluate(&self, tags: &ActiveTags) -> Result<String, String> {
        let is_active = |tag: &&String| tags.active.contains_key(*tag);
        if let Some(tag) = self.not.iter().find(is_active) {
            return Err(format!("tag {} is active, but must not be", explain(tag, tags)));
        }
        if let Some(tag) = self.not.iter().find(|tag| tags.uncertain.contains(*tag)) {
            return Err(format!("tag `{tag}` must not be active, and its scope cannot be evaluated"));
        }
        if let Some(tag) = self.all.iter().find(|tag| !is_active(tag)) {
            return Err(format!("tag `{tag}` is not active"));
        }
        let mut reasons: Vec<String> = self.all.iter().map(|tag| explain(tag, tags)).collect();
        match self.any.as_deref() {
            None => {}
            Some([]) => return Err("its `when` is an empty list of tags".to_owned()),
            Some(any) => match any.iter().find(is_active) {
                Some(tag) => reasons.push(explain(tag, tags)),
                None if any.len() == 1 => return Err(format!("tag `{}` is not active", any[0])),
                None => return Err(format!("none of the tags {} is active", in_backticks(any))),
            },
        }
        Ok(match (reasons.is_empty(), self.not.is_empty()) {
            (false, _) => format!("active: {}", reasons.join(", ")),
            (true, false) => format!("not active: {}", in_backticks(&self.not)),
            (true, true) => "its `when` requires no tag".to_owned(),
        })
    }
}

/// Returns a tag with the first cause that made it active.
fn explain(tag: &str, tags: &ActiveTags) -> String {
    let cause = tags.active.get(tag).and_then(|causes| causes.first());
    cause.map_or_else(|| format!("`{tag}`"), |cause| format!("`{tag}` ({cause})"))
}

fn in_backticks(tags: &[String]) -> String {
    tags.iter().map(|tag| format!("`{tag}`")).collect::<Vec<_>>().join(", ")
}

fn read_names(reader: &mut TableReader<'_>, key: &'static str, tags: &ActiveTags) -> Option<Vec<String>> {
    Some(read_tags(reader, key, tags)?.into_iter().map(|tag| tag.name).collect())
}

/// Reads a list of tags. A tag that no scope activates is reported as a note.
pub(super) fn read_tags(
    reader: &mut TableReader<'_>,
    key: &'static str,
    tags: &ActiveTags,
) -> Option<Vec<WrittenTag>> {
    let mut written = Vec::new();
    for (node, tag) in reader.strings(key)? {
        let offset = node.span.start;
        if !scope::is_tag(tag) {
            reader.error(offset, format!("invalid tag `{tag}`"), scope::TAG_HINT);
        } else if !tags.declared.contains(tag) {
            let hint = match format::closest_match(tag, tags.declared.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None => {
                    format!("write `[scopes.NAME]` with `tags = [\"{tag}\"]`, or set `TOOLCRIB_TAGS={tag}`")
                }
            };
            reader.note(offset, format!("no scope activates the tag `{tag}`"), hint);
        }
        written.push(WrittenTag { name: tag.to_owned(), offset });
    }
    Some(written)
}
