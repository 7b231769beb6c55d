//! Lengths of files, functions and front pages, and the first line of each file.

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::{ALL_SOURCES, assert_none, root, sources};

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 60;

#[test]
fn every_file_starts_with_a_module_comment() {
    let silent = sources(&ALL_SOURCES).into_iter().filter(|source| !source.text.starts_with("//! "));
    assert_none("these do not start with `//! `", &silent.map(|source| source.path).collect::<Vec<_>>());
}

#[test]
fn files_are_at_most_600_lines() {
    let mut long = Vec::new();
    for source in sources(&ALL_SOURCES) {
        let lines = source.text.lines().count();
        if lines > MAX_FILE_LINES {
            long.push(format!("{}: {lines} lines", source.path));
        }
    }
    assert_none(&format!("longer than {MAX_FILE_LINES} lines"), &long);
}

/// Collects functions that are too long.
struct LongFunctions<'a> {
    path: &'a str,
    found: Vec<String>,
}

impl LongFunctions<'_> {
    fn measure(&mut self, name: &syn::Ident, block: &syn::Block) {
        let lines = block.span().end().line + 1 - name.span().start().line;
        if lines > MAX_FUNCTION_LINES {
            self.found.push(format!(
                "{}:{}: `{name}` has {lines} lines",
                self.path,
                name.span().start().line
            ));
        }
    }
}

impl<'ast> Visit<'ast> for LongFunctions<'_> {
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
fn functions_are_at_most_60_lines() {
    let mut long = Vec::new();
    for source in sources(&ALL_SOURCES) {
        let mut functions = LongFunctions { path: &source.path, found: Vec::new() };
        functions.visit_file(&source.parsed());
        long.append(&mut functions.found);
    }
    assert_none(&format!("longer than {MAX_FUNCTION_LINES} lines"), &long);
}

/// Collects parameters that are tuple patterns.
struct TupleParameters<'a> {
    path: &'a str,
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for TupleParameters<'_> {
    fn visit_signature(&mut self, signature: &'ast syn::Signature) {
        for input in &signature.inputs {
            if let syn::FnArg::Typed(typed) = input
                && matches!(*typed.pat, syn::Pat::Tuple(_))
            {
                let line = typed.span().start().line;
                self.found.push(format!("{}:{line}: `{}` takes a tuple apart", self.path, signature.ident));
            }
        }
        visit::visit_signature(self, signature);
    }
}

#[test]
fn functions_take_no_tuple_patterns() {
    let mut found = Vec::new();
    for source in sources(&["crates"]).iter().filter(|source| !source.is_test()) {
        let mut tuples = TupleParameters { path: &source.path, found: Vec::new() };
        tuples.visit_file(&source.parsed());
        found.append(&mut tuples.found);
    }
    assert_none("use a struct with named fields", &found);
}

#[test]
fn front_pages_are_short() {
    for (page, most) in [("README.md", 200), ("ARCHITECTURE.md", 400)] {
        let lines = std::fs::read_to_string(root().join(page)).unwrap().lines().count();
        assert!(lines <= most, "{page} has {lines} lines, at most {most} are allowed");
    }
}
