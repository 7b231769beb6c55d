//! `SourceMap`: the texts of all layers and the problems found in them.
//!
//! Offsets count bytes over all texts, one after the other, so that one number names a place in one file. They become
//! a file, line and column when the problems are returned.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{LayerText, Origin, Position, Problem, ProblemScope};

/// Longest text that a message quotes from a file.
const MAX_QUOTE: usize = 60;
/// Longest message, in characters.
const MAX_MESSAGE: usize = 400;

/// Texts of all layers and the problems found in them.
#[derive(Clone)]
pub(super) struct SourceMap {
    files: Arc<Vec<SourceFile>>,
    problems: Vec<LocatedProblem>,
    error_count: usize,
    /// True if the config is JSON with `mcpServers`; otherwise it is TOML.
    pub(super) json: bool,
}

struct SourceFile {
    path: PathBuf,
    text: String,
    /// Offset of the first byte.
    start: usize,
    /// Offset of each line.
    line_starts: Vec<usize>,
    /// Absolute folder that relative paths are resolved against.
    folder: PathBuf,
}

/// A problem whose position has not been computed yet.
#[derive(Clone)]
struct LocatedProblem {
    offset: usize,
    problem: Problem,
}

impl SourceMap {
    /// Creates a map of the texts of all layers, the farthest first.
    pub(super) fn new(layers: &[LayerText<'_>]) -> Self {
        let mut files = Vec::new();
        let mut start = 0;
        for layer in layers {
            let line_ends = layer.text.match_indices('\n').map(|(at, _)| start + at + 1);
            files.push(SourceFile {
                path: layer.path.to_owned(),
                text: layer.text.to_owned(),
                start,
                line_starts: std::iter::once(start).chain(line_ends).collect(),
                folder: absolute_folder(layer.path),
            });
            // One byte between two texts, so that the end of one differs from the start of the next.
            start += layer.text.len() + 1;
        }
        let json = matches!(&files[..], [only] if is_json(&only.path));
        Self { files: Arc::new(files), problems: Vec::new(), error_count: 0, json }
    }

    /// Returns the offset of the first byte of a layer.
    pub(super) fn start(&self, layer: usize) -> usize {
        self.files.get(layer).map_or(0, |file| file.start)
    }

    fn file_at(&self, offset: usize) -> Option<&SourceFile> {
        let next = self.files.partition_point(|file| file.start <= offset);
        self.files.get(next.saturating_sub(1))
    }

    /// Returns the absolute folder that relative paths at an offset are resolved against.
    pub(super) fn folder(&self, offset: usize) -> &Path {
        self.file_at(offset).map_or(Path::new("/"), |file| &file.folder)
    }

    /// Adds a problem at an offset.
    pub(super) fn report(&mut self, offset: usize, scope: &ProblemScope, message: String, hint: String) {
        self.error_count += usize::from(*scope != ProblemScope::Note);
        let problem = Problem {
            file: self.path_at(offset),
            position: None,
            scope: scope.clone(),
            message: sanitize(message),
            hint: Some(sanitize(hint)),
        };
        self.problems.push(LocatedProblem { offset, problem });
    }

    /// Adds a problem at the start of a line.
    pub(super) fn report_at_line(
        &mut self,
        origin: &Origin,
        scope: &ProblemScope,
        message: String,
        hint: String,
    ) {
        let line = usize::try_from(origin.line).unwrap_or(1).saturating_sub(1);
        let file = self.files.iter().find(|file| file.path == origin.file);
        let offset = file.and_then(|file| file.line_starts.get(line)).copied().unwrap_or_default();
        self.report(offset, scope, message, hint);
    }

    /// Returns the number of problems so far that are not notes.
    pub(super) fn error_count(&self) -> usize {
        self.error_count
    }

    /// Returns the text of a span if it is short enough to be quoted in a message.
    pub(super) fn short_text(&self, span: &Range<usize>) -> Option<&str> {
        self.text(span).filter(|text| text.len() <= MAX_QUOTE && !text.contains('\n'))
    }

    fn text(&self, span: &Range<usize>) -> Option<&str> {
        let file = self.file_at(span.start)?;
        file.text.get(span.start - file.start..span.end.checked_sub(file.start)?)
    }

    /// Returns an assignment of a value to a key, in the language of the file and between backticks.
    pub(super) fn assignment(&self, key: &str, value: &str) -> String {
        if self.json { format!("`\"{key}\": {value}`") } else { format!("`{key} = {value}`") }
    }

    /// Returns the file and line of an offset.
    pub(super) fn origin(&self, offset: usize) -> Origin {
        Origin { file: self.path_at(offset), line: self.line(offset) }
    }

    fn line(&self, offset: usize) -> u32 {
        let line =
            self.file_at(offset).map(|file| file.line_starts.partition_point(|start| *start <= offset));
        line.and_then(|line| u32::try_from(line).ok()).unwrap_or(u32::MAX)
    }

    fn path_at(&self, offset: usize) -> PathBuf {
        self.file_at(offset).map(|file| file.path.clone()).unwrap_or_default()
    }

    /// Returns whether two offsets are in the same file.
    pub(super) fn is_same_file(&self, one: usize, other: usize) -> bool {
        self.file_at(one).map(|file| file.start) == self.file_at(other).map(|file| file.start)
    }

    /// Returns the first problem that switches a server off.
    pub(super) fn first_server_problem(&self, server: &str) -> Option<&Problem> {
        let is_about_server =
            |problem: &Problem| matches!(&problem.scope, ProblemScope::Server(name) if name == server);
        let problems = self.problems.iter().filter(|located| is_about_server(&located.problem));
        problems.min_by_key(|located| located.offset).map(|located| &located.problem)
    }

    /// Returns all problems with their positions, in the order of the files.
    pub(super) fn into_problems(mut self) -> Vec<Problem> {
        const START: Position = Position { line: 1, column: 1 };
        self.problems.sort_by_key(|located| located.offset);
        let problems = std::mem::take(&mut self.problems);
        let mut passed = 0;
        let mut position = START;
        let locate = |LocatedProblem { offset, problem }| {
            let Some(file) = self.file_at(offset) else { return problem };
            if passed < file.start {
                passed = file.start;
                position = START;
            }
            let offset = file.text.floor_char_boundary(offset - file.start) + file.start;
            position = advance(position, &file.text[passed - file.start..offset - file.start]);
            passed = offset;
            Problem { position: Some(position), ..problem }
        };
        problems.into_iter().map(locate).collect()
    }
}

fn is_json(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}

/// Limits the length of a message and replaces control characters, because messages quote text from files.
pub(super) fn sanitize(text: String) -> String {
    if text.len() <= MAX_MESSAGE && !text.contains(char::is_control) {
        return text;
    }
    let replace = |letter: char| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter };
    let ellipsis = if text.chars().nth(MAX_MESSAGE).is_some() { "…" } else { "" };
    text.chars().take(MAX_MESSAGE).map(replace).chain(ellipsis.chars()).collect()
}

/// Returns the line and column of a byte.
pub(super) fn position(text: &str, offset: usize) -> Position {
    advance(Position { line: 1, column: 1 }, text.get(..offset).unwrap_or(text))
}

fn advance(from: Position, passed: &str) -> Position {
    let to_u32 = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    match passed.rsplit_once('\n') {
        None => Position { column: from.column.saturating_add(to_u32(passed.chars().count())), ..from },
        Some((before, last)) => Position {
            line: from.line.saturating_add(to_u32(before.matches('\n').count() + 1)),
            column: to_u32(last.chars().count() + 1),
        },
    }
}

fn absolute_folder(file: &Path) -> PathBuf {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let absolute = || std::path::absolute(parent).unwrap_or_else(|_| parent.to_owned());
    parent.canonicalize().unwrap_or_else(|_| absolute())
}
