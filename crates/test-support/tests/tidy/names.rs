//! Names and words: every type name is defined once, and banned words appear nowhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

use super::{ALL_SOURCES, assert_none, is_test_only, root, sources};

/// Type names that several modules may define.
const ALLOWED_TWICE: [&str; 5] = ["Error", "State", "Inner", "Builder", "Args"];

/// Banned words and identifiers; see the head of that file.
const BANNED_WORDS: &str = "crates/test-support/tests/tidy/banned_words.txt";

/// Files whose words are not ours to choose: licences, generated lock files, history, and the list itself.
const UNCHECKED: [&str; 5] = ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md", "Cargo.lock", BANNED_WORDS];

/// Folders with data of tests.
const TEST_DATA: [&str; 2] = ["/fixtures/", "/golden/"];

/// Collects the types that a file defines outside its tests.
#[derive(Default)]
struct DefinedTypes {
    names: Vec<String>,
}

impl<'ast> Visit<'ast> for DefinedTypes {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.names.push(item.ident.to_string());
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }
}

#[test]
fn type_names_are_defined_once() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in sources(&["crates"]).iter().filter(|source| !source.is_test()) {
        // The same types for other operating systems.
        if source.path.ends_with("/without_shim.rs") || source.path.ends_with("/windows.rs") {
            continue;
        }
        let mut types = DefinedTypes::default();
        types.visit_file(&source.parsed());
        for name in types.names {
            places.entry(name).or_default().push(source.path.clone());
        }
    }
    let twice: Vec<String> = places
        .iter()
        .filter(|(name, files)| files.len() > 1 && !ALLOWED_TWICE.contains(&name.as_str()))
        .map(|(name, files)| format!("{name}: {}", files.join(", ")))
        .collect();
    assert_none("these type names are defined more than once", &twice);
}

/// The contents of `banned_words.txt`.
#[derive(Default)]
struct Banned {
    /// Lower-case words and phrases that stand in no text.
    words: Vec<String>,
    /// Identifiers that no code defines or uses.
    identifiers: Vec<String>,
}

fn banned() -> Banned {
    let mut banned = Banned::default();
    let text = std::fs::read_to_string(root().join(BANNED_WORDS)).unwrap();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split_once(": ") {
            Some(("word", word)) => banned.words.push(word.to_lowercase()),
            Some(("identifier", identifier)) => banned.identifiers.push(identifier.to_owned()),
            _ => panic!("{BANNED_WORDS}: `{line}` is neither `word: …` nor `identifier: …`"),
        }
    }
    banned
}

/// Returns a line in lower case with the words of its identifiers apart: `snake_case` and `CamelCase` become two words.
fn split_identifiers(line: &str) -> String {
    let mut words = String::with_capacity(line.len());
    let mut was_lower = false;
    for letter in line.chars() {
        if letter.is_uppercase() && was_lower {
            words.push(' ');
        }
        was_lower = letter.is_lowercase();
        words.extend(if letter == '_' { ' ' } else { letter }.to_lowercase());
    }
    words
}

/// Returns whether the text contains the word with no letter, digit or underscore on either side.
fn contains_word(text: &str, word: &str) -> bool {
    let is_boundary =
        |letter: Option<char>| !letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    text.match_indices(word).any(|(start, _)| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        is_boundary(before) && is_boundary(after)
    })
}

/// The text files of the repository below a folder, with paths from the root.
fn text_files(dir: &Path, found: &mut Vec<PathBuf>) {
    const EXTENSIONS: [&str; 8] = ["rs", "md", "toml", "py", "json", "sh", "txt", ""];
    const SKIPPED: [&str; 8] =
        ["target", ".git", "node_modules", "corpus", "artifacts", "results", "scratch", "site-packages"];
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                text_files(&path, found);
            }
        } else if EXTENSIONS.contains(&path.extension().unwrap_or_default().to_str().unwrap_or_default()) {
            found.push(path);
        }
    }
}

#[test]
fn texts_contain_no_banned_words() {
    let banned = banned();
    let mut files = Vec::new();
    text_files(&root(), &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let path = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let is_data = TEST_DATA.iter().any(|folder| path.contains(folder));
        if is_data || UNCHECKED.contains(&path.as_str()) {
            continue;
        }
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        for (number, line) in text.lines().enumerate() {
            let line = split_identifiers(line);
            for word in banned.words.iter().filter(|word| contains_word(&line, word)) {
                wrong.push(format!("{path}:{}: \"{word}\"", number + 1));
            }
        }
    }
    assert_none(&format!("words of {BANNED_WORDS}"), &wrong);
}

#[test]
fn code_uses_no_banned_identifiers() {
    let banned = banned();
    let mut wrong = Vec::new();
    for source in sources(&ALL_SOURCES) {
        for (number, line) in source.text.lines().enumerate() {
            for identifier in banned.identifiers.iter().filter(|identifier| contains_word(line, identifier)) {
                wrong.push(format!("{}:{}: `{identifier}`", source.path, number + 1));
            }
        }
    }
    assert_none(&format!("identifiers of {BANNED_WORDS}"), &wrong);
}

#[test]
fn comments_cite_no_tickets() {
    let mut wrong = Vec::new();
    for source in sources(&ALL_SOURCES) {
        for (number, line) in source.text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            let cites =
                comment.split('#').skip(1).any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
            if cites {
                wrong.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    assert_none("these cite a ticket", &wrong);
}
