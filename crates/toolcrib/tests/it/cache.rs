//! The response cache: what is cached, for which callers and for how long.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::advance;
use toolcrib::call::updates::CallUpdate;
use toolcrib::protocol::era::capabilities::ClientCapabilities;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::spec::{KeepAlive, Lifecycle, ToolsSpec, Trust};
use toolcrib::{
    Call, Caller, Capacity, Crib, ListFreshness, ListKind, Selector, ServerLimits, ServerSpec, ServerState,
    Sharing,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, id, names, on, roster, settle, spec, status, with};

/// A server whose results may be cached.
pub(crate) fn caching_spec(fake: &FakeServer) -> ServerSpec {
    let tools = ToolsSpec { cache: vec!["*".parse().unwrap()], ..ToolsSpec::default() };
    spec("git", fake).tools(tools)
}

pub(crate) fn crib_of(spec: ServerSpec) -> Crib {
    Crib::builder().server(spec).build().unwrap()
}

/// A call whose result has a TTL of one minute.
pub(crate) fn cacheable_call(tool: &str, n: u64) -> Call {
    with("git", tool, &json!({"ttlMs": 60_000, "n": n}))
}

fn read(uri: &str) -> Call {
    let params = Object::parse(&format!(r#"{{"uri":"{uri}"}}"#).into()).unwrap();
    Call::request("resources/read", Selector::OnServer(id("git"), uri.to_owned()), params)
}

/// A server that answers the next reads with these results.
fn reading(results: &[&str]) -> FakeServer {
    let lines: Vec<String> =
        results.iter().map(|result| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)).collect();
    FakeServer::new()
        .default_start(FakeStart::Stateless)
        .script("resources/read", &lines.iter().map(String::as_str).collect::<Vec<_>>())
}

#[tokio::test(start_paused = true)]
async fn result_is_cached_until_its_ttl_ends() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let first = crib.call(cacheable_call("echo", 1)).await.unwrap();
    advance(20 * SECOND).await;
    let second = crib.call(cacheable_call("echo", 1)).await.unwrap();
    let expected = String::from_utf8(first.raw().to_vec()).unwrap();
    assert_eq!(
        second.raw(),
        expected.replace(r#""ttlMs":60000}"#, r#""ttlMs":40000}"#).as_bytes(),
        "only the TTL differs"
    );
    assert_eq!(second.server, Some(id("git")));
    let same = on("git", "echo").raw_arguments("{ \"n\" : 1, \"ttlMs\":60000 }");
    crib.call(same).await.unwrap();
    assert_eq!(fake.called_tools().len(), 1, "the order of members does not matter");
    crib.call(cacheable_call("echo", 2)).await.unwrap();
    crib.call(cacheable_call("slow", 1)).await.unwrap();
    assert_eq!(fake.called_tools().len(), 3, "other arguments and other tools are separate entries");
    advance(40 * SECOND).await;
    crib.call(cacheable_call("echo", 1)).await.unwrap();
    assert_eq!(fake.called_tools().len(), 4);
    let status = status(&crib, "git");
    assert_eq!((status.cache_entries, status.cache_hits, status.cache_misses), (3, 2, 4));
}

#[tokio::test(start_paused = true)]
async fn only_configured_or_trusted_read_only_tools_are_cached() {
    let is_cached = async |fake: &FakeServer, spec: ServerSpec| {
        let crib = crib_of(spec);
        for _ in 0..2 {
            crib.call(cacheable_call("echo", 1)).await.unwrap();
        }
        fake.called_tools().len() == 1
    };
    let cache = |pattern: &str| ToolsSpec { cache: vec![pattern.parse().unwrap()], ..ToolsSpec::default() };
    let fake = FakeServer::new();
    assert!(is_cached(&fake, spec("git", &fake).tools(cache("ec*"))).await);
    let fake = FakeServer::new().with_hint("echo", "readOnlyHint");
    assert!(is_cached(&fake, spec("git", &fake).trust(Trust::Trusted)).await);
    let fake = FakeServer::new().with_hint("echo", "readOnlyHint");
    assert!(!is_cached(&fake, spec("git", &fake)).await, "hints of an untrusted server do not count");
    let fake = FakeServer::new().with_hint("echo", "idempotentHint");
    assert!(
        !is_cached(&fake, spec("git", &fake).trust(Trust::Trusted)).await,
        "idempotent does not mean read-only"
    );
    let fake = FakeServer::new();
    assert!(!is_cached(&fake, spec("git", &fake).tools(cache("get_*")).trust(Trust::Trusted)).await);
    let fake = FakeServer::new();
    let none = ServerLimits { cache_entries: 0, ..ServerLimits::default() };
    assert!(!is_cached(&fake, spec("git", &fake).tools(cache("*")).limits(none)).await);
}

#[tokio::test(start_paused = true)]
async fn errors_questions_and_results_without_ttl_are_not_cached() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    for (tool, arguments) in [
        ("fail", json!({"ttlMs": 60_000})),
        ("refuse", json!({"ttlMs": 60_000})),
        ("echo", json!({})),
        ("echo", json!({"ttlMs": 0})),
        ("echo", json!({"ttlMs": -1})),
    ] {
        let before = fake.called_tools().len();
        for _ in 0..2 {
            crib.call(with("git", tool, &arguments)).await.unwrap();
        }
        assert_eq!(fake.called_tools().len(), before + 2, "{tool} {arguments}");
    }
    let lines =
        |result: &str| json!({"lines": [format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)]});
    for result in [
        r#"{"resultType":"task","taskId":"1","ttlMs":60000}"#,
        r#"{"resultType":"input_required","requestState":"s","ttlMs":60000}"#,
    ] {
        let before = fake.called_tools().len();
        for _ in 0..2 {
            crib.call(with("git", "say", &lines(result))).await.unwrap();
        }
        assert_eq!(fake.called_tools().len(), before + 2, "{result}");
    }
    for invalid in [r#"{"n":1,"n":2,"ttlMs":60000}"#, r#"{"x":{"a":1,"a":1},"ttlMs":60000}"#] {
        let before = fake.called_tools().len();
        for _ in 0..2 {
            crib.call(on("git", "echo").raw_arguments(invalid)).await.unwrap();
        }
        assert_eq!(fake.called_tools().len(), before + 2, "duplicate member: {invalid}");
    }
    for member in ["inputResponses", "requestState", "task", "strange"] {
        let before = fake.called_tools().len();
        for _ in 0..2 {
            let params = format!(r#"{{"name":"echo","{member}":{{}},"arguments":{{"ttlMs":60000}}}}"#);
            let call = on("git", "echo").params(Object::parse(&params.into()).unwrap());
            drop(crib.call(call).await);
        }
        assert!(fake.called_tools().len() == before + 2 || member == "requestState", "{member}");
    }
    assert_eq!(status(&crib, "git").cache_entries, 0);
}

