//! The public API of each published package, listed in `docs/api`. A change of the API is a change of these files, so that
//! no change goes unnoticed.

use std::collections::{BTreeMap, BTreeSet};

use super::api::{has_attribute, is_public};
use super::pages::assert_page;
use super::{is_test_only, sources};

/// Published packages.
const PACKAGES: [&str; 6] =
    ["toolcrib", "toolcrib-agents", "toolcrib-serve", "toolcrib-testkit", "toolcrib-valkey", "toolcrib-cli"];

const HEADER: &str = "\
# The public API with all features, one item per paragraph. Generated from the sources:
# UPDATE_DOCS=1 cargo test -p test-support --test tidy
";

/// The methods and traits of one type, from all of its `impl` blocks.
#[derive(Default)]
struct TypeMembers {
    functions: BTreeSet<String>,
    traits: BTreeSet<String>,
}

/// The parsed modules of a library by path, and the members of its types by name. A type name is defined once.
#[derive(Default)]
struct Library {
    modules: BTreeMap<Vec<String>, Vec<syn::Item>>,
    members: BTreeMap<String, TypeMembers>,
}

/// Returns the source text of a part of a file on one line.
fn text_of(node: &impl syn::spanned::Spanned) -> String {
    let text = node.span().source_text().unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.replace("( ", "(").replace(", )", ")").replace(",)", ")").replace(", >", ">");
    // A parameter that the function changes is not a part of its interface.
    line.replace("(mut ", "(").replace(", mut ", ", ").trim_end_matches(',').to_owned()
}

/// Returns whether an item is left out of the documentation, or exists only in tests.
fn is_hidden(attributes: &[syn::Attribute]) -> bool {
    let is_doc_hidden = |attribute: &syn::Attribute| {
        attribute.path().is_ident("doc")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("hidden"))
    };
    is_test_only(attributes) || attributes.iter().any(is_doc_hidden)
}

/// Returns the conditions under which an item is compiled, in front of its line.
fn conditions(attributes: &[syn::Attribute]) -> String {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.map(|attribute| format!("{} ", text_of(attribute))).collect()
}

fn derived_traits(attributes: &[syn::Attribute]) -> Vec<String> {
    let mut traits = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("derive")) {
        let parsed = attribute.parse_nested_meta(|derived| {
            traits.extend(derived.path.segments.last().map(|segment| segment.ident.to_string()));
            Ok(())
        });
        parsed.unwrap();
    }
    traits
}

/// Returns the name of an item that has one.
fn name_of(item: &syn::Item) -> Option<&syn::Ident> {
    match item {
        syn::Item::Const(item) => Some(&item.ident),
        syn::Item::Enum(item) => Some(&item.ident),
        syn::Item::Fn(item) => Some(&item.sig.ident),
        syn::Item::Mod(item) => Some(&item.ident),
        syn::Item::Struct(item) => Some(&item.ident),
        syn::Item::Trait(item) => Some(&item.ident),
        syn::Item::Type(item) => Some(&item.ident),
        _ => None,
    }
}

/// One name that a `use` item brings in.
struct Import {
    /// The path as written.
    path: Vec<String>,
    name: String,
}

fn imports(before: &[String], tree: &syn::UseTree) -> Vec<Import> {
    let import = |last: &syn::Ident, name: &syn::Ident| {
        vec![Import { path: [before, &[last.to_string()]].concat(), name: name.to_string() }]
    };
    match tree {
        syn::UseTree::Path(path) => imports(&[before, &[path.ident.to_string()]].concat(), &path.tree),
        syn::UseTree::Name(name) => import(&name.ident, &name.ident),
        syn::UseTree::Rename(renamed) => import(&renamed.ident, &renamed.rename),
        syn::UseTree::Group(group) => group.items.iter().flat_map(|tree| imports(before, tree)).collect(),
        syn::UseTree::Glob(_) => Vec::new(),
    }
}

