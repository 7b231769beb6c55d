//! Pages that are generated from the code, and links between pages.

use std::fmt::Write as _;

use toolcrib::ErrorKind;
use toolcrib_cli::Explanation;

use super::{assert_none, root, sources};

/// Compares a page with its generated text, or writes it if `UPDATE_DOCS` is set.
pub(super) fn assert_page(page: &str, expected: &str) {
    let file = root().join(page);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, expected).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let differs = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "{page} is stale; UPDATE_DOCS=1 cargo test -p test-support --test tidy rewrites it\n  first difference: {differs:?}"
    );
}

#[test]
fn errors_page_matches_the_code() {
    let mut page = String::from(
        "# Errors\n\nEvery error that a call can return. This page is generated from `ErrorKind::facts`; do not edit it by hand.\n\n\
         | kind | JSON-RPC code | meaning | whose fault | try again | hint |\n|---|---|---|---|---|---|\n",
    );
    for kind in ErrorKind::ALL {
        let facts = kind.facts();
        let (blame, retry) =
            (format!("{:?}", facts.blame).to_lowercase(), spaced(&format!("{:?}", facts.retry)));
        let hint = toolcrib_cli::hint_text(&kind.default_hint(None));
        writeln!(
            page,
            "| `{}` | {} | {} | {blame} | {retry} | {hint} |",
            facts.name, facts.code, facts.meaning
        )
        .unwrap();
    }
    page.push_str(
        "\nA tool result with `isError` is a result, not an error. The `data` of an error has `kind`, `hint` and `sent`, and\n\
         if known `server`, `class`, `retryAfterMs`, `exit`, `stderr` (the last lines) and `rule`; local callers also get\n\
         its `file` and `line`.\n\n\
         ## Whether a call may have run\n\n`sent` is `never` if no server can have executed the call, and `maybe` if a server may have executed it. A call that was not\n\
         sent is sent once more, to the next process. A call that may have run is not sent again, unless repeating it is safe:\n\
         `tools.idempotent` of its server names the tool, or a server with `trust = \"trusted\"` declares it read-only or\n\
         idempotent. Then it is sent once more. The text of the error says the same.\n\n\
         ## Failure classes\n\nThe `class` of an error, of `status` and of events says what toolcrib does about it. This table is generated from\n\
         `FailureClass::facts`.\n\n| class | meaning | what is done |\n|---|---|---|\n",
    );
    let explanations = || toolcrib_cli::explanations();
    for class in explanations().filter(|explanation| explanation.code.is_none()) {
        let treatment = class.treatment.unwrap_or_default();
        writeln!(page, "| `{}` | {} | {treatment} |", class.name, class.meaning).unwrap();
    }
    page.push_str("\n## Causes and remedies\n\n`toolcrib explain CODE` prints the same.\n");
    for explanation in explanations() {
        let Explanation { name, code, cause, remedy, .. } = explanation;
        let code = code.map(|code| format!(" ({code})")).unwrap_or_default();
        write!(page, "\n### `{name}`{code}\n\n{cause}\n\n{remedy}\n").unwrap();
    }
    assert_page("docs/errors.md", &page);
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

/// Returns the relative links of a page, without anchors and without links to other sites.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with('#'));
    local.map(|target| target.split('#').next().unwrap_or_default()).collect()
}

#[test]
fn links_between_pages_resolve() {
    let mut broken = Vec::new();
    let docs = std::fs::read_dir(root().join("docs")).unwrap().flatten().map(|entry| entry.path());
    let front = [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "RELEASING.md",
        "bench/README.md",
    ];
    let pages = front.map(|page| root().join(page)).into_iter().chain(docs);
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(&page).unwrap();
        let missing = links(&text).into_iter().filter(|link| !page.parent().unwrap().join(link).exists());
        broken.extend(missing.map(|link| format!("{}: {link}", page.display())));
    }
    assert_none("these links lead nowhere", &broken);
}

#[test]
fn tests_named_in_pages_exist() {
    let all = sources(&[
        "crates/toolcrib",
        "crates/toolcrib-agents",
        "crates/toolcrib-serve",
        "crates/toolcrib-cli",
        "e2e/tests",
    ]);
    let exists = |name: &str| all.iter().any(|source| source.text.contains(&format!("fn {name}(")));
    let page = "docs/reliability.md";
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    let named = words.filter(|word| word.matches('_').count() >= 3 && *word == word.to_lowercase());
    let missing: Vec<String> = named.filter(|name| !exists(name)).map(str::to_owned).collect();
    assert_none(&format!("{page} names tests that do not exist"), &missing);
}