#[tokio::test(start_paused = true)]
async fn private_results_are_per_caller_public_ones_shared() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let by = |caller: &str, scope: &str| {
        with("git", "echo", &json!({"ttlMs": 60_000, "cacheScope": scope})).caller(Caller::new(caller))
    };
    for (caller, scope, calls) in [
        ("a", "private", 1),
        ("a", "private", 1),
        ("b", "private", 2),
        ("a", "public", 3),
        ("b", "public", 3),
    ] {
        crib.call(by(caller, scope)).await.unwrap();
        assert_eq!(fake.called_tools().len(), calls, "{caller} {scope}");
    }
}

#[tokio::test(start_paused = true)]
async fn instances_do_not_share_cached_results() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake).sharing(Sharing::PerCaller));
    let by = |caller: &str| {
        with("git", "echo", &json!({"ttlMs": 60_000, "cacheScope": "public"})).caller(Caller::new(caller))
    };
    for (caller, calls) in [("a", 1), ("b", 2), ("a", 2), ("b", 2)] {
        crib.call(by(caller)).await.unwrap();
        assert_eq!(fake.called_tools().len(), calls, "{caller}");
    }
}

#[tokio::test(start_paused = true)]
async fn hit_starts_nothing_and_restart_clears_the_cache() {
    let fake = FakeServer::new();
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..Lifecycle::default() };
    let crib = crib_of(caching_spec(&fake).lifecycle(lifecycle));
    crib.list().await;
    crib.call(cacheable_call("echo", 1)).await.unwrap();
    settle().await;
    let starts = fake.starts();
    assert_eq!(status(&crib, "git").state, ServerState::Asleep);
    crib.call(cacheable_call("echo", 1)).await.unwrap();
    let now = status(&crib, "git");
    assert_eq!((fake.starts(), now.state, now.calls, now.cache_hits), (starts, ServerState::Asleep, 1, 1));
    crib.call(cacheable_call("echo", 2)).await.unwrap();
    settle().await;
    assert_eq!(
        (fake.starts(), status(&crib, "git").cache_entries),
        (starts + 1, 1),
        "entries of the previous generation are removed"
    );
    crib.call(cacheable_call("echo", 1)).await.unwrap();
    assert_eq!(fake.called_tools().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn hits_are_served_while_the_breaker_is_open() {
    let fake = FakeServer::new();
    let crib =
        crib_of(caching_spec(&fake).limits(ServerLimits { call_timeout: SECOND, ..ServerLimits::default() }));
    crib.call(cacheable_call("echo", 1)).await.unwrap();
    for _ in 0..5 {
        crib.call(on("git", "hang")).await.unwrap_err();
    }
    settle().await;
    assert_eq!(status(&crib, "git").state, ServerState::Tripped);
    let failures = status(&crib, "git").consecutive_failures;
    crib.call(cacheable_call("echo", 1)).await.unwrap();
    crib.call(cacheable_call("echo", 2)).await.unwrap_err();
    let now = status(&crib, "git");
    assert_eq!((now.state, now.consecutive_failures, now.restarts), (ServerState::Tripped, failures, 0));
}

#[tokio::test(start_paused = true)]
async fn change_stop_restart_and_new_spec_clear_the_cache() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let asked = async || {
        let before = fake.called_tools().len();
        crib.call(cacheable_call("echo", 1)).await.unwrap();
        fake.called_tools().len() > before
    };
    assert!(asked().await && !asked().await);
    let lines = [
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#,
        r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#,
    ];
    crib.call(with("git", "say", &json!({ "lines": lines }))).await.unwrap();
    assert!(asked().await && !asked().await, "its list changed");
    crib.stop(&id("git")).await.unwrap();
    assert_eq!(status(&crib, "git").cache_entries, 0, "stopped");
    assert!(asked().await && !asked().await, "stopped");
    crib.restart(&id("git")).await.unwrap();
    assert!(asked().await && !asked().await, "restarted");
    fake.kill();
    settle().await;
    crib.call(on("git", "slow")).await.unwrap();
    assert!(asked().await && !asked().await, "restarted after a crash");
    let other =
        caching_spec(&fake).limits(ServerLimits { call_timeout: 7 * SECOND, ..ServerLimits::default() });
    crib.apply_roster(roster([other])).await.unwrap();
    assert!(asked().await && !asked().await, "reloaded");
    crib.apply_roster(roster([])).await.unwrap();
    crib.apply_roster(roster([caching_spec(&fake)])).await.unwrap();
    assert!(asked().await && !asked().await, "removed and added again");
}

