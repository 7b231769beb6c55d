//! Quotas and rate limits.

use super::*;
use crate::limits::{LimitKind, UsageLimit};
use crate::model::caller::Caller;

#[test]
fn limits_are_read_with_pattern_and_origin() {
    let config = toml(
        "[servers.git]\ncommand = 'g'\n[limits]\nidentical-calls = 4\nresults = '2MiB'\n\
         [policy]\nrate = { calls = 2, per = '1s', wait = '5s' }\n[callers.ci]\ntoken = 'x'\n\
         quota = { calls = 9, per = '1h' }\n[callers.ci.limits.'git.push*']\nquota = { calls = 1, per = '30m' }",
    );
    assert_eq!(problem_lines(&config), [""; 0]);
    assert_eq!(
        (config.usage_limits.identical_calls.map(u32::from), config.usage_limits.result_bytes),
        (Some(4), Some(2 << 20))
    );
    let read = |caller: &str| -> Vec<(String, u32, Duration, u32)> {
        let caller = Caller::new(caller);
        let limits = config.usage_limits.limits_for(&caller).map(|(owner, limit)| {
            let kind = limit.kind();
            (limit.config_key(owner), kind.calls().get(), kind.period(), limit.origin().unwrap().line)
        });
        limits.collect()
    };
    let rate = ("policy.rate".to_owned(), 2, Duration::from_secs(1), 7);
    assert_eq!(read("local"), std::slice::from_ref(&rate));
    let quota = "callers.ci.quota".to_owned();
    let pushes = "callers.ci.limits.\"git.push*\".quota".to_owned();
    assert_eq!(
        read("ci"),
        [rate, (quota, 9, Duration::from_secs(3600), 10), (pushes, 1, Duration::from_secs(1800), 12)]
    );
    let waits = |(_, limit): (_, &UsageLimit)| matches!(limit.kind(), LimitKind::Rate { max_wait, .. } if max_wait.as_secs() == 5);
    assert!(config.usage_limits.limits_for(&Caller::local()).all(waits));
}

#[test]
fn limit_problem_refuses_the_config() {
    for (text, message, hint) in [
        (
            "[callers.me]\ntoken = 'x'\nquota = { calls = 0, per = '1h' }",
            "`callers.me.quota.calls` must not be zero",
            "`deny`",
        ),
        ("[policy]\nquota = { calls = 1 }", "`policy.quota` has no `per`", "per = \"1h\""),
        ("[policy]\nrate = { per = '1s' }", "`policy.rate` has no `calls`", "calls = 100"),
        ("[policy]\nrate = { calls = 1, per = '0s' }", "`policy.rate.per` must not be zero", "`\"30s\"`"),
        (
            "[policy]\nrate = { calls = -1, per = '1s' }",
            "`policy.rate.calls` must be a whole number",
            "calls = 5",
        ),
        (
            "[policy]\nrate = { calls = 1.5, per = '1s' }",
            "`policy.rate.calls` must be a whole number",
            "calls = 5",
        ),
        ("[policy]\nquota = 100", "`policy.quota` must be a table, not a number", "quota = { … }"),
        (
            "[policy]\nquota = { calls = 1, per = '1h', wait = '1s' }",
            "unknown key `policy.quota.wait`",
            "`calls`, `per`",
        ),
        (
            "[policy]\nquota = { calls = 1, per = '1h', burst = 2 }",
            "unknown key `policy.quota.burst`",
            "`calls`, `per`",
        ),
        ("[policy.limits.git]\nquota = { calls = 1, per = '1h' }", "invalid pattern `git`", "`SERVER.NAME`"),
        (
            "[policy.limits.'*']\nquota = { calls = 1, per = '1h' }",
            "a limit for `*` needs no pattern",
            "without a pattern",
        ),
        ("[policy.limits.'git.*']", "`git.*` has neither `quota` nor `rate`", "remove the table"),
        (
            "[limits]\nidentical-calls = 0",
            "`limits.identical-calls` must be a whole number from 1",
            "`identical-calls = 5`",
        ),
        ("[limits]\nresults = '0B'", "`limits.results` must not be zero", "MiB"),
        ("[limits]\nresults = 5", "`limits.results` must be a size", "\"5MiB\""),
    ] {
        let config = toml(text);
        assert_eq!(config.problems.len(), 1, "{text}: {:?}", problem_lines(&config));
        assert!(config.is_refused(), "{text}");
        let problem = &config.problems[0];
        assert!(problem.message.contains(message), "{text}: {}", problem.message);
        assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{text}: {:?}", problem.hint);
    }
}

