//! Pages that are written from the code: none may say anything else than the code does.

use std::fmt::Write as _;

use toolcrib::class::Treatment;
use toolcrib::{ErrorKind, FailureClass};

use super::{Source, none, root, sources};

/// Compares a page with what it should be, or writes it when told to.
pub(super) fn fresh(page: &str, wanted: &str) {
    let file = root().join(page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, wanted).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "{page} is stale; UPDATE_DOCS=1 cargo test -p test-support --test tidy writes it anew\n  first difference: {differs:?}"
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
         `sent`, and where they are known `server`, `class`, `retryAfterMs`, `exit`, `stderr` (the last lines) and\n\
         `rule`, for whoever is local with its `file` and `line`.\n\n\
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
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let map = code_map("###", |file| !file.contains('/'));
    fresh("ARCHITECTURE.md", &format!("{before}{BEGIN}{map}\n{END}{after}"));
    let head = "# Every file\n\nWhat each says of itself; `ARCHITECTURE.md` has the picture.\n";
    fresh("docs/code-map.md", &format!("{head}{}", code_map("##", |_| true)));
}

/// A table of files for each package, those that are `shown`.
fn code_map(heading: &str, shown: impl Fn(&str) -> bool) -> String {
    let (mut map, folders) = (String::new(), ["crates/toolcrib/src", "crates/toolcrib-cli/src"]);
    for folder in folders {
        write!(map, "\n{heading} `{folder}`\n\n| file | what it is |\n|---|---|\n").unwrap();
        let all = sources(&[folder]);
        let mut rows: Vec<_> = all.iter().filter(|source| !source.is_test()).map(row).collect();
        rows.sort();
        for (file, what) in rows.iter().filter(|(file, _)| shown(&file[folder.len() + 1..])) {
            writeln!(map, "| `{}` | {what} |", &file[folder.len() + 1..]).unwrap();
        }
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

#[test]
fn a_test_that_a_page_names_exists() {
    let all = sources(&["crates/toolcrib", "crates/toolcrib-cli", "e2e/tests"]);
    let exists = |name: &str| all.iter().any(|source| source.text.contains(&format!("fn {name}(")));
    for page in ["docs/behaviours.md", "docs/reliability.md"] {
        let text = std::fs::read_to_string(root().join(page)).unwrap();
        let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
        let named = words.filter(|word| word.matches('_').count() >= 3 && *word == word.to_lowercase());
        let missing: Vec<String> = named.filter(|name| !exists(name)).map(str::to_owned).collect();
        none(&format!("{page} names tests that are not there"), &missing);
    }
}