#[tokio::test(start_paused = true)]
async fn resource_is_cached_until_ttl_or_update() {
    let one = r#"{"resultType":"complete","contents":[{"uri":"a:1","text":"1"}],"ttlMs":1000,"cacheScope":"private"}"#;
    let fake = reading(&[one, &one.replace("\"1\"", "\"2\""), &one.replace("1000", "0"), one]);
    let crib = crib_of(spec("git", &fake));
    let reads = async |uri: &str| {
        let outcome = crib.call(read(uri)).await.unwrap();
        (outcome.to_value()["contents"][0]["text"].clone(), fake.received("resources/read").len())
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
    assert_eq!(reads("a:1").await, (json!("1"), 1), "another resource changed");
    crib.call(updated("a:1")).await.unwrap();
    assert_eq!(reads("a:1").await, (json!("2"), 2));
    advance(SECOND).await;
    assert_eq!(reads("a:1").await.1, 3, "the TTL ended");
    assert_eq!(reads("a:1").await.1, 4, "the last answer was not cacheable");
}

#[tokio::test(start_paused = true)]
async fn answer_that_needed_input_is_not_cached() {
    let fake = FakeServer::new();
    let crib = crib_of(caching_spec(&fake));
    let question = r#"{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"?"}}"#;
    let lines = [question, r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[],"ttlMs":60000}}"#];
    let call = || with("git", "say", &json!({ "lines": lines }));
    let capabilities = ClientCapabilities::parse(&r#"{"elicitation":{}}"#.into());
    for times in 1..=2 {
        let (sink, mut updates) = mpsc::channel(8);
        let client = toolcrib::Client {
            capabilities: capabilities.clone(),
            ..toolcrib::Client::without_capabilities()
        };
        crib.call(call().client(client).updates(sink)).await.unwrap();
        let Some(CallUpdate::Request(ask)) = updates.recv().await else { panic!("no request arrived") };
        ask.answer(ResponsePayload::Result("{}".into()));
        assert_eq!(fake.called_tools().len(), times);
    }
}

#[tokio::test(start_paused = true)]
async fn cache_is_bounded_per_tool_and_in_bytes() {
    let fake = FakeServer::new();
    let limits = ServerLimits { cache_entries: 4, ..ServerLimits::default() };
    let crib = Crib::builder()
        .server(caching_spec(&fake).limits(limits))
        .capacity(Capacity { cache: 16 << 10, ..Capacity::default() })
        .build()
        .unwrap();
    for n in 0..10 {
        crib.call(cacheable_call("echo", n)).await.unwrap();
    }
    assert_eq!(status(&crib, "git").cache_entries, 4);
    let large = Value::from("x".repeat(3000));
    for tool in ["slow", "echo", "progress", "hold"] {
        fake.set_hold_open(true);
        crib.call(with("git", tool, &json!({"ttlMs": 60_000, "large": large}))).await.unwrap();
    }
    assert!(status(&crib, "git").cache_entries <= 4, "{}", status(&crib, "git").cache_entries);
    crib.set_capacity(Capacity { cache: 1, ..Capacity::default() });
    assert_eq!(status(&crib, "git").cache_entries, 0);
}

/// An answer to `tools/list` with these tools and this TTL in milliseconds.
fn listing(tools: &[&str], time: u64) -> String {
    let tools: Vec<Value> = tools.iter().map(|name| json!({"name": name})).collect();
    let result = json!({"resultType": "complete", "tools": tools, "ttlMs": time, "cacheScope": "public"});
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)
}

