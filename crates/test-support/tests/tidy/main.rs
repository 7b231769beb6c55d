//! The house rules that a machine can check: sizes, first lines, edges between modules, words, and (in `pages`) generated pages.
//!
//! `UPDATE_DOCS=1 cargo test -p test-support --test tidy` writes the generated pages anew.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

mod keys;
mod pages;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

/// Lines a file may have, and lines a function may have.
const LONGEST_FILE: usize = 400;
const LONGEST_FUNCTION: usize = 60;

/// Files that are one long table. There are none.
const TABLES: [&str; 0] = [];

/// What the modules of the library may not use: whatever is on their left.
const FORBIDDEN: [(&str, &[&str]); 7] = [
    ("connection", &["supervisor", "registry", "stock", "pipeline", "crib", "config"]),
    ("supervisor", &["registry", "stock", "pipeline", "crib", "config"]),
    ("registry", &["stock", "pipeline", "crib", "config"]),
    ("stock", &["pipeline", "crib", "config"]),
    ("pipeline", &["crib", "config"]),
    ("catalog", &["supervisor", "registry", "stock", "pipeline", "crib", "config"]),
    (
        "spec",
        &["connection", "supervisor", "registry", "stock", "pipeline", "crib", "config", "catalog", "call"],
    ),
];

/// All that these modules may use.
const ALLOWED: [(&str, &[&str]); 2] = [
    ("wire", &["wire"]),
    ("config", &["config", "spec", "policy", "quota", "text", "spelling", "wire::revision", "catalog::name"]),
];

/// Who may say how a session begins; the last is a server that only tests talk to.
const HANDSHAKERS: [&str; 3] = [
    "crates/toolcrib/src/wire/dialect",
    "crates/toolcrib-cli/src/frontend/session.rs",
    "crates/toolcrib/src/supervisor/actor/fake.rs",
];

/// A source file.
struct Source {
    /// Its path from the root of the repository.
    path: String,
    text: String,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn collect(dir: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.insert(path);
        }
    }
}

fn sources(folders: &[&str]) -> Vec<Source> {
    let mut paths = BTreeSet::new();
    folders.iter().for_each(|folder| collect(&root().join(folder), &mut paths));
    let read = |path: &PathBuf| Source {
        path: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(),
        text: std::fs::read_to_string(path).unwrap_or_default(),
    };
    paths.iter().map(read).collect()
}

impl Source {
    fn is_test(&self) -> bool {
        let folders = ["e2e/", "crates/test-support/"];
        self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || folders.iter().any(|folder| self.path.starts_with(folder))
    }

    /// The text before the tests at its end.
    fn shipped(&self) -> &str {
        if self.is_test() { "" } else { self.text.split("#[cfg(test)]").next().unwrap_or_default() }
    }

    /// The module of the library it belongs to: `wire` for `crates/toolcrib/src/wire/frame.rs`.
    fn module(&self) -> Option<&str> {
        let below = self.path.strip_prefix("crates/toolcrib/src/")?;
        below.split(['/', '.']).next()
    }

    fn parsed(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }
}

/// Fails with everything that is wrong, not only with the first.
fn none(what: &str, wrong: &[String]) {
    assert!(wrong.is_empty(), "{what}:\n  {}", wrong.join("\n  "));
}

#[test]
fn every_file_says_first_what_it_is_for() {
    let silent =
        sources(&["crates", "e2e", "fuzz"]).into_iter().filter(|source| !source.text.starts_with("//! "));
    none("these do not open with `//! `", &silent.map(|source| source.path).collect::<Vec<_>>());
}

#[test]
fn no_file_is_longer_than_a_reader_can_bear() {
    let mut long = Vec::new();
    for source in sources(&["crates", "e2e", "fuzz"]) {
        let lines = source.text.lines().count();
        if lines > LONGEST_FILE && !TABLES.contains(&source.path.as_str()) {
            long.push(format!("{}: {lines} lines", source.path));
        }
    }
    none(&format!("longer than {LONGEST_FILE} lines"), &long);
}

/// Collects functions that are too long.
struct Functions<'a> {
    path: &'a str,
    long: Vec<String>,
}

