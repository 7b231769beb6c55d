//! Looks for files that match globs below a folder: one walk for all globs, bounded in depth and number of entries.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;

use super::facts::Fact;
use crate::spec::NamePattern;
use crate::util::maps::collect_map;

/// Deepest folder that `**` reaches.
const MAX_DEPTH: usize = 8;
/// Number of directory entries after which a walk is aborted.
const MAX_ENTRIES: usize = 20_000;

/// Folders whose contents are not the project's own.
const SKIPPED_FOLDERS: [&str; 2] = [".git", "node_modules"];

/// Returns the first file or folder that matches each glob.
pub(super) fn find(folder: &Path, globs: &BTreeSet<String>) -> BTreeMap<String, Fact<Option<String>>> {
    find_bounded(folder, globs, MAX_ENTRIES)
}

fn find_bounded(
    root: &Path,
    globs: &BTreeSet<String>,
    max_entries: usize,
) -> BTreeMap<String, Fact<Option<String>>> {
    let mut found: BTreeMap<String, Fact<Option<String>>> = BTreeMap::new();
    let mut unmatched = Vec::new();
    for glob in globs {
        if glob.contains('*') {
            unmatched.push(Glob::new(glob));
        } else {
            found.insert(glob.clone(), Ok(root.join(glob).exists().then(|| glob.clone())));
        }
    }
    let mut folders = VecDeque::from([(root.to_owned(), Vec::<String>::new())]);
    let mut visited = 0;
    while let Some((folder, path)) = folders.pop_front() {
        if !unmatched.iter().any(|glob| glob.reaches(path.len())) {
            continue;
        }
        for (name, is_folder) in list_folder(&folder) {
            visited += 1;
            if visited > max_entries {
                let error = || format!("more than {max_entries} files to search");
                found.extend(unmatched.iter().map(|glob| (glob.text.clone(), Err(error()))));
                return found;
            }
            let path: Vec<String> = path.iter().cloned().chain([name.clone()]).collect();
            unmatched.retain(|glob| {
                let matches = glob.matches(&path);
                if matches {
                    found.insert(glob.text.clone(), Ok(Some(path.join("/"))));
                }
                !matches
            });
            if is_folder && !SKIPPED_FOLDERS.contains(&name.as_str()) {
                folders.push_back((folder.join(&name), path));
            }
        }
    }
    found.extend(unmatched.into_iter().map(|glob| (glob.text, Ok(None))));
    found
}

/// Returns the names in a folder and whether each is a folder. Symbolic links are not followed.
fn list_folder(folder: &Path) -> BTreeMap<String, bool> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MAX_ENTRIES + 1);
    let describe = |entry: std::fs::DirEntry| {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        Some((entry.file_name().into_string().ok()?, is_folder))
    };
    collect_map(entries.filter_map(describe))
}

struct Glob {
    text: String,
    /// Path segments; `None` for `**`.
    segments: Vec<Option<NamePattern>>,
}

impl Glob {
    fn new(text: &str) -> Self {
        let parse = |segment: &str| if segment == "**" { None } else { segment.parse().ok() };
        let is_name = |segment: &&str| !segment.is_empty() && *segment != ".";
        let segments = text.split('/').filter(is_name).map(parse).collect();
        Self { text: text.to_owned(), segments }
    }

    /// Returns whether an entry of a folder at this depth can match.
    fn reaches(&self, depth: usize) -> bool {
        let is_recursive = self.segments.iter().any(Option::is_none);
        depth < if is_recursive { MAX_DEPTH } else { self.segments.len() }
    }

    fn matches(&self, path: &[String]) -> bool {
        matches(&self.segments, path)
    }
}

fn matches(segments: &[Option<NamePattern>], path: &[String]) -> bool {
    match (segments, path) {
        ([], []) => true,
        ([None, rest @ ..], _) => {
            matches(rest, path) || path.split_first().is_some_and(|(_, below)| matches(segments, below))
        }
        ([Some(pattern), rest @ ..], [name, below @ ..]) => pattern.matches(name) && matches(rest, below),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn globs_match_by_name_by_star_and_at_any_depth() {
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
        assert_eq!(first("**/*.ts"), None, "`node_modules` is skipped");
        assert_eq!(first("no"), None);
        assert!(first("src/**").is_some());
    }

    #[test]
    fn walk_over_the_entry_limit_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        (0..=20).for_each(|n| fs::write(dir.path().join(n.to_string()), "").unwrap());
        let globs = BTreeSet::from(["*.rs".to_owned()]);
        assert!(find_bounded(dir.path(), &globs, 20)["*.rs"].is_err());
        assert!(find_bounded(dir.path(), &globs, 21)["*.rs"].is_ok());
    }
}
