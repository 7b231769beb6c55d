//! Verifies the hash chain of an audit file and of the files it was rotated to.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::chain::{self, Link, LinkVerifier};
use super::file::{is_at, numbered_path};

/// An intact chain.
#[derive(Debug, Default)]
pub(crate) struct IntactChain {
    /// The number of files, including rotated ones.
    pub(crate) files: usize,
    /// The number of lines that are links of the chain.
    pub(crate) lines: u64,
    /// The number of lines without a link: those of an earlier version, and incomplete ones.
    pub(crate) unchained: u64,
    /// The first link of the oldest file continues this one, whose file was removed.
    pub(crate) continues: Option<Link>,
    /// The last link. A copy of it shows later whether lines at the end were removed.
    pub(crate) last: Option<Link>,
}

impl IntactChain {
    /// Returns the object of `audit verify --json`.
    pub(crate) fn to_json(&self, file: &Path) -> Value {
        json!({
            "file": file.display().to_string(),
            "intact": true,
            "files": self.files,
            "lines": self.lines,
            "unchained": self.unchained,
            "continues": self.continues.map(|link| link.to_string()),
            "last": self.last.map(|link| link.to_string()),
        })
    }
}

/// The place where a chain is broken.
#[derive(Debug)]
pub(crate) struct BrokenChain {
    pub(crate) file: PathBuf,
    /// The number of the line, from 1.
    pub(crate) line: u64,
    pub(crate) reason: &'static str,
}

/// The result of a verification.
pub(crate) type Verification = Result<IntactChain, BrokenChain>;

/// An open audit file, and how much of it was there when all files were opened.
struct OpenedFile {
    path: PathBuf,
    file: File,
    size: u64,
}

/// Verifies an audit file and the files it was rotated to, oldest first.
///
/// # Errors
/// If a file cannot be read.
pub(crate) fn verify(path: &Path) -> io::Result<Verification> {
    let mut chain = IntactChain::default();
    for OpenedFile { path, file, size } in open_files(path)? {
        let mut reader = BufReader::new(file.take(size));
        let mut verifier = FileVerifier::new(&mut chain);
        if let Err(reason) = verifier.read_lines(&mut reader)? {
            return Ok(Err(BrokenChain { file: path, line: verifier.line_number, reason }));
        }
    }
    Ok(Ok(chain))
}

/// Opens the current file and all rotated ones while no other process can rotate them.
fn open_files(path: &Path) -> io::Result<Vec<OpenedFile>> {
    let mut current = open_shared(path)?;
    // It may have been rotated before it was locked.
    while !is_at(&current, path) {
        current = open_shared(path)?;
    }
    let mut files = vec![OpenedFile::new(path.to_owned(), current)?];
    for number in 1.. {
        let path = numbered_path(path, number);
        match File::open(&path) {
            Ok(file) => files.push(OpenedFile::new(path, file)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        }
    }
    if let Some(current) = files.first() {
        current.file.unlock()?;
    }
    files.reverse();
    Ok(files)
}

fn open_shared(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    file.lock_shared()?;
    Ok(file)
}

impl OpenedFile {
    fn new(path: PathBuf, file: File) -> io::Result<Self> {
        let size = file.metadata()?.len();
        Ok(Self { path, file, size })
    }
}

/// Compares the links of one file.
struct FileVerifier<'a> {
    chain: &'a mut IntactChain,
    links: LinkVerifier,
    line_number: u64,
    /// Whole lines since the last link.
    uncovered: u64,
}

impl<'a> FileVerifier<'a> {
    fn new(chain: &'a mut IntactChain) -> Self {
        chain.files += 1;
        Self { chain, links: LinkVerifier::after(None), line_number: 0, uncovered: 0 }
    }

    /// Reads a whole file. The inner error is the reason why the chain is broken at the current line.
    fn read_lines(&mut self, reader: &mut impl BufRead) -> io::Result<Result<(), &'static str>> {
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            self.line_number += 1;
            if let Err(reason) = self.read_line(&line) {
                return Ok(Err(reason));
            }
            line.clear();
        }
        // Lines of an earlier version have no links at all.
        let is_broken = self.uncovered > 0 && self.chain.last.is_some();
        self.chain.unchained += self.uncovered;
        Ok(if is_broken { Err("it has no link") } else { Ok(()) })
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), &'static str> {
        let Some((members, link)) = chain::split_link(line) else {
            self.links.update(line);
            // The line that a killed writer left incomplete is the last one.
            let is_whole = line.ends_with(b"\n");
            self.uncovered += u64::from(is_whole);
            self.chain.unchained += u64::from(!is_whole);
            return Ok(());
        };
        if self.line_number == 1 {
            self.begin_after(previous_link(line))?;
        }
        let links = std::mem::replace(&mut self.links, LinkVerifier::after(Some(link)));
        if !links.verify(members, link) {
            return Err("its link does not match the lines up to it");
        }
        self.chain.last = Some(link);
        self.chain.lines += 1;
        self.chain.unchained += std::mem::take(&mut self.uncovered);
        Ok(())
    }

    /// Begins a file whose first line continues the link `previous` of another file.
    fn begin_after(&mut self, previous: Option<Link>) -> Result<(), &'static str> {
        if self.chain.files == 1 {
            self.chain.continues = previous;
        } else if previous != self.chain.last {
            return Err("it does not continue the file before");
        }
        self.links = LinkVerifier::after(previous);
        Ok(())
    }
}

/// Returns the link of another file that the first line of a file continues.
fn previous_link(line: &[u8]) -> Option<Link> {
    let line: Value = serde_json::from_slice(line).ok()?;
    Link::parse(line.get("previous")?.as_str()?.as_bytes())
}
