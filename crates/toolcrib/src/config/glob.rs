//! Whether files of certain names are somewhere below a folder: one walk for all globs, bounded in depth and in number.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use super::facts::Fact;
use crate::spec::Pattern;

/// How deep `**` looks, and how many names are looked at in all.
const DEEPEST: usize = 8;
const MOST: usize = 20_000;

/// Folders that hold other people's files.
const FOREIGN: [&str; 2] = [".git", "node_modules"];

/// For each glob, the first file or folder that fits it.
pub(super) fn find(folder: &Path, globs: &BTreeSet<String>) -> BTreeMap<String, Fact<Option<String>>> {
    find_among(folder, globs, MOST)
}

fn find_among(
    folder: &Path,
    globs: &BTreeSet<String>,
    most: usize,
) -> BTreeMap<String, Fact<Option<String>>> {
    let mut found: BTreeMap<String, Fact<Option<String>>> = BTreeMap::new();
    let mut open = Vec::new();
    for glob in globs {
        if glob.contains('*') {
            open.push(Glob::new(glob));
        } else {
            found.insert(glob.clone(), Ok(folder.join(glob).exists().then(|| glob.clone())));
        }
    }
    let mut folders = VecDeque::from([(folder.to_owned(), Vec::<String>::new())]);
    let mut seen = 0;
    while let Some((at, path)) = folders.pop_front() {
        if !open.iter().any(|glob| glob.reaches(path.len())) {
            continue;
        }
        for (name, is_folder) in names(&at) {
            seen += 1;
            if seen > most {
                let why = || format!("there are more than {most} files to look at");
                found.extend(open.iter().map(|glob| (glob.written.clone(), Err(why()))));
                return found;
            }
            let below: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
            open.retain(|glob| {
                let fits = glob.fits(&below);
                if fits {
                    found.insert(glob.written.clone(), Ok(Some(below.join("/"))));
                }
                !fits
            });
            if is_folder && !FOREIGN.contains(&name.as_str()) {
                folders.push_back((at.join(&name), below));
            }
        }
    }
    found.extend(open.into_iter().map(|glob| (glob.written, Ok(None))));
    found
}

/// What is in a folder, by name; a link counts as what it is, not as what it leads to.
fn names(folder: &PathBuf) -> BTreeMap<String, bool> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST + 1);
    let named = |entry: std::fs::DirEntry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        Some((entry.file_name().into_string().ok()?, is_folder))
    };
    entries.filter_map(named).collect()
}

struct Glob {
    written: String,
    /// `None` for `**`.
    parts: Vec<Option<Pattern>>,
}

impl Glob {
    fn new(written: &str) -> Self {
        let part = |part: &str| if part == "**" { None } else { part.parse().ok() };
        let parts = written.split('/').filter(|part| !part.is_empty() && *part != ".").map(part).collect();
        Self { written: written.to_owned(), parts }
    }

    /// Whether something in a folder of this depth can fit.
    fn reaches(&self, depth: usize) -> bool {
        depth < if self.parts.iter().any(Option::is_none) { DEEPEST } else { self.parts.len() }
    }

    fn fits(&self, path: &[String]) -> bool {
        fits(&self.parts, path)
    }
}

fn fits(parts: &[Option<Pattern>], path: &[String]) -> bool {
    match (parts, path) {
        ([], []) => true,
        ([None, rest @ ..], _) => {
            fits(rest, path) || path.split_first().is_some_and(|(_, below)| fits(parts, below))
        }
        ([Some(pattern), rest @ ..], [name, below @ ..]) => pattern.matches(name) && fits(rest, below),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_are_found_by_name_by_star_and_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("src/deep")).unwrap();
        fs::create_dir_all(dir.path().join("node_modules/x")).unwrap();
        for file in ["Cargo.toml", "src/a.rs", "src/deep/b.py", "node_modules/x/c.ts"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        let globs = ["Cargo.toml", "*.toml", "*.rs", "src/*.rs", "**/*.py", "**/*.ts", "no", "src/**"];
        let found = find(dir.path(), &globs.into_iter().map(str::to_owned).collect());
        let first = |glob: &str| found[glob].clone().unwrap();
        assert_eq!(first("Cargo.toml").as_deref(), Some("Cargo.toml"));
        assert_eq!(first("*.toml").as_deref(), Some("Cargo.toml"));
        assert_eq!(first("*.rs"), None);
        assert_eq!(first("src/*.rs").as_deref(), Some("src/a.rs"));
        assert_eq!(first("**/*.py").as_deref(), Some("src/deep/b.py"));
        assert_eq!(first("**/*.ts"), None, "what others put there is not looked at");
        assert_eq!(first("no"), None);
        assert!(first("src/**").is_some());
    }

    #[test]
    fn a_walk_without_end_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        (0..=20).for_each(|n| fs::write(dir.path().join(n.to_string()), "").unwrap());
        let globs = BTreeSet::from(["*.rs".to_owned()]);
        assert!(find_among(dir.path(), &globs, 20)["*.rs"].is_err());
        assert!(find_among(dir.path(), &globs, 21)["*.rs"].is_ok());
    }
}