impl Library {
    /// Parses the sources of a package.
    fn parse(folder: &str) -> Self {
        let src = format!("{folder}/src");
        let mut library = Self::default();
        for source in sources(&[&src]).iter().filter(|source| !source.is_test()) {
            if source.path.ends_with("/main.rs") {
                continue;
            }
            library.add_module(source.module_path(&src), source.parsed().items);
        }
        library
    }

    fn add_module(&mut self, path: Vec<String>, items: Vec<syn::Item>) {
        for item in &items {
            match item {
                syn::Item::Impl(block) if !is_hidden(&block.attrs) => self.add_impl(block),
                syn::Item::Mod(module) if !is_test_only(&module.attrs) => {
                    if let Some((_, inner)) = &module.content {
                        self.add_module([&*path, &[module.ident.to_string()]].concat(), inner.clone());
                    }
                }
                syn::Item::Macro(item) if item.ident.is_none() => self.add_serialized(&item.mac),
                syn::Item::Struct(item) => self.add_derived(&item.ident, &item.attrs),
                syn::Item::Enum(item) => self.add_derived(&item.ident, &item.attrs),
                _ => {}
            }
        }
        self.modules.insert(path, items);
    }

    fn add_derived(&mut self, name: &syn::Ident, attributes: &[syn::Attribute]) {
        self.members.entry(name.to_string()).or_default().traits.extend(derived_traits(attributes));
    }

    /// Adds the traits of the types that `serialize_as!` and `serialize_as_text!` name in front of `=>`.
    fn add_serialized(&mut self, called: &syn::Macro) {
        let traits: &[&str] = match &*text_of(&called.path) {
            "serialize_as" => &["Serialize", "Deserialize"],
            "serialize_as_text" => &["Serialize"],
            _ => return,
        };
        for line in called.tokens.to_string().split(',') {
            let Some((name, _)) = line.split_once("=>") else { continue };
            let members = self.members.entry(name.trim().to_owned()).or_default();
            members.traits.extend(traits.iter().map(ToString::to_string));
        }
    }

    fn add_impl(&mut self, block: &syn::ItemImpl) {
        let syn::Type::Path(self_type) = &*block.self_ty else { return };
        let Some(name) = self_type.path.segments.last() else { return };
        let members = self.members.entry(name.ident.to_string()).or_default();
        if let Some((_, implemented, _)) = &block.trait_ {
            let name = implemented.segments.last().map(text_of);
            members.traits.extend(name.map(|name| name.replace("Deserialize<'de>", "Deserialize")));
            return;
        }
        for item in &block.items {
            let line = match item {
                syn::ImplItem::Fn(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                    format!("{}{}", conditions(&item.attrs), text_of(&item.sig))
                }
                syn::ImplItem::Const(item) if is_public(&item.vis) && !is_hidden(&item.attrs) => {
                    format!("{}const {}: {}", conditions(&item.attrs), item.ident, text_of(&item.ty))
                }
                _ => continue,
            };
            members.functions.insert(line);
        }
    }

    /// Returns the path from the root of this library that a written path leads to, or `None` for another crate's.
    fn resolve(&self, module: &[String], path: &[String]) -> Option<Vec<String>> {
        let mut start = module.to_vec();
        let mut rest = path;
        loop {
            match rest.first().map(String::as_str) {
                Some("crate") => start.clear(),
                Some("self") => {}
                Some("super") => drop(start.pop()),
                _ => break,
            }
            rest = &rest[1..];
        }
        let is_relative = rest.len() == path.len();
        let first = [&*start, &rest[..1]].concat();
        if is_relative && !self.modules.contains_key(&first) {
            return None;
        }
        Some([&*start, rest].concat())
    }

    /// Returns the path that a module imports under a name.
    fn imported(&self, module: &[String], name: &str) -> Option<Vec<String>> {
        let used = self.modules.get(module)?.iter().filter_map(|item| match item {
            syn::Item::Use(used) => Some(imports(&[], &used.tree)),
            _ => None,
        });
        let import = used.flatten().find(|import| import.name == name)?;
        self.resolve(module, &import.path)
    }

