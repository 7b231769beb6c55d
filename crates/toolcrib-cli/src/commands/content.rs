//! Content of results as text: binary content is saved or described in a line, never printed as base64.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use toolcrib::protocol::json::object::{self, Object};
use toolcrib::util::encoding;

use crate::command_error::CommandError;

/// Names that are tried for one file.
const MAX_NAME_TRIES: usize = 1000;
/// Longest name of a saved file, without its number and ending.
const MAX_STEM: usize = 64;

/// Turns content into lines of text, and saves binary content if there is a folder for it.
#[derive(Debug)]
pub(super) struct ContentText<'a> {
    save: Option<&'a Path>,
}

/// Binary content of a result.
struct BinaryContent<'a> {
    /// `image`, `audio` or `resource`.
    kind: &'a str,
    mime_type: &'a str,
    uri: &'a str,
    base64: &'a str,
}

impl<'a> ContentText<'a> {
    pub(super) fn new(save: Option<&'a Path>) -> Self {
        Self { save }
    }

    /// Returns the content of a tool's result, block by block. Structured content is shown only if there is no text.
    pub(super) fn result_texts(&self, result: &Bytes) -> Result<Vec<String>, CommandError> {
        let result = Object::parse(result).unwrap_or_default();
        let blocks = array_member(&result, "content");
        let mut texts = Vec::new();
        let mut has_text = false;
        for block in &blocks {
            let object = Object::parse(block).unwrap_or_default();
            has_text |= object.get_string("type").as_deref() == Some("text");
            texts.push(self.block_text(block)?);
        }
        match result.get("structuredContent") {
            Some(structured) if !has_text => texts.push(String::from_utf8_lossy(structured).into_owned()),
            _ => {}
        }
        Ok(texts)
    }

    /// Returns one content block as text. A block of an unknown type is shown as JSON.
    pub(super) fn block_text(&self, block: &Bytes) -> Result<String, CommandError> {
        let object = Object::parse(block).unwrap_or_default();
        let text = |name: &str| object.get_string(name).unwrap_or_default().into_owned();
        let kind = text("type");
        match kind.as_str() {
            "text" if object.get_string("text").is_some() => Ok(text("text")),
            "image" | "audio" => self.save_or_describe(&BinaryContent {
                kind: &kind,
                mime_type: &text("mimeType"),
                uri: "",
                base64: &text("data"),
            }),
            "resource_link" => Ok(link_line(&object)),
            "resource" => match object.get("resource") {
                Some(resource) => self.resource_text(resource),
                None => Ok(String::from_utf8_lossy(block).into_owned()),
            },
            _ => Ok(String::from_utf8_lossy(block).into_owned()),
        }
    }

    /// Returns the contents of a resource as text.
    pub(super) fn resource_text(&self, contents: &Bytes) -> Result<String, CommandError> {
        let object = Object::parse(contents).unwrap_or_default();
        let member = |name: &str| object.get_string(name).map(std::borrow::Cow::into_owned);
        match (member("text"), member("blob")) {
            (Some(text), _) => Ok(text),
            (None, Some(base64)) => self.save_or_describe(&BinaryContent {
                kind: "resource",
                mime_type: &member("mimeType").unwrap_or_default(),
                uri: &member("uri").unwrap_or_default(),
                base64: &base64,
            }),
            (None, None) => Ok(String::from_utf8_lossy(contents).into_owned()),
        }
    }

    /// Saves binary content, or describes it.
    fn save_or_describe(&self, content: &BinaryContent<'_>) -> Result<String, CommandError> {
        let BinaryContent { kind, mime_type, uri, base64 } = content;
        let mime_type = if mime_type.is_empty() { "unknown type" } else { mime_type };
        let place = if uri.is_empty() { String::new() } else { format!(" {uri}") };
        let Some(bytes) = encoding::parse_base64(base64) else {
            return Ok(format!("[{kind}{place}: {mime_type}, not valid base64]"));
        };
        let size = format_size(bytes.len());
        match self.save {
            Some(folder) => {
                let file = save(folder, &file_stem(uri, kind), file_ending(mime_type, uri), &bytes)?;
                Ok(format!("[{kind}{place}: {mime_type}, {size}, saved as {}]", file.display()))
            }
            None => Ok(format!("[{kind}{place}: {mime_type}, {size}; --save DIR saves it]")),
        }
    }
}

/// Returns the elements of an array in an object.
pub(super) fn array_member(object: &Object, name: &str) -> Vec<Bytes> {
    object.get(name).and_then(|array| object::parse_array(array).ok()).unwrap_or_default()
}

fn link_line(link: &Object) -> String {
    let text = |name: &str| link.get_string(name).unwrap_or_default().into_owned();
    let mut details = vec![text("mimeType")];
    let size = link.get("size").and_then(|raw| serde_json::from_slice::<usize>(raw).ok());
    details.extend(size.map(format_size));
    details.extend([text("title"), text("description")]);
    details.retain(|detail| !detail.is_empty());
    let details = if details.is_empty() { String::new() } else { format!(": {}", details.join(", ")) };
    format!("[link {}{details}]", text("uri"))
}

/// Returns a size with its unit.
pub(super) fn format_size(bytes: usize) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut tenths = bytes.saturating_mul(10) / 1024;
    let mut unit = 0;
    while tenths >= 10 * 1024 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// Returns the name of a file without its ending: the last part of a URI if it is harmless, else the kind. Servers choose URIs.
