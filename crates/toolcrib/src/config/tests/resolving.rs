//! What holds for all layers and wherever we are.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::layers::{draft, here, is_on};
use super::*;

/// Scopes and servers of one layer, good and bad.
fn layer() -> impl Strategy<Value = String> {
    const TAGS: [&str; 4] = ["ta", "tb", "linux", "tc"];
    let tags = || subsequence(TAGS.to_vec(), 0..3).prop_map(|tags| format!("{tags:?}"));
    let scope = (
        select(vec!["sa", "sb"]),
        select(vec!["host = 'still'", "os = 'macos'", "files = '*.py'", "user = 'ann'"]),
        tags(),
    )
        .prop_map(|(name, condition, tags)| {
            format!("[scopes.{name}]\nmatch = {{ {condition} }}\ntags = {tags}\n")
        });
    let when = prop_oneof![
        Just(String::new()),
        tags().prop_map(|tags| format!("when = {tags}\n")),
        (tags(), tags()).prop_map(|(all, not)| format!("when = {{ all = {all}, not = {not} }}\n")),
    ];
    const KEYS: [&str; 6] = [
        "command = 'x'\n",
        "args = ['1']\n",
        "'+args' = ['2']\n",
        "enabled = false\n",
        "typo = 1\n",
        "env = { K = 'v' }\n",
    ];
    let server = (select(vec!["a", "b", "c", "d"]), subsequence(KEYS.to_vec(), 0..4), when)
        .prop_map(|(name, keys, when)| format!("[servers.{name}]\n{}{when}", keys.concat()));
    let once = |tables: Vec<String>| {
        let mut seen = std::collections::BTreeSet::new();
        tables
            .into_iter()
            .filter(|table| seen.insert(table.lines().next().map(str::to_owned)))
            .collect::<String>()
    };
    proptest::collection::vec(prop_oneof![scope, server.clone(), server], 0..7).prop_map(once)
}

proptest! {
    #[test]
    fn resolving_is_deterministic_invents_nothing_and_gives_its_reasons(
        machine in layer(), user in layer(), project in layer(),
    ) {
        let draft = draft(&[(Rank::Machine, &machine), (Rank::User, &user), (Rank::Project, &project)]);
        let config = draft.resolve(&here());
        prop_assert_eq!(&config, &draft.resolve(&here()));
        for spec in config.roster.servers() {
            let header = format!("[servers.{}]", spec.id);
            prop_assert!([&machine, &user, &project].into_iter().any(|text| text.contains(&header)));
            let declared = config.declared.iter().find(|declared| declared.id == spec.id).expect("declared");
            prop_assert_eq!(declared.active, spec.enabled);
        }
        for declared in &config.declared {
            let on = config.roster.get(&declared.id).is_some_and(|spec| spec.enabled);
            prop_assert_eq!(declared.active, on, "why and resolve agree on {}", declared.id);
            prop_assert_eq!(declared.reason.starts_with("on: "), on, "{}", declared.reason);
            for setting in draft.settings(&declared.id) {
                let text = match setting.origin.file.to_str().unwrap() {
                    "/etc/toolcrib/config.toml" => &machine,
                    "/home/config.toml" => &user,
                    _ => &project,
                };
                let line = text.lines().nth(setting.origin.line as usize - 1).unwrap_or_default();
                prop_assert!(line.contains(setting.key.split('.').next().unwrap()), "{}: {line}", setting.key);
            }
        }
    }

    #[test]
    fn a_bad_server_in_one_layer_changes_no_other(
        user in layer(), project in layer(), bad in select(vec!["typo = 1", "command = 5", "url = 'x'", "run-on = 'nowhere'"]),
    ) {
        let with = format!("{project}[servers.zz]\n{bad}\n");
        let facts = here();
        let without = draft(&[(Rank::User, &user), (Rank::Project, &project)]).resolve(&facts);
        let with = draft(&[(Rank::User, &user), (Rank::Project, &with)]).resolve(&facts);
        prop_assert_eq!(&without.roster, &with.roster);
        prop_assert!(!is_on(&with, "zz"));
    }
}