    /// Returns the path where a module is defined, through imports under another name.
    fn find_module(&self, path: &[String]) -> Option<Vec<String>> {
        if self.modules.contains_key(path) {
            return Some(path.to_vec());
        }
        let (name, parent) = path.split_last()?;
        self.find_module(&self.imported(&self.find_module(parent)?, name)?)
    }

    /// Returns the definition at a path, through re-exports.
    fn find(&self, path: &[String]) -> Option<&syn::Item> {
        let (name, parent) = path.split_last()?;
        let module = self.find_module(parent)?;
        let defined =
            self.modules[&module].iter().find(|item| name_of(item).is_some_and(|found| found == name));
        match defined {
            Some(item) => Some(item),
            None => self.find(&self.imported(&module, name)?),
        }
    }

    /// Adds a paragraph for each public item of a module, by its public path.
    fn list(&self, module: &[String], public_path: &str, listing: &mut BTreeMap<String, String>) {
        for item in &self.modules[module] {
            if let syn::Item::Use(used) = item
                && is_public(&used.vis)
                && !is_hidden(&used.attrs)
            {
                self.list_imports(module, public_path, used, listing);
            }
            let Some(name) = name_of(item) else { continue };
            let path = format!("{public_path}::{name}");
            match item {
                syn::Item::Mod(inner) if is_public(&inner.vis) && !is_hidden(&inner.attrs) => {
                    listing.insert(path.clone(), format!("{}mod {path}\n", conditions(&inner.attrs)));
                    self.list([module, &[name.to_string()]].concat().as_slice(), &path, listing);
                }
                _ => {
                    if let Some(paragraph) = self.paragraph(item, &path) {
                        listing.insert(path, paragraph);
                    }
                }
            }
        }
    }

    fn list_imports(
        &self,
        module: &[String],
        public_path: &str,
        used: &syn::ItemUse,
        listing: &mut BTreeMap<String, String>,
    ) {
        let written = text_of(used);
        assert!(
            !written.contains('*'),
            "{public_path}: name each item of `{written}`, so that it can be listed"
        );
        for import in imports(&[], &used.tree) {
            let path = format!("{public_path}::{}", import.name);
            let found = self.resolve(module, &import.path).and_then(|target| self.find(&target));
            let paragraph = found.and_then(|item| self.paragraph(item, &path));
            let paragraph = paragraph.unwrap_or_else(|| format!("use {path} = {}\n", import.path.join("::")));
            listing.insert(path, format!("{}{paragraph}", conditions(&used.attrs)));
        }
    }

    /// Returns the lines of an item and its members, or `None` if it is not public.
    fn paragraph(&self, item: &syn::Item, path: &str) -> Option<String> {
        let parts = ItemParts::of(item, path)?;
        if !is_public(parts.visibility) || is_hidden(parts.attributes) {
            return None;
        }
        let mut lines = vec![format!(
            "{}{}{}",
            conditions(parts.attributes),
            exhaustiveness(parts.attributes),
            parts.head
        )];
        let is_type = matches!(item, syn::Item::Struct(_) | syn::Item::Enum(_));
        let members = name_of(item).filter(|_| is_type).and_then(|name| self.members.get(&name.to_string()));
        if let Some(TypeMembers { traits, .. }) = members
            && !traits.is_empty()
        {
            lines.push(format!("impl {}", traits.iter().cloned().collect::<Vec<_>>().join(", ")));
        }
        lines.extend(parts.lines);
        lines.extend(members.into_iter().flat_map(|members| members.functions.iter().cloned()));
        Some(lines.join("\n    ") + "\n")
    }
}

/// The parts of a definition that the listing shows.
struct ItemParts<'a> {
    visibility: &'a syn::Visibility,
    attributes: &'a [syn::Attribute],
    /// The kind of item, its path and its type.
    head: String,
    /// Fields, variants, or the items of a trait.
    lines: Vec<String>,
}

