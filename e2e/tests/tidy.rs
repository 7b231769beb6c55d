//! The house rules that a machine can check: sizes, first lines, edges between modules, words, and generated pages.
//!
//! `UPDATE_DOCS=1 cargo test -p e2e --test tidy` writes the generated pages anew.

#![expect(clippy::unwrap_used, reason = "tests may stop at the first surprise")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use toolcrib::class::Treatment;
use toolcrib::{ErrorKind, FailureClass};

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
const ALLOWED: [(&str, &[&str]); 2] =
    [("wire", &["wire"]), ("config", &["config", "spec", "text", "spelling", "wire::revision"])];

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
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
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
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs") || self.path.starts_with("e2e/")
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
    for source in sources(&["crates/toolcrib/src", "crates/toolcrib-cli/src", "e2e/src"]) {
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

/// Compares a page with what it should be, or writes it when told to.
fn fresh(page: &str, wanted: &str) {
    let file = root().join(page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "{page} is stale; UPDATE_DOCS=1 cargo test -p e2e --test tidy writes it anew\n  first difference: {differs:?}"
    );
}

#[test]
fn the_page_of_errors_is_fresh() {
    let mut page = String::from(
        "# Errors\n\nEvery way a call can fail. This page is generated from `ErrorKind::facts`; do not edit it by hand.\n\n\
         | kind | JSON-RPC code | meaning | whose fault | try again | hint |\n|---|---|---|---|---|---|\n",
    );
    for facts in ErrorKind::ALL.map(ErrorKind::facts) {
        let (blame, retry) =
            (format!("{:?}", facts.blame).to_lowercase(), spaced(&format!("{:?}", facts.retry)));
        let hint = facts.hint.replace("{server}", "SERVER");
        writeln!(
            page,
            "| `{}` | {} | {} | {blame} | {retry} | {hint} |",
            facts.name, facts.code, facts.meaning
        )
        .unwrap();
    }
    page.push_str(
        "\nA tool that says \"error\" (`isError`) is an answer, not an error. The `data` of an error holds `kind`, `hint`,\n\
         `sent`, and where they are known `server`, `class`, `retryAfterMs`, `exit` and `stderr` (the last lines).\n\n\
         ## Can it have run?\n\n`sent` is `never` if no server can have worked on the call, and `maybe` if one may have. A call that was never\n\
         sent is sent to the next process by toolcrib itself, once. One that may have run is not, unless running twice does no\n\
         harm: `tools.idempotent` of its server names it, or a server with `trust = \"trusted\"` calls it read-only or\n\
         idempotent. Then it is made once more. The text of the error says the same: \"it was never sent\", \"it may have run\".\n\n\
         ## What is wrong with the server\n\nThe `class` of an error, of `status` and of events says what is done about it. This table is generated from\n\
         `FailureClass::facts`.\n\n| class | meaning | what is done |\n|---|---|---|\n",
    );
    for facts in FailureClass::ALL.map(FailureClass::facts) {
        let done = match facts.treatment {
            Treatment::Restart => "restarted after a wait that doubles; ejected once the budget is spent",
            Treatment::Eject => "ejected at once, until `toolcrib restart` or a changed entry",
            Treatment::Pause(_) => "calls fail at once for a moment, then the next one tries",
            Treatment::PauseAsTold => "calls fail at once for as long as it said, 60 s at most",
            Treatment::PauseLonger => "calls fail at once for a wait that doubles; never ejected",
        };
        writeln!(page, "| `{}` | {} | {done} |", facts.name, facts.meaning).unwrap();
    }
    fresh("docs/errors.md", &page);
}

/// `if idempotent` for `IfIdempotent`.
fn spaced(name: &str) -> String {
    let spaced: String = name
        .chars()
        .flat_map(|letter| [letter.is_uppercase().then_some(' '), Some(letter)])
        .flatten()
        .collect();
    spaced.trim_start().to_lowercase()
}

#[test]
fn the_code_map_is_fresh() {
    const BEGIN: &str = "<!-- code map: begin -->\n";
    const END: &str = "<!-- code map: end -->";
    let page = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap_or_default();
    let Some((before, rest)) = page.split_once(BEGIN) else { return };
    let (_, after) = rest.split_once(END).unwrap();
    let map = code_map("###", |file| !file.contains('/'));
    fresh("ARCHITECTURE.md", &format!("{before}{BEGIN}{map}\n{END}{after}"));
    let head = "# Every file\n\nWhat each says of itself; `ARCHITECTURE.md` has the picture.\n";
    fresh("docs/code-map.md", &format!("{head}{}", code_map("##", |_| true)));
}

/// A table of files for each package, those that are `shown`.
fn code_map(heading: &str, shown: impl Fn(&str) -> bool) -> String {
    let mut map = String::new();
    for folder in ["crates/toolcrib/src", "crates/toolcrib-cli/src"] {
        write!(map, "\n{heading} `{folder}`\n\n| file | what it is |\n|---|---|\n").unwrap();
        let mut rows: Vec<(String, String)> =
            sources(&[folder]).iter().filter(|source| !source.is_test()).map(row).collect();
        rows.sort();
        let rows = rows.iter().map(|(file, what)| (&file[folder.len() + 1..], what));
        rows.filter(|(file, _)| shown(file))
            .for_each(|(file, what)| writeln!(map, "| `{file}` | {what} |").unwrap());
    }
    map
}

/// A file and the first sentence it says about itself.
fn row(source: &Source) -> (String, String) {
    let words: Vec<&str> = source.text.lines().map_while(|line| line.strip_prefix("//! ")).collect();
    let words = words.join(" ");
    let sentence = words.split_once(". ").map_or(words.as_str(), |(sentence, _)| sentence);
    (source.path.clone(), format!("{}.", sentence.trim_end_matches('.')))
}