fn file_stem(uri: &str, kind: &str) -> String {
    let last = last_segment(uri);
    let stem = last.rsplit_once('.').map_or(last, |(stem, _)| stem);
    let is_harmless = |char: char| char.is_ascii_alphanumeric() || "-_.".contains(char);
    let is_name = !stem.is_empty() && !stem.starts_with(['.', '-']) && stem.chars().all(is_harmless);
    let stem = if is_name { stem } else { kind };
    stem.chars().take(MAX_STEM).collect()
}

/// Returns the last part of the path of a URI.
fn last_segment(uri: &str) -> &str {
    uri.split(['?', '#']).next().unwrap_or_default().rsplit('/').next().unwrap_or_default()
}

/// Returns the ending of a file for a media type.
fn file_ending<'a>(mime_type: &'a str, uri: &'a str) -> &'a str {
    let essence = mime_type.split(';').next().unwrap_or_default().trim();
    match essence {
        "image/jpeg" => "jpg",
        "image/svg+xml" => "svg",
        "audio/mpeg" => "mp3",
        "audio/x-wav" | "audio/wave" => "wav",
        "text/plain" => "txt",
        "application/gzip" => "gz",
        _ => {
            let is_plain = |text: &&str| {
                (1..=8).contains(&text.len()) && text.chars().all(|char| char.is_ascii_alphanumeric())
            };
            let subtype = essence.split_once('/').map(|(_, subtype)| subtype).filter(is_plain);
            let from_uri = last_segment(uri).rsplit_once('.').map(|(_, ending)| ending);
            subtype.or(from_uri.filter(is_plain)).unwrap_or("bin")
        }
    }
}

/// Writes a new file. An existing one is never replaced: the name gets a number.
fn save(folder: &Path, stem: &str, ending: &str, bytes: &[u8]) -> Result<PathBuf, CommandError> {
    let failed = |file: &Path, error: &io::Error| {
        CommandError::usage(format!("cannot save `{}`: {error}", file.display()))
    };
    fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    for number in 1..=MAX_NAME_TRIES {
        let name = if number == 1 { format!("{stem}.{ending}") } else { format!("{stem}-{number}.{ending}") };
        let file = folder.join(name);
        match OpenOptions::new().write(true).create_new(true).open(&file) {
            Ok(mut opened) => {
                opened.write_all(bytes).map_err(|error| failed(&file, &error))?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(failed(&file, &error)),
        }
    }
    Err(CommandError::usage(format!("`{}` has too many files called `{stem}`", folder.display())))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn texts(save: Option<&Path>, result: &Value) -> Vec<String> {
        ContentText::new(save).result_texts(&Bytes::from(result.to_string())).unwrap()
    }

    #[test]
    fn structured_content_is_shown_without_text() {
        let text = json!({"type": "text", "text": "a"});
        assert_eq!(texts(None, &json!({"content": [text], "structuredContent": {"a": 1}})), ["a"]);
        assert_eq!(texts(None, &json!({"content": [], "structuredContent": {"a": 1}})), [r#"{"a":1}"#]);
        let unknown = json!({"type": "later", "x": 1});
        assert_eq!(texts(None, &json!({"content": [unknown]})), [unknown.to_string()]);
    }

    #[test]
    fn binary_content_and_links_are_lines() {
        let result = json!({"content": [
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "audio", "mimeType": "audio/wav", "data": "%"},
            {"type": "resource", "resource": {"uri": "x://a/b", "blob": "AAAA"}},
            {"type": "resource", "resource": {"uri": "x://a/c", "text": "words"}},
            {"type": "resource_link", "uri": "x://d", "name": "d", "mimeType": "text/csv", "size": 2048},
        ]});
        assert_eq!(
            texts(None, &result),
            [
                "[image: image/png, 3 B; --save DIR saves it]",
                "[audio: audio/wav, not valid base64]",
                "[resource x://a/b: unknown type, 3 B; --save DIR saves it]",
                "words",
                "[link x://d: text/csv, 2.0 KiB]",
            ]
        );
    }

    #[test]
    fn saved_files_have_safe_names_and_replace_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let image = json!({"type": "image", "mimeType": "image/jpeg", "data": "AAAA"});
        let escape = json!({"type": "resource", "resource": {"uri": "x://a/../.ssh%2f", "mimeType": "../x", "blob": "AQ=="}});
        let named = json!({"type": "resource", "resource": {"uri": "x://a/report.pdf?v=1", "blob": "AQ=="}});
        let saved = folder.path().join("new");
        let result = json!({"content": [image, image, escape, named]});
        let lines = texts(Some(&saved), &result);
        let mut names: Vec<String> = fs::read_dir(&saved)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["image-2.jpg", "image.jpg", "report.pdf", "resource.x"], "{lines:?}");
        assert_eq!(fs::read(saved.join("image.jpg")).unwrap(), [0, 0, 0]);
        assert!(lines[0].ends_with("new/image.jpg]"), "{lines:?}");
    }

    #[test]
    fn sizes_have_units() {
        let sizes = [0, 1023, 1024, 1536, 10 << 20].map(format_size);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "10.0 MiB"]);
    }
}