#[tokio::test(start_paused = true)]
async fn list_ttl_is_honoured_and_expired_list_is_refreshed() {
    let lists = [listing(&["echo"], 60_000), listing(&["echo", "new"], 5_000)];
    let fake = FakeServer::new()
        .default_start(FakeStart::Stateless)
        .script("tools/list", &lists.each_ref().map(String::as_str));
    let crib = crib_of(spec("git", &fake));
    let fresh = |kind| crib.freshness(kind, None, &Caller::local());
    assert_eq!(
        fresh(ListKind::Tools),
        ListFreshness { ttl: Duration::ZERO, public: false },
        "an undiscovered server has no TTL"
    );
    crib.list().await;
    advance(20 * SECOND).await;
    assert_eq!(fresh(ListKind::Tools), ListFreshness { ttl: 40 * SECOND, public: true });
    assert_eq!(fresh(ListKind::Prompts), ListFreshness { ttl: Duration::ZERO, public: false });
    settle().await;
    assert_eq!(fake.received("tools/list").len(), 1, "a fresh list is not requested again");
    advance(40 * SECOND).await;
    assert_eq!(fresh(ListKind::Tools).ttl, Duration::ZERO);
    assert_eq!(names(&crib.list().await), ["git__echo", "git__new"]);
    assert_eq!(fake.received("tools/list").len(), 2);
    assert_eq!(fresh(ListKind::Tools).ttl, 5 * SECOND);
    let rules =
        toolcrib::access::policy::Rules { deny: vec!["git.x".parse().unwrap()], ..Default::default() };
    crib.set_policy(toolcrib::Policy::for_everyone(rules));
    assert!(!fresh(ListKind::Tools).public, "with rules the list depends on the caller");
}
