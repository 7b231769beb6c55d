//! Properties that hold for every text.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

/// Concatenated pieces of configs, which get past the syntax checks more often than random text.
fn near_config() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "[servers.a]\n",
        "[servers.b.lifecycle]\n",
        "[[servers]]\n",
        "command = ",
        "args = ",
        "env = ",
        "\"x\"",
        "'${env:'",
        "\"\\u0000\"",
        "[",
        "]",
        "{",
        "}",
        "\n",
        ",",
        "=",
        "keep-alive = ",
        "\"5m\"\n",
        "-1",
        "1e9",
        "2025-06-18",
        "é",
        "\u{feff}",
        "\"mcpServers\": ",
        "\"A b\": ",
        "\"command\": ",
        "\"../x\"",
        "null",
        "// c\n",
        "# c\n",
        "\r\n",
        "[limits]\n",
        "body = ",
        "[defaults.limits]\n",
        "in-flight = ",
        "99999999999999999999",
        "inf",
        "a.b.c = ",
        "cwd = ",
    ];
    proptest::collection::vec(select(PIECES), 0..40).prop_map(|pieces| pieces.concat())
}

fn check_invariants(config: &Config) {
    for problem in &config.problems {
        let text = problem.to_string();
        assert!(problem.position.is_some() && problem.hint.is_some(), "{text}");
        assert!(!text.ends_with('.') && !text.contains('\n'), "{text}");
    }
    assert!(config.roster.servers().all(|spec| config.origins.contains_key(&spec.id)));
}

fn valid_server() -> impl Strategy<Value = String> {
    const KEYS: &[&str] = &[
        "args = ['a']\n",
        "lifecycle.start = 'at-boot'\n",
        "limits.in-flight = 2\n",
        "enabled = false\n",
        "cwd = 'x'\n",
    ];
    proptest::sample::subsequence(KEYS, 0..KEYS.len())
        .prop_map(|keys| format!("command = 'c'\n{}", keys.concat()))
}

fn valid_servers() -> impl Strategy<Value = Vec<String>> {
    proptest::collection::btree_map("g[a-z]{1,6}", valid_server(), 0..6).prop_map(|servers| {
        servers.into_iter().map(|(name, keys)| format!("[servers.{name}]\n{keys}")).collect()
    })
}

proptest! {
    #[test]
    fn any_text_is_parsed_deterministically(text in "\\PC{0,80}|[\\s\\S]{0,60}") {
        prop_assert_eq!(toml(&text), toml(&text));
        prop_assert_eq!(json(&text), json(&text));
        check_invariants(&toml(&text));
        check_invariants(&json(&text));
    }

    #[test]
    fn any_near_config_is_parsed_deterministically(text in near_config()) {
        prop_assert_eq!(toml(&text), toml(&text));
        prop_assert_eq!(json(&text), json(&text));
        check_invariants(&toml(&text));
        check_invariants(&json(&text));
    }

    #[test]
    fn invalid_server_does_not_affect_others(
        valid in valid_servers(),
        invalid in select(vec!["", "comand = 'x'\n", "command = 5\n", "command = 'x'\nlifecycle = { start = 1 }\n", "url = 'x'\n"]),
        place in any::<Index>(),
    ) {
        let mut all = valid.clone();
        all.insert(place.index(valid.len() + 1), format!("[servers.bad]\n{invalid}"));
        let without = toml(&valid.concat());
        let with = toml(&all.concat());
        prop_assert_eq!(without.problems.len(), 0);
        prop_assert_eq!(&without.roster, &with.roster);
        prop_assert!(!with.problems.is_empty() && !with.is_refused());
        prop_assert!(with.problems.iter().all(|problem| problem.scope == ProblemScope::Server("bad".to_owned())));
    }

    #[test]
    fn order_of_servers_does_not_matter(
        (sorted, shuffled) in valid_servers().prop_flat_map(|servers| (Just(servers.clone()), Just(servers).prop_shuffle())),
    ) {
        prop_assert_eq!(toml(&sorted.concat()).roster, toml(&shuffled.concat()).roster);
    }
}
