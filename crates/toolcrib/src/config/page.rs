//! `Page`: what is being read — the text of every layer, its folder, and what was found wrong with it so far. The layers
//! lie one behind the other, so that one number is a place in one of them; it becomes a file, line and column at the end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Concern, Origin, Position, Problem};

/// Everything that is being read.
#[derive(Clone)]
pub(super) struct Page {
    sheets: Arc<Vec<Sheet>>,
    found: Vec<(usize, Problem)>,
    errors: usize,
    /// Whether it is JSON in the `mcpServers` shape, else TOML.
    pub(super) json: bool,
}

/// One file of it.
struct Sheet {
    file: PathBuf,
    text: String,
    /// Where it starts among all of them.
    start: usize,
    /// Where each line starts, in bytes of all.
    lines: Vec<usize>,
    /// What relative paths are below; absolute.
    folder: PathBuf,
}

impl Page {
    /// The files of all layers and their texts, the farthest first.
    pub(super) fn new<'a>(files: impl IntoIterator<Item = (&'a Path, &'a str)>) -> Self {
        let (mut sheets, mut start) = (Vec::new(), 0);
        for (file, text) in files {
            let ends = text.match_indices('\n').map(|(at, _)| start + at + 1);
            let lines = std::iter::once(start).chain(ends).collect();
            let (file, folder) = (file.to_owned(), folder_of(file));
            sheets.push(Sheet { file, text: text.to_owned(), start, lines, folder });
            // One byte between two, so that the end of one is not the beginning of the next.
            start += text.len() + 1;
        }
        let json = matches!(&sheets[..], [only] if is_json(&only.file));
        Self { sheets: Arc::new(sheets), found: Vec::new(), errors: 0, json }
    }

    /// Where the text of a layer starts among all of them.
    pub(super) fn start(&self, layer: usize) -> usize {
        self.sheets.get(layer).map_or(0, |sheet| sheet.start)
    }

    fn sheet(&self, at: usize) -> Option<&Sheet> {
        let behind = self.sheets.partition_point(|sheet| sheet.start <= at);
        self.sheets.get(behind.saturating_sub(1))
    }

    /// What relative paths at a place are below; absolute.
    pub(super) fn folder(&self, at: usize) -> &Path {
        self.sheet(at).map_or(Path::new("/"), |sheet| &sheet.folder)
    }

    /// Adds a problem at a place.
    pub(super) fn report(&mut self, at: usize, concerns: &Concern, message: String, hint: String) {
        self.errors += usize::from(*concerns != Concern::Note);
        let file = self.sheet(at).map(|sheet| sheet.file.clone()).unwrap_or_default();
        let (message, hint) = (on_one_line(message), Some(on_one_line(hint)));
        self.found.push((at, Problem { file, at: None, concerns: concerns.clone(), message, hint }));
    }

    /// Adds a problem at the beginning of a line.
    pub(super) fn report_in_line(
        &mut self,
        origin: &Origin,
        concerns: &Concern,
        message: String,
        hint: String,
    ) {
        let line = usize::try_from(origin.line).unwrap_or(1).saturating_sub(1);
        let sheet = self.sheets.iter().find(|sheet| sheet.file == origin.file);
        let at = sheet.and_then(|sheet| sheet.lines.get(line)).copied().unwrap_or_default();
        self.report(at, concerns, message, hint);
    }

    /// How many problems so far are more than a note.
    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    /// What was written in a span, if it is short enough to be repeated in a message.
    pub(super) fn written(&self, span: &std::ops::Range<usize>) -> Option<&str> {
        self.text(span).filter(|text| text.len() <= 60 && !text.contains('\n'))
    }

    /// What was written in a span.
    pub(super) fn text(&self, span: &std::ops::Range<usize>) -> Option<&str> {
        let sheet = self.sheet(span.start)?;
        sheet.text.get(span.start - sheet.start..span.end.checked_sub(sheet.start)?)
    }

    /// How a key is set to a value in this file's language, between backticks.
    pub(super) fn setting(&self, key: &str, value: &str) -> String {
        if self.json { format!("`\"{key}\": {value}`") } else { format!("`{key} = {value}`") }
    }

    /// The line of a place, from 1.
    pub(super) fn line(&self, at: usize) -> u32 {
        let line = self.sheet(at).map(|sheet| sheet.lines.partition_point(|start| *start <= at));
        line.and_then(|line| u32::try_from(line).ok()).unwrap_or(u32::MAX)
    }

    /// The line of a place, with the file.
    pub(super) fn origin(&self, at: usize) -> Origin {
        let file = self.sheet(at).map(|sheet| sheet.file.clone()).unwrap_or_default();
        Origin { file, line: self.line(at) }
    }

    /// Whether two places are in the same file.
    pub(super) fn is_one_file(&self, one: usize, other: usize) -> bool {
        self.sheet(one).map(|sheet| sheet.start) == self.sheet(other).map(|sheet| sheet.start)
    }

    /// What switches one server off, the first problem of all that do.
    pub(super) fn first_problem_of(&self, server: &str) -> Option<&Problem> {
        let concerned =
            |problem: &Problem| matches!(&problem.concerns, Concern::Server(name) if name == server);
        let first = self.found.iter().filter(|(_, problem)| concerned(problem)).min_by_key(|(at, _)| *at);
        first.map(|(_, problem)| problem)
    }

    /// Everything found, in the order of the files.
    pub(super) fn problems(mut self) -> Vec<Problem> {
        self.found.sort_by_key(|(at, _)| *at);
        let found = std::mem::take(&mut self.found);
        let (mut passed, mut position) = (0, Position { line: 1, column: 1 });
        let place = |(at, problem): (usize, Problem)| {
            let Some(sheet) = self.sheet(at) else { return problem };
            if passed < sheet.start {
                (passed, position) = (sheet.start, Position { line: 1, column: 1 });
            }
            let at = sheet.text.floor_char_boundary(at - sheet.start) + sheet.start;
            position = advance(position, &sheet.text[passed - sheet.start..at - sheet.start]);
            passed = at;
            Problem { at: Some(position), ..problem }
        };
        found.into_iter().map(place).collect()
    }
}

fn is_json(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
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
