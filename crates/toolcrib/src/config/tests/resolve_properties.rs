//! Properties of resolving that hold for all layers.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::layers::{is_on, layered, test_facts};
use super::*;

/// Generates a layer with valid and invalid scopes and servers.
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
    fn resolving_is_deterministic_and_explained(
        machine in layer(), user in layer(), project in layer(),
    ) {
        let layered = layered(&[(LayerKind::Machine, &machine), (LayerKind::User, &user), (LayerKind::Project, &project)]);
        let config = layered.resolve(&test_facts());
        prop_assert_eq!(&config, &layered.resolve(&test_facts()));
        for spec in config.roster.servers() {
            let header = format!("[servers.{}]", spec.id);
            prop_assert!([&machine, &user, &project].into_iter().any(|text| text.contains(&header)));
            let declared = config.declared.iter().find(|declared| declared.id == spec.id).expect("declared");
            prop_assert_eq!(declared.active, spec.enabled);
        }
        for declared in &config.declared {
            let on = config.roster.get(&declared.id).is_some_and(|spec| spec.enabled);
            prop_assert_eq!(declared.active, on, "reason and roster agree on {}", declared.id);
            prop_assert_eq!(declared.reason.starts_with("on: "), on, "{}", declared.reason);
            for value in layered.server_values(&declared.id) {
                let text = match value.origin.file.to_str().unwrap() {
                    "/etc/toolcrib/config.toml" => &machine,
                    "/home/config.toml" => &user,
                    _ => &project,
                };
                let line = text.lines().nth(value.origin.line as usize - 1).unwrap_or_default();
                prop_assert!(line.contains(value.key.split('.').next().unwrap()), "{}: {line}", value.key);
            }
        }
    }

    #[test]
    fn invalid_server_in_one_layer_does_not_affect_others(
        user in layer(), project in layer(), invalid in select(vec!["typo = 1", "command = 5", "url = 'x'", "run-on = 'nowhere'"]),
    ) {
        let with = format!("{project}[servers.zz]\n{invalid}\n");
        let facts = test_facts();
        let without = layered(&[(LayerKind::User, &user), (LayerKind::Project, &project)]).resolve(&facts);
        let with = layered(&[(LayerKind::User, &user), (LayerKind::Project, &with)]).resolve(&facts);
        prop_assert_eq!(&without.roster, &with.roster);
        prop_assert!(!is_on(&with, "zz"));
    }
}
