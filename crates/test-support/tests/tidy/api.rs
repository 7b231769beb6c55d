//! The public API of the published libraries, and what no code may do.

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};

use super::{Source, assert_none, is_test_only, sources};

/// Crates whose public items are an API that others build on.
const LIBRARIES: [&str; 5] = [
    "crates/toolcrib/src",
    "crates/toolcrib-agents/src",
    "crates/toolcrib-serve/src",
    "crates/toolcrib-testkit/src",
    "crates/toolcrib-valkey/src",
];

/// Enums of hidden modules that the root does not export. Only the gateway matches on them, and must handle every case.
const INTERNAL_ENUMS: [&str; 6] =
    ["ClientMessage", "DeclaredEra", "FileMode", "Frame", "ProbeOutcome", "ServerMessage"];

/// The places that may name the method `initialize`: the rules of the eras, the gateway's sessions, servers for tests.
const HANDSHAKE_PLACES: [&str; 4] = [
    "crates/toolcrib/src/protocol/era",
    "crates/toolcrib-serve/src/session.rs",
    "crates/toolcrib/src/supervisor/actor/fake.rs",
    "crates/toolcrib-testkit/src/instance.rs",
];

/// Collects public items that break a rule of the API.
struct ApiItems<'a> {
    source: &'a Source,
    undocumented: Vec<String>,
    exhaustive: Vec<String>,
}

pub(super) fn has_attribute(attributes: &[syn::Attribute], name: &str) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident(name))
}

pub(super) fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

impl ApiItems<'_> {
    fn check_docs(&mut self, visibility: &syn::Visibility, attributes: &[syn::Attribute], name: &syn::Ident) {
        if is_public(visibility) && !has_attribute(attributes, "doc") {
            self.undocumented.push(format!("{}:{}: `{name}`", self.source.path, name.span().start().line));
        }
    }
}

impl<'ast> Visit<'ast> for ApiItems<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.check_docs(&item.vis, &item.attrs, &item.ident);
        if is_public(&item.vis) {
            for field in &item.fields {
                if let Some(name) = &field.ident {
                    self.check_docs(&field.vis, &field.attrs, name);
                }
            }
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.check_docs(&item.vis, &item.attrs, &item.ident);
        let is_internal = INTERNAL_ENUMS.contains(&item.ident.to_string().as_str());
        if is_public(&item.vis) && !is_internal && !has_attribute(&item.attrs, "non_exhaustive") {
            self.exhaustive.push(format!(
                "{}:{}: `{}`",
                self.source.path,
                item.span().start().line,
                item.ident
            ));
        }
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.check_docs(&item.vis, &item.attrs, &item.ident);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.check_docs(&item.vis, &item.attrs, &item.sig.ident);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.check_docs(&item.vis, &item.attrs, &item.ident);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.check_docs(&item.vis, &item.attrs, &item.sig.ident);
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_test_only(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }
}

fn api_items(mut report: impl FnMut(ApiItems<'_>)) {
    for source in sources(&LIBRARIES).iter().filter(|source| !source.is_test()) {
        let mut items = ApiItems { source, undocumented: Vec::new(), exhaustive: Vec::new() };
        items.visit_file(&source.parsed());
        report(items);
    }
}

#[test]
fn public_items_have_docs() {
    let mut wrong = Vec::new();
    api_items(|mut items| wrong.append(&mut items.undocumented));
    assert_none("public items without a doc comment", &wrong);
}

#[test]
fn public_enums_are_non_exhaustive() {
    let mut wrong = Vec::new();
    api_items(|mut items| wrong.append(&mut items.exhaustive));
    assert_none("public enums without `#[non_exhaustive]`", &wrong);
}

#[test]
fn only_era_code_names_initialize() {
    let mut wrong = Vec::new();
    for source in sources(&["crates"]).iter().filter(|source| !source.is_test()) {
        let is_shipped = source.path.contains("/src/");
        if !is_shipped || HANDSHAKE_PLACES.iter().any(|place| source.path.starts_with(place)) {
            continue;
        }
        let shipped = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (number, line) in shipped.lines().enumerate().filter(|(_, line)| line.contains("\"initialize\""))
        {
            wrong.push(format!("{}:{}: {}", source.path, number + 1, line.trim()));
        }
    }
    assert_none("these name the method `initialize`", &wrong);
}

/// Collects macros that print.
struct PrintMacros<'a> {
    path: &'a str,
    found: Vec<String>,
}

impl<'ast> Visit<'ast> for PrintMacros<'_> {
    fn visit_macro(&mut self, called: &'ast syn::Macro) {
        if let Some(name) = called.path.segments.last().map(|segment| segment.ident.to_string())
            && ["print", "println", "eprint", "eprintln", "dbg"].contains(&name.as_str())
        {
            self.found.push(format!("{}:{}: {name}!", self.path, called.span().start().line));
        }
    }
}

#[test]
fn no_code_prints_directly() {
    let mut wrong = Vec::new();
    for source in sources(&["crates", "e2e/src"]) {
        let is_example = source.path.contains("/examples/") || source.path.contains("/benches/");
        // A build script tells Cargo what it depends on by printing it.
        let is_build_script = source.path.ends_with("/build.rs");
        if is_example || is_build_script || source.path.contains("/tests/") {
            continue;
        }
        let mut prints = PrintMacros { path: &source.path, found: Vec::new() };
        prints.visit_file(&source.parsed());
        wrong.append(&mut prints.found);
    }
    assert_none("these print", &wrong);
}