#[test]
fn limit_without_effect_is_a_note() {
    let notes = |text: &str| {
        let config = toml(&format!("[servers.git]\ncommand = 'g'\n{text}"));
        assert!(
            !config.is_refused() && config.problems.iter().all(|problem| problem.scope == ProblemScope::Note)
        );
        config
            .problems
            .iter()
            .map(|problem| (problem.position.map(|position| position.line), problem.message.clone()))
            .collect::<Vec<_>>()
    };
    let rows = [
        (
            "quota = { calls = 10, per = '1h' }\nrate = { calls = 20, per = '1s' }",
            "`policy.rate` has no effect",
        ),
        (
            "quota = { calls = 100, per = '1s' }\nrate = { calls = 5, per = '1s' }",
            "`policy.quota` has no effect",
        ),
        (
            "quota = { calls = 10, per = '1h' }\nlimits = { 'git.*' = { quota = { calls = 240, per = '24h' } } }",
            "`policy.limits.\"git.*\".quota` has no effect: `policy.quota` (10 calls per 1h) is always reached first",
        ),
    ];
    for (keys, message) in rows {
        let notes = notes(&format!("[policy]\n{keys}"));
        assert!(matches!(&notes[..], [(Some(4 | 5), note)] if note.contains(message)), "{keys}: {notes:?}");
    }
    let without_notes = "[policy]\nquota = { calls = 1000, per = '1h' }\nrate = { calls = 20, per = '1s' }\n\
        limits = { 'git.push' = { quota = { calls = 5, per = '1h' } } }\n\
        [callers.ci]\ntoken = 'x'\nquota = { calls = 500, per = '1h' }";
    assert_eq!(notes(without_notes), []);
    // Limits for everyone apply to a caller too.
    let shadowed = notes(
        "[policy]\nquota = { calls = 10, per = '1h' }\n[callers.ci]\ntoken = 'x'\nquota = { calls = 20, per = '1h' }",
    );
    assert_eq!(
        shadowed,
        [(
            Some(7),
            "`callers.ci.quota` has no effect: `policy.quota` (10 calls per 1h) is always reached first"
                .to_owned()
        )]
    );
    let undeclared = notes("[policy.limits.'gut.*']\nquota = { calls = 10, per = '1h' }");
    assert!(undeclared[0].1.contains("`gut.*` has no effect: no server `gut` is declared"), "{undeclared:?}");
}

#[test]
fn store_is_read_with_its_defaults_and_problems() {
    let config = toml("[store]\nurl = 'valkey://h'\nkey = '${secret:k}'\nlimit-lease = 20\ntimeout = '1s'");
    assert_eq!(problem_lines(&config), [""; 0]);
    let store = &config.store;
    assert_eq!(store.url.as_ref().unwrap().source(), "valkey://h");
    assert_eq!(
        (store.prefix.as_str(), store.limit_lease.get(), store.timeout),
        ("toolcrib", 20, Duration::from_secs(1))
    );
    let moved =
        toml("\n\n[store]\nurl = 'valkey://h'\nkey = '${secret:k}'\nlimit-lease = 20\ntimeout = '1s'");
    assert!(store.is_same(&moved.store) && !store.is_same(&StoreSpec::default()));
    for (text, expected) in [
        ("prefix = 'x'", "`store.prefix` requires `store.url`"),
        ("url = 'valkey://h'\nkey = 'k'\nprefix = 'a b'", "`store.prefix` cannot be `a b`"),
        ("url = 'valkey://h'", "each gateway signs with a key of its own"),
    ] {
        let config = toml(&format!("[store]\n{text}"));
        assert!(
            config.problems.iter().any(|problem| problem.message.contains(expected)),
            "{:?}",
            config.problems
        );
    }
}
