//! What a server has said is said again for as long as it says that it is good: to whom it may be said, and without the
//! server.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::advance;
use toolcrib::spec::{KeepAlive, Lifecycle, ToolsSpec, Trust};
use toolcrib::told::Told;
use toolcrib::wire::dialect::party::Abilities;
use toolcrib::wire::message::Answer;
use toolcrib::wire::object::Object;
use toolcrib::{
    Call, Caller, Capacity, Crib, Freshness, Kind, Limits, ServerSpec, Sharing, StateName, Wanted,
};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, id, names, on, roster, spec, status, with};

/// A server whose results may be kept.
pub(crate) fn kept(fake: &Fake) -> ServerSpec {
    let tools = ToolsSpec { cache: vec!["*".parse().unwrap()], ..ToolsSpec::default() };
    spec("git", fake).tools(tools)
}

pub(crate) fn crib_of(spec: ServerSpec) -> Crib {
    Crib::builder().server(spec).build().unwrap()
}

/// A call whose result is good for a minute.
pub(crate) fn lasting(tool: &str, n: u64) -> Call {
    with("git", tool, &json!({"ttlMs": 60_000, "n": n}))
}

fn read(uri: &str) -> Call {
    let params = Object::parse(&format!(r#"{{"uri":"{uri}"}}"#).into()).unwrap();
    Call::request("resources/read", Wanted::On(id("git"), uri.to_owned()), params)
}

/// A server that answers the next reads with these results.
fn reading(results: &[&str]) -> Fake {
    let lines: Vec<String> =
        results.iter().map(|result| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)).collect();
    Fake::new()
        .usually(Boot::Stateless)
        .script("resources/read", &lines.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test(start_paused = true)]
async fn a_result_is_given_again_without_the_server_until_its_time_is_up() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let first = crib.call(lasting("echo", 1)).await.unwrap();
    advance(20 * SECOND).await;
    let second = crib.call(lasting("echo", 1)).await.unwrap();
    let told = String::from_utf8(first.raw().to_vec()).unwrap();
    assert_eq!(
        second.raw(),
        told.replace(r#""ttlMs":60000}"#, r#""ttlMs":40000}"#).as_bytes(),
        "all else is the same"
    );
    assert_eq!(second.server, Some(id("git")));
    let same = on("git", "echo").raw_arguments("{ \"n\" : 1, \"ttlMs\":60000 }");
    crib.call(same).await.unwrap();
    assert_eq!(fake.called().len(), 1, "whatever the order of names");
    crib.call(lasting("echo", 2)).await.unwrap();
    crib.call(lasting("slow", 1)).await.unwrap();
    assert_eq!(fake.called().len(), 3, "other arguments and other tools are others");
    advance(40 * SECOND).await;
    crib.call(lasting("echo", 1)).await.unwrap();
    assert_eq!(fake.called().len(), 4);
    let status = status(&crib, "git");
    assert_eq!((status.cache_entries, status.cache_hits, status.cache_misses), (3, 2, 4));
}

#[tokio::test(start_paused = true)]
async fn only_what_the_config_or_a_trusted_server_that_changes_nothing_allows_is_kept() {
    let kept_by = async |fake: &Fake, spec: ServerSpec| {
        let crib = crib_of(spec);
        for _ in 0..2 {
            crib.call(lasting("echo", 1)).await.unwrap();
        }
        fake.called().len() == 1
    };
    let cache = |pattern: &str| ToolsSpec { cache: vec![pattern.parse().unwrap()], ..ToolsSpec::default() };
    let fake = Fake::new();
    assert!(kept_by(&fake, spec("git", &fake).tools(cache("ec*"))).await);
    let fake = Fake::new().hinting("echo", "readOnlyHint");
    assert!(kept_by(&fake, spec("git", &fake).trust(Trust::Trusted)).await);
    let fake = Fake::new().hinting("echo", "readOnlyHint");
    assert!(!kept_by(&fake, spec("git", &fake)).await, "its word alone does not count");
    let fake = Fake::new().hinting("echo", "idempotentHint");
    assert!(
        !kept_by(&fake, spec("git", &fake).trust(Trust::Trusted)).await,
        "once more is not the same as not at all"
    );
    let fake = Fake::new();
    assert!(!kept_by(&fake, spec("git", &fake).tools(cache("get_*")).trust(Trust::Trusted)).await);
    let fake = Fake::new();
    let none = Limits { cache_entries: 0, ..Limits::default() };
    assert!(!kept_by(&fake, spec("git", &fake).tools(cache("*")).limits(none)).await);
}

#[tokio::test(start_paused = true)]
async fn failures_questions_and_what_says_nothing_are_not_kept() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    for (tool, arguments) in [
        ("fail", json!({"ttlMs": 60_000})),
        ("refuse", json!({"ttlMs": 60_000})),
        ("echo", json!({})),
        ("echo", json!({"ttlMs": 0})),
        ("echo", json!({"ttlMs": -1})),
    ] {
        let before = fake.called().len();
        for _ in 0..2 {
            crib.call(with("git", tool, &arguments)).await.unwrap();
        }
        assert_eq!(fake.called().len(), before + 2, "{tool} {arguments}");
    }
    let lines =
        |result: &str| json!({"lines": [format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)]});
    for result in [
        r#"{"resultType":"task","taskId":"1","ttlMs":60000}"#,
        r#"{"resultType":"input_required","requestState":"s","ttlMs":60000}"#,
    ] {
        let before = fake.called().len();
        for _ in 0..2 {
            crib.call(with("git", "say", &lines(result))).await.unwrap();
        }
        assert_eq!(fake.called().len(), before + 2, "{result}");
    }
    for odd in [r#"{"n":1,"n":2,"ttlMs":60000}"#, r#"{"x":{"a":1,"a":1},"ttlMs":60000}"#] {
        let before = fake.called().len();
        for _ in 0..2 {
            crib.call(on("git", "echo").raw_arguments(odd)).await.unwrap();
        }
        assert_eq!(fake.called().len(), before + 2, "a name that is there twice: {odd}");
    }
    for member in ["inputResponses", "requestState", "task", "strange"] {
        let before = fake.called().len();
        for _ in 0..2 {
            let params = format!(r#"{{"name":"echo","{member}":{{}},"arguments":{{"ttlMs":60000}}}}"#);
            let call = on("git", "echo").params(Object::parse(&params.into()).unwrap());
            drop(crib.call(call).await);
        }
        assert!(fake.called().len() == before + 2 || member == "requestState", "{member}");
    }
    assert_eq!(status(&crib, "git").cache_entries, 0);
}

#[tokio::test(start_paused = true)]
async fn private_is_the_callers_and_public_is_for_all() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let by = |caller: &str, scope: &str| {
        with("git", "echo", &json!({"ttlMs": 60_000, "cacheScope": scope})).by(Caller::named(caller))
    };
    for (caller, scope, calls) in [
        ("a", "private", 1),
        ("a", "private", 1),
        ("b", "private", 2),
        ("a", "public", 3),
        ("b", "public", 3),
    ] {
        crib.call(by(caller, scope)).await.unwrap();
        assert_eq!(fake.called().len(), calls, "{caller} {scope}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_instance_of_a_server_that_is_not_shared_has_its_own() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake).sharing(Sharing::PerCaller));
    let by = |caller: &str| {
        with("git", "echo", &json!({"ttlMs": 60_000, "cacheScope": "public"})).by(Caller::named(caller))
    };
    for (caller, calls) in [("a", 1), ("b", 2), ("a", 2), ("b", 2)] {
        crib.call(by(caller)).await.unwrap();
        assert_eq!(fake.called().len(), calls, "{caller}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hit_wakes_nobody_and_a_new_generation_begins_with_nothing() {
    let fake = Fake::new();
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..Lifecycle::default() };
    let crib = crib_of(kept(&fake).lifecycle(lifecycle));
    crib.list().await;
    crib.call(lasting("echo", 1)).await.unwrap();
    breath().await;
    let starts = fake.starts();
    assert_eq!(status(&crib, "git").state, StateName::Asleep);
    crib.call(lasting("echo", 1)).await.unwrap();
    let now = status(&crib, "git");
    assert_eq!((fake.starts(), now.state, now.calls, now.cache_hits), (starts, StateName::Asleep, 1, 1));
    crib.call(lasting("echo", 2)).await.unwrap();
    breath().await;
    assert_eq!(
        (fake.starts(), status(&crib, "git").cache_entries),
        (starts + 1, 1),
        "what the first one said is gone"
    );
    crib.call(lasting("echo", 1)).await.unwrap();
    assert_eq!(fake.called().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn hits_leave_breaker_and_budget_alone_and_are_given_while_the_server_is_left_alone() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake).limits(Limits { call_timeout: SECOND, ..Limits::default() }));
    crib.call(lasting("echo", 1)).await.unwrap();
    for _ in 0..5 {
        crib.call(on("git", "hang")).await.unwrap_err();
    }
    breath().await;
    assert_eq!(status(&crib, "git").state, StateName::Tripped);
    let failures = status(&crib, "git").consecutive_failures;
    crib.call(lasting("echo", 1)).await.unwrap();
    crib.call(lasting("echo", 2)).await.unwrap_err();
    let now = status(&crib, "git");
    assert_eq!((now.state, now.consecutive_failures, now.restarts), (StateName::Tripped, failures, 0));
}

#[tokio::test(start_paused = true)]
async fn a_change_a_stop_a_restart_and_another_spec_take_it_away() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let asked = async || {
        let before = fake.called().len();
        crib.call(lasting("echo", 1)).await.unwrap();
        fake.called().len() > before
    };
    assert!(asked().await && !asked().await);
    let lines = [
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#,
    ];
    crib.call(with("git", "say", &json!({ "lines": lines }))).await.unwrap();
    assert!(asked().await && !asked().await, "its list is another one");
    crib.stop(&id("git")).await.unwrap();
    assert_eq!(status(&crib, "git").cache_entries, 0, "stopped");
    assert!(asked().await && !asked().await, "stopped");
    crib.restart(&id("git")).await.unwrap();
    assert!(asked().await && !asked().await, "restarted");
    fake.kill();
    breath().await;
    crib.call(on("git", "slow")).await.unwrap();
    assert!(asked().await && !asked().await, "it died and came back");
    let other = kept(&fake).limits(Limits { call_timeout: 7 * SECOND, ..Limits::default() });
    crib.apply(roster([other])).await;
    assert!(asked().await && !asked().await, "reloaded");
    crib.apply(roster([])).await;
    crib.apply(roster([kept(&fake)])).await;
    assert!(asked().await && !asked().await, "gone and back");
}

#[tokio::test(start_paused = true)]
async fn a_resource_is_kept_as_its_server_says_until_it_says_that_it_changed() {
    let one = r#"{"resultType":"complete","contents":[{"uri":"a:1","text":"1"}],"ttlMs":1000,"cacheScope":"private"}"#;
    let fake = reading(&[one, &one.replace("\"1\"", "\"2\""), &one.replace("1000", "0"), one]);
    let crib = crib_of(spec("git", &fake));
    let reads = async |uri: &str| {
        let outcome = crib.call(read(uri)).await.unwrap();
        (outcome.to_value()["contents"][0]["text"].clone(), fake.heard("resources/read").len())
    };
    assert_eq!(reads("a:1").await, (json!("1"), 1));
    assert_eq!(reads("a:1").await, (json!("1"), 1));
    let updated = |uri: &str| {
        let update =
            json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": uri}});
        with(
            "git",
            "say",
            &json!({"lines": [update.to_string(), r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#]}),
        )
    };
    crib.call(updated("a:2")).await.unwrap();
    assert_eq!(reads("a:1").await, (json!("1"), 1), "another changed");
    crib.call(updated("a:1")).await.unwrap();
    assert_eq!(reads("a:1").await, (json!("2"), 2));
    advance(SECOND).await;
    assert_eq!(reads("a:1").await.1, 3, "its time was up");
    assert_eq!(reads("a:1").await.1, 4, "the last did not last");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_took_a_persons_word_is_not_kept_and_nobody_else_waits_for_it() {
    let fake = Fake::new();
    let crib = crib_of(kept(&fake));
    let question = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}"#;
    let lines = [question, r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[],"ttlMs":60000}}"#];
    let call = || with("git", "say", &json!({ "lines": lines }));
    let able = Abilities::read(&r#"{"elicitation":{}}"#.into());
    for times in 1..=2 {
        let (sink, mut heard) = mpsc::channel(8);
        let client = toolcrib::Client { abilities: able.clone(), ..toolcrib::Client::silent() };
        crib.call(call().of(client).tell(sink)).await.unwrap();
        let Some(Told::Asked(ask)) = heard.recv().await else { panic!("nothing was asked") };
        ask.answer(Answer::Result("{}".into()));
        assert_eq!(fake.called().len(), times);
    }
}

#[tokio::test(start_paused = true)]
async fn there_is_room_for_so_many_of_a_tool_and_for_so_many_bytes() {
    let fake = Fake::new();
    let limits = Limits { cache_entries: 4, ..Limits::default() };
    let crib = Crib::builder()
        .server(kept(&fake).limits(limits))
        .capacity(Capacity { cache: 16 << 10, ..Capacity::default() })
        .build()
        .unwrap();
    for n in 0..10 {
        crib.call(lasting("echo", n)).await.unwrap();
    }
    assert_eq!(status(&crib, "git").cache_entries, 4);
    let large = Value::from("x".repeat(3000));
    for tool in ["slow", "echo", "progress", "hold"] {
        fake.open(true);
        crib.call(with("git", tool, &json!({"ttlMs": 60_000, "large": large}))).await.unwrap();
    }
    assert!(status(&crib, "git").cache_entries <= 4, "{}", status(&crib, "git").cache_entries);
    crib.resize(Capacity { cache: 1, ..Capacity::default() });
    assert_eq!(status(&crib, "git").cache_entries, 0);
}

/// The answer to a request for the list of these tools, good for so long.
fn listing(tools: &[&str], time: u64) -> String {
    let tools: Vec<Value> = tools.iter().map(|name| json!({"name": name})).collect();
    let result = json!({"resultType": "complete", "tools": tools, "ttlMs": time, "cacheScope": "public"});
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)
}

#[tokio::test(start_paused = true)]
async fn a_list_is_good_for_as_long_as_its_server_says_and_asked_for_again_when_it_is_wanted_after_that() {
    let lists = [listing(&["echo"], 60_000), listing(&["echo", "new"], 5_000)];
    let fake =
        Fake::new().usually(Boot::Stateless).script("tools/list", &lists.each_ref().map(String::as_str));
    let crib = crib_of(spec("git", &fake));
    let fresh = |kind| crib.freshness(kind, None, &Caller::local());
    assert_eq!(
        fresh(Kind::Tools),
        Freshness { left: Duration::ZERO, public: false },
        "a stranger says nothing"
    );
    crib.list().await;
    advance(20 * SECOND).await;
    assert_eq!(fresh(Kind::Tools), Freshness { left: 40 * SECOND, public: true });
    assert_eq!(fresh(Kind::Prompts), Freshness { left: Duration::ZERO, public: false });
    breath().await;
    assert_eq!(fake.heard("tools/list").len(), 1, "it is good, and nobody asks");
    advance(40 * SECOND).await;
    assert_eq!(fresh(Kind::Tools).left, Duration::ZERO);
    breath().await;
    assert_eq!(fake.heard("tools/list").len(), 2);
    assert_eq!(names(&crib.catalog()), ["git__echo", "git__new"]);
    assert_eq!(fresh(Kind::Tools).left, 5 * SECOND);
    let rules = toolcrib::policy::Rules { deny: vec!["git.x".parse().unwrap()], ..Default::default() };
    crib.govern(toolcrib::Policy::for_everyone(rules));
    assert!(!fresh(Kind::Tools).public, "where there are rules, what one sees is one's own");
}