impl<'a> ItemParts<'a> {
    fn of(item: &'a syn::Item, path: &str) -> Option<Self> {
        let parts = |visibility, attributes, head, lines| Self { visibility, attributes, head, lines };
        Some(match item {
            syn::Item::Const(item) => {
                parts(&item.vis, &item.attrs, format!("const {path}: {}", text_of(&item.ty)), Vec::new())
            }
            syn::Item::Fn(item) => {
                let written_name = format!("fn {}", item.sig.ident);
                let head = text_of(&item.sig).replacen(&written_name, &format!("fn {path}"), 1);
                parts(&item.vis, &item.attrs, head, Vec::new())
            }
            syn::Item::Type(item) => {
                let head = format!("type {path}{} = {}", text_of(&item.generics), text_of(&item.ty));
                parts(&item.vis, &item.attrs, head, Vec::new())
            }
            syn::Item::Struct(item) => {
                let head = format!("struct {path}{}", text_of(&item.generics));
                parts(&item.vis, &item.attrs, head, field_lines(&item.fields))
            }
            syn::Item::Enum(item) => {
                let head = format!("enum {path}{}", text_of(&item.generics));
                let lines = item.variants.iter().map(variant_line).collect();
                parts(&item.vis, &item.attrs, head, lines)
            }
            syn::Item::Trait(item) => {
                let bounds: Vec<String> = item.supertraits.iter().map(text_of).collect();
                let separator = if bounds.is_empty() { "" } else { ": " };
                let generics = text_of(&item.generics);
                let head = format!("trait {path}{generics}{separator}{}", bounds.join(" + "));
                parts(&item.vis, &item.attrs, head, item.items.iter().filter_map(trait_line).collect())
            }
            _ => return None,
        })
    }
}

fn exhaustiveness(attributes: &[syn::Attribute]) -> &'static str {
    if has_attribute(attributes, "non_exhaustive") { "#[non_exhaustive] " } else { "" }
}

/// Returns a line for each public field, and one if there are others.
fn field_lines(fields: &syn::Fields) -> Vec<String> {
    let public = fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis));
    let mut lines: Vec<String> = public
        .map(|(number, field)| {
            let name = field.ident.as_ref().map_or_else(|| number.to_string(), ToString::to_string);
            format!(".{name}: {}", text_of(&field.ty))
        })
        .collect();
    if lines.len() < fields.len() {
        lines.push("private fields".to_owned());
    }
    lines
}

fn variant_line(variant: &syn::Variant) -> String {
    let name = format!("{}{}", exhaustiveness(&variant.attrs), variant.ident);
    let types: Vec<String> = variant.fields.iter().map(|field| text_of(&field.ty)).collect();
    let named =
        variant.fields.iter().zip(&types).filter_map(|(field, kind)| Some((field.ident.as_ref()?, kind)));
    let members: Vec<String> = named.map(|(field, kind)| format!("{field}: {kind}")).collect();
    match &variant.fields {
        syn::Fields::Named(_) => format!("{name} {{ {} }}", members.join(", ")),
        syn::Fields::Unnamed(_) => format!("{name}({})", types.join(", ")),
        syn::Fields::Unit => name,
    }
}

fn trait_line(item: &syn::TraitItem) -> Option<String> {
    match item {
        syn::TraitItem::Fn(item) if !is_hidden(&item.attrs) => {
            let provided = if item.default.is_some() { " { … }" } else { "" };
            Some(format!("{}{provided}", text_of(&item.sig)))
        }
        syn::TraitItem::Const(item) => Some(text_of(item)),
        syn::TraitItem::Type(item) => Some(format!("type {}", item.ident)),
        _ => None,
    }
}

#[test]
fn api_listings_match_the_code() {
    for package in PACKAGES {
        let mut listing = BTreeMap::new();
        Library::parse(&format!("crates/{package}")).list(&[], &package.replace('-', "_"), &mut listing);
        let paragraphs: Vec<String> = listing.into_values().collect();
        let page = format!("{HEADER}\n{}", paragraphs.join("\n"));
        assert_page(&format!("docs/api/{package}.txt"), &page);
    }
}
