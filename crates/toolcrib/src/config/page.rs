//! `Page`: the file being read — its text, its folder, and what was found wrong with it so far. Places are byte
//! offsets while reading and become lines and columns once, at the end.

use std::path::{Path, PathBuf};

use super::{Concern, Origin, Position, Problem};

/// The file being read.
pub(super) struct Page {
    file: PathBuf,
    text: String,
    /// Where each line starts, in bytes.
    lines: Vec<usize>,
    found: Vec<(usize, Problem)>,
    errors: usize,
    /// What relative paths are below; absolute.
    pub(super) folder: PathBuf,
    /// Whether it is JSON in the `mcpServers` shape, else TOML.
    pub(super) json: bool,
}

impl Page {
    pub(super) fn new(file: &Path, text: &str) -> Self {
        let json = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        let (found, errors) = (Vec::new(), 0);
        Self {
            file: file.to_owned(),
            text: text.to_owned(),
            lines,
            found,
            errors,
            folder: folder_of(file),
            json,
        }
    }

    /// Adds a problem at a byte of the text.
    pub(super) fn report(&mut self, at: usize, concerns: &Concern, message: String, hint: String) {
        self.errors += usize::from(*concerns != Concern::Note);
        let (file, concerns) = (self.file.clone(), concerns.clone());
        let (message, hint) = (on_one_line(message), Some(on_one_line(hint)));
        self.found.push((at, Problem { file, at: None, concerns, message, hint }));
    }

    /// Adds a problem in a line, from 1.
    pub(super) fn report_in_line(&mut self, line: u32, concerns: &Concern, message: String, hint: String) {
        let line = usize::try_from(line).unwrap_or(1).saturating_sub(1);
        let at = self.lines.get(line).copied().unwrap_or_default();
        self.report(at, concerns, message, hint);
    }

    /// How many problems so far are more than a note.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// What was written in a span, if it is short enough to be repeated in a message.
    pub(super) fn written(&self, span: &std::ops::Range<usize>) -> Option<&str> {
        self.text.get(span.clone()).filter(|text| text.len() <= 60 && !text.contains('\n'))
    }

    /// How a key is set to a value in this file's language, between backticks.
    pub(super) fn setting(&self, key: &str, value: &str) -> String {
        if self.json { format!("`\"{key}\": {value}`") } else { format!("`{key} = {value}`") }
    }

    /// The line of a byte, from 1.
    pub(super) fn line(&self, at: usize) -> u32 {
        u32::try_from(self.lines.partition_point(|start| *start <= at)).unwrap_or(u32::MAX)
    }

    /// The line of a byte, with the file.
    pub(super) fn origin(&self, at: usize) -> Origin {
        Origin { file: self.file.clone(), line: self.line(at) }
    }

    /// Everything found, in the order of the file.
    pub(super) fn problems(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|(at, _)| *at);
        let found = std::mem::take(&mut self.found);
        let (mut passed, mut position) = (0, Position { line: 1, column: 1 });
        let place = |(at, problem): (usize, Problem)| {
            let at = self.text.floor_char_boundary(at);
            position = advance(position, &self.text[passed..at]);
            passed = at;
            Problem { at: Some(position), ..problem }
        };
        found.into_iter().map(place).collect()
    }
}

/// Messages repeat what a file says; they stay one line of bounded length, and no terminal obeys them.
fn on_one_line(text: String) -> String {
    if text.len() <= 400 && !text.contains(char::is_control) {
        return text;
    }
    let plain = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    let rest = if text.chars().nth(400).is_some() { "…" } else { "" };
    text.chars().take(400).map(plain).chain(rest.chars()).collect()
}

/// The line and column of a byte.
pub(super) fn position(text: &str, at: usize) -> Position {
    advance(Position { line: 1, column: 1 }, text.get(..at).unwrap_or(text))
}

fn advance(from: Position, passed: &str) -> Position {
    let count = |characters: usize| u32::try_from(characters).unwrap_or(u32::MAX);
    match passed.rsplit_once('\n') {
        None => Position { column: from.column.saturating_add(count(passed.chars().count())), ..from },
        Some((before, last)) => Position {
            line: from.line.saturating_add(count(before.matches('\n').count() + 1)),
            column: count(last.chars().count() + 1),
        },
    }
}

fn folder_of(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let absolute = || std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned());
    parent.canonicalize().unwrap_or_else(|_| absolute())
}
