//! Limits on what callers and clients may use: read, refused, and mentioned.

use super::*;
use crate::quota::{Limit, Share};

#[test]
fn limits_are_read_with_their_patterns_and_places() {
    let config = toml(
        "[servers.git]\ncommand = 'g'\n[limits]\nidentical-calls = 4\nresults = '2MiB'\n\
         [policy]\nrate = { calls = 2, per = '1s', wait = '5s' }\n[callers.ci]\ntoken = 'x'\n\
         quota = { calls = 9, per = '1h' }\n[callers.ci.limits.'git.push*']\nquota = { calls = 1, per = '30m' }",
    );
    assert_eq!(lines(&config), [""; 0]);
    assert_eq!((config.quota.identical_calls.map(u32::from), config.quota.results), (Some(4), Some(2 << 20)));
    let read = |caller: &str| -> Vec<(String, u32, Duration, u32)> {
        let limits = config.quota.of(caller).map(|(owner, limit)| {
            let ((calls, per), line) = (limit.share().measure(), limit.origin().unwrap().line);
            (limit.name(owner), calls.get(), per, line)
        });
        limits.collect()
    };
    let rate = ("policy.rate".to_owned(), 2, Duration::from_secs(1), 7);
    assert_eq!(read("local"), std::slice::from_ref(&rate));
    let (quota, pushes) = ("callers.ci.quota".to_owned(), "callers.ci.limits.\"git.push*\".quota".to_owned());
    assert_eq!(
        read("ci"),
        [rate, (quota, 9, Duration::from_secs(3600), 10), (pushes, 1, Duration::from_secs(1800), 12)]
    );
    let waits =
        |(_, limit): (_, &Limit)| matches!(limit.share(), Share::Rate { wait, .. } if wait.as_secs() == 5);
    assert!(config.quota.of("local").all(waits));
}

#[test]
fn a_mistake_in_a_limit_refuses_the_file() {
    for (text, message, hint) in [
        (
            "[callers.me]\ntoken = 'x'\nquota = { calls = 0, per = '1h' }",
            "`callers.me.quota.calls` is zero, which would let nothing through",
            "`deny`",
        ),
        ("[policy]\nquota = { calls = 1 }", "`policy.quota` has no `per`", "per = \"1h\""),
        ("[policy]\nrate = { per = '1s' }", "`policy.rate` has no `calls`", "calls = 100"),
        ("[policy]\nrate = { calls = 1, per = '0s' }", "`policy.rate.per` may not be zero", "`\"30s\"`"),
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
            "no key `policy.quota.wait`",
            "`calls`, `per`",
        ),
        (
            "[policy]\nquota = { calls = 1, per = '1h', burst = 2 }",
            "no key `policy.quota.burst`",
            "`calls`, `per`",
        ),
        ("[policy.limits.git]\nquota = { calls = 1, per = '1h' }", "`git` is no pattern", "`SERVER.NAME`"),
        ("[policy.limits.'*']\nquota = { calls = 1, per = '1h' }", "`*` is everything", "without a pattern"),
        ("[policy.limits.'git.*']", "`git.*` has neither `quota` nor `rate`", "leave it out"),
        (
            "[limits]\nidentical-calls = 0",
            "`limits.identical-calls` must be a whole number from 1",
            "`identical-calls = 5`",
        ),
        ("[limits]\nresults = '0B'", "`limits.results` may not be zero", "MiB"),
        ("[limits]\nresults = 5", "`limits.results` must be a size", "\"5MiB\""),
    ] {
        let config = toml(text);
        assert_eq!(config.problems.len(), 1, "{text}: {:?}", lines(&config));
        assert!(config.refused(), "{text}");
        let problem = &config.problems[0];
        assert!(problem.message.contains(message), "{text}: {}", problem.message);
        assert!(problem.hint.as_ref().is_some_and(|text| text.contains(hint)), "{text}: {:?}", problem.hint);
    }
}

#[test]
fn a_limit_that_is_never_reached_or_about_nobody_is_mentioned() {
    let noted = |text: &str| {
        let config = toml(&format!("[servers.git]\ncommand = 'g'\n{text}"));
        assert!(!config.refused() && config.problems.iter().all(|problem| problem.concerns == Concern::Note));
        config
            .problems
            .iter()
            .map(|problem| (problem.at.map(|at| at.line), problem.message.clone()))
            .collect::<Vec<_>>()
    };
    let rows = [
        (
            "quota = { calls = 10, per = '1h' }\nrate = { calls = 20, per = '1s' }",
            "`policy.rate` is never reached",
        ),
        (
            "quota = { calls = 100, per = '1s' }\nrate = { calls = 5, per = '1s' }",
            "`policy.quota` is never reached",
        ),
        (
            "quota = { calls = 10, per = '1h' }\nlimits = { 'git.*' = { quota = { calls = 240, per = '24h' } } }",
            "`policy.limits.\"git.*\".quota` is never reached: `policy.quota` is 10 calls per 1h",
        ),
    ];
    for (keys, message) in rows {
        let noted = noted(&format!("[policy]\n{keys}"));
        assert!(matches!(&noted[..], [(Some(4 | 5), told)] if told.contains(message)), "{keys}: {noted:?}");
    }
    let quiet = "[policy]\nquota = { calls = 1000, per = '1h' }\nrate = { calls = 20, per = '1s' }\n\
        limits = { 'git.push' = { quota = { calls = 5, per = '1h' } } }\n\
        [callers.ci]\ntoken = 'x'\nquota = { calls = 500, per = '1h' }";
    assert_eq!(noted(quiet), []);
    // Everyone's limits are a caller's too.
    let more = noted(
        "[policy]\nquota = { calls = 10, per = '1h' }\n[callers.ci]\ntoken = 'x'\nquota = { calls = 20, per = '1h' }",
    );
    assert_eq!(
        more,
        [(Some(7), "`callers.ci.quota` is never reached: `policy.quota` is 10 calls per 1h".to_owned())]
    );
    let stranger = noted("[policy.limits.'gut.*']\nquota = { calls = 10, per = '1h' }");
    assert!(stranger[0].1.contains("`gut.*` is about a server that is not declared here"), "{stranger:?}");
}