impl Functions<'_> {
    fn measure(&mut self, name: &syn::Ident, block: &syn::Block) {
        let lines = block.span().end().line + 1 - name.span().start().line;
        if lines > LONGEST_FUNCTION {
            self.long.push(format!("{}:{}: `{name}` has {lines} lines", self.path, name.span().start().line));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.measure(&function.sig.ident, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.measure(&function.sig.ident, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

#[test]
fn no_function_is_longer_than_a_screen() {
    let mut long = Vec::new();
    for source in sources(&["crates", "e2e", "fuzz"]) {
        let mut functions = Functions { path: &source.path, long: Vec::new() };
        functions.visit_file(&source.parsed());
        long.append(&mut functions.long);
    }
    none(&format!("longer than {LONGEST_FUNCTION} lines"), &long);
}

/// Collects what a file uses of its own crate: `wire::revision` for `crate::wire::revision::Era`.
#[derive(Default)]
struct Uses(Vec<(String, usize)>);

impl Uses {
    fn tree(&mut self, before: &[String], tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => self.tree(&[before, &[path.ident.to_string()]].concat(), &path.tree),
            syn::UseTree::Name(name) => self.note(&[before, &[name.ident.to_string()]].concat(), name.span()),
            syn::UseTree::Rename(name) => {
                self.note(&[before, &[name.ident.to_string()]].concat(), name.span());
            }
            syn::UseTree::Glob(glob) => self.note(before, glob.span()),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.tree(before, item)),
        }
    }

    fn note(&mut self, path: &[String], span: proc_macro2::Span) {
        if let [first, rest @ ..] = path
            && first == "crate"
            && !rest.is_empty()
        {
            self.0.push((rest.join("::"), span.start().line));
        }
    }
}

impl<'ast> Visit<'ast> for Uses {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        self.tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&names, path.span());
        visit::visit_path(self, path);
    }

    /// Tests may look at everything.
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }
}

#[test]
fn edges_between_modules_point_right() {
    let mut wrong = Vec::new();
    let is_in = |path: &str, module: &str| path == module || path.starts_with(&format!("{module}::"));
    for source in sources(&["crates/toolcrib/src"]).iter().filter(|source| !source.is_test()) {
        let mut uses = Uses::default();
        uses.visit_file(&source.parsed());
        let module = source.module().unwrap_or_default();
        for (path, line) in uses.0 {
            let is_bad = |(of, modules): &(&str, &[&str])| {
                *of == module && modules.iter().any(|bad| is_in(&path, bad))
            };
            let is_odd = |(of, modules): &(&str, &[&str])| {
                *of == module && !modules.iter().any(|good| is_in(&path, good))
            };
            if FORBIDDEN.iter().any(is_bad) || ALLOWED.iter().any(is_odd) {
                wrong.push(format!("{}:{line}: `{module}` uses `{path}`", source.path));
            }
        }
    }
    none("these edges point left", &wrong);
}

#[test]
fn the_library_does_not_know_the_program() {
    let knowing =
        sources(&["crates/toolcrib"]).into_iter().filter(|source| source.text.contains("toolcrib_cli"));
    none("these name the program", &knowing.map(|source| source.path).collect::<Vec<_>>());
}

#[test]
fn only_the_dialects_know_how_a_session_begins() {
    let mut wrong = Vec::new();
    for source in sources(&["crates/toolcrib/src", "crates/toolcrib-cli/src"]) {
        if HANDSHAKERS.iter().any(|allowed| source.path.starts_with(allowed)) {
            continue;
        }
        for (number, line) in
            source.shipped().lines().enumerate().filter(|(_, line)| line.contains("initialize"))
        {
            wrong.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
        }
    }
    none("these say `initialize`", &wrong);
}

/// Collects macros that print.
struct Prints<'a>(&'a str, Vec<String>);

impl<'ast> Visit<'ast> for Prints<'_> {
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if let Some(name) = called.path.segments.last().map(|segment| segment.ident.to_string())
            && ["print", "println", "eprint", "eprintln", "dbg"].contains(&name.as_str())
        {
            self.1.push(format!("{}:{}: {name}!", self.0, called.span().start().line));
        }
    }
}

#[test]
fn nobody_prints() {
    let mut wrong = Vec::new();
    for source in
        sources(&["crates/toolcrib/src", "crates/toolcrib-cli/src", "crates/test-support/src", "e2e/src"])
    {
        let mut prints = Prints(&source.path, Vec::new());
        prints.visit_file(&source.parsed());
        wrong.append(&mut prints.1);
    }
    none("these print", &wrong);
}

#[test]
fn comments_cite_no_tickets() {
    let mut wrong = Vec::new();
    for source in sources(&["crates", "e2e", "fuzz"]) {
        for (number, line) in source.text.lines().enumerate() {
            let Some((_, comment)) = line.split_once("//") else { continue };
            let cites =
                comment.split('#').skip(1).any(|rest| rest.starts_with(|first: char| first.is_ascii_digit()));
            if cites {
                wrong.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
            }
        }
    }
    none("these cite a ticket", &wrong);
}

#[test]
fn the_front_pages_are_short() {
    for (page, most) in [("README.md", 150), ("ARCHITECTURE.md", 300)] {
        let lines = std::fs::read_to_string(root().join(page)).unwrap_or_default().lines().count();
        assert!(lines <= most, "{page} has {lines} lines, {most} is the most");
    }
}
