//! Checks of the source tree itself: sizes, layers, names, the public API, and generated pages.
//!
//! `UPDATE_DOCS=1 cargo test -p test-support --test tidy` rewrites the generated pages.

#![expect(clippy::unwrap_used, reason = "a test may panic on the first unexpected result")]

mod api;
mod api_listing;
mod keys;
mod layers;
mod names;
mod pages;
mod sizes;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// Folders that hold Rust code of the workspace.
const ALL_SOURCES: [&str; 3] = ["crates", "e2e", "fuzz"];

/// A source file.
struct Source {
    /// Path from the root of the repository.
    path: String,
    text: String,
}

/// Returns the root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
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

/// Reads every Rust file below the folders, ordered by path.
fn sources(folders: &[&str]) -> Vec<Source> {
    let mut paths = BTreeSet::new();
    folders.iter().for_each(|folder| collect(&root().join(folder), &mut paths));
    let read = |path: &PathBuf| Source {
        path: path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned(),
        text: std::fs::read_to_string(path).unwrap(),
    };
    paths.iter().map(read).collect()
}

impl Source {
    fn is_test(&self) -> bool {
        let test_packages = ["e2e/", "fuzz/", "crates/test-support/"];
        self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs")
            || test_packages.iter().any(|package| self.path.starts_with(package))
    }

    fn parsed(&self) -> syn::File {
        syn::parse_file(&self.text).unwrap_or_else(|error| panic!("{}: {error}", self.path))
    }

    /// Returns the module path of the file below `src`: `["protocol", "sse"]` for `src/protocol/sse.rs`.
    fn module_path(&self, src: &str) -> Vec<String> {
        let below = self.path.strip_prefix(src).unwrap().trim_start_matches('/').trim_end_matches(".rs");
        match below {
            "lib" | "main" => Vec::new(),
            path => path.split('/').map(str::to_owned).collect(),
        }
    }
}

/// Fails with every violation, not only the first.
fn assert_none(rule: &str, violations: &[String]) {
    assert!(violations.is_empty(), "{rule}:\n  {}", violations.join("\n  "));
}

/// A path used in a file, as written, and its line.
struct UsedPath {
    segments: Vec<String>,
    line: usize,
}

/// Collects every path that a file uses outside its tests, in `use` items and elsewhere.
#[derive(Default)]
struct UsedPaths {
    found: Vec<UsedPath>,
    /// Names of the inline modules around the current item.
    inside: Vec<String>,
}

impl UsedPaths {
    fn of(source: &Source) -> Vec<UsedPath> {
        let mut paths = Self::default();
        paths.visit_file(&source.parsed());
        paths.found
    }

    fn add_tree(&mut self, before: &[String], tree: &syn::UseTree) {
        match tree {
            syn::UseTree::Path(path) => {
                self.add_tree(&[before, &[path.ident.to_string()]].concat(), &path.tree);
            }
            syn::UseTree::Name(name) => {
                self.add([before, &[name.ident.to_string()]].concat(), name.ident.span());
            }
            syn::UseTree::Rename(name) => {
                self.add([before, &[name.ident.to_string()]].concat(), name.ident.span());
            }
            syn::UseTree::Glob(glob) => self.add(before.to_vec(), glob.star_token.spans[0]),
            syn::UseTree::Group(group) => group.items.iter().for_each(|item| self.add_tree(before, item)),
        }
    }

    /// Notes a path; a `super` that only leaves an inline module is dropped.
    fn add(&mut self, mut segments: Vec<String>, span: proc_macro2::Span) {
        for _ in &self.inside {
            if segments.first().is_some_and(|first| first == "super") {
                segments.remove(0);
            }
        }
        self.found.push(UsedPath { segments, line: span.start().line });
    }
}

fn is_test_only(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl<'ast> Visit<'ast> for UsedPaths {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if !is_test_only(&item.attrs) {
            self.add_tree(&[], &item.tree);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let Some(first) = path.segments.first() {
            let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add(segments, first.ident.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            self.inside.push(module.ident.to_string());
            visit::visit_item_mod(self, module);
            self.inside.pop();
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        if !is_test_only(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test_only(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }
}
