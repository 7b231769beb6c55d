//! Lists stay current: they are fetched again when they expire, when a change is announced, and when they are old.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::broadcast::Receiver;
use tokio::time::{Instant, advance, timeout};
use toolcrib::model::event::ServerNotification;
use toolcrib::{Caller, Crib, KeepAlive, Lifecycle, ListKind, Sharing};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{LISTING_WAIT, SECOND, crib, id, names, on, settle, spec, with};

const TOOLS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
const PROMPTS_CHANGED: &str = r#"{"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}"#;
/// A line that answers nothing.
const SILENCE: &str = "";

fn response(result: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#)
}

/// An answer to `tools/list` with these tools, and a TTL in milliseconds if there is one.
fn tools(names: &[&str], ttl: Option<u64>) -> String {
    let tools: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    let mut result = json!({"resultType": "complete", "tools": tools});
    if let Some(ttl) = ttl {
        result["ttlMs"] = ttl.into();
    }
    response(&result)
}

/// A session-era server that announces changes of its tools and prompts, with these answers to `tools/list`.
fn announcing(lists: &[String]) -> FakeServer {
    let capabilities = json!({"tools": {"listChanged": true}, "prompts": {"listChanged": true}});
    let initialize = response(&json!({"protocolVersion": "2025-11-25", "capabilities": capabilities}));
    let prompts = response(&json!({"prompts": [{"name": "p"}]}));
    let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
    FakeServer::new()
        .script("initialize", &[&initialize])
        .script("prompts/list", &vec![&*prompts; 100])
        .script("tools/list", &lists)
}

/// A stateless server with these answers to `tools/list`.
fn stateless(lists: &[String], announces: bool) -> FakeServer {
    let discover = response(&json!({
        "resultType": "complete",
        "supportedVersions": ["2026-07-28"],
        "capabilities": {"tools": {"listChanged": announces}},
    }));
    let lists: Vec<&str> = lists.iter().map(String::as_str).collect();
    FakeServer::new()
        .default_start(FakeStart::Stateless)
        .script("server/discover", &[&discover])
        .script("tools/list", &lists)
}

/// Makes the server send these lines, and returns when it has.
async fn send_lines(crib: &Crib, lines: &[&str]) {
    let mut all = lines.to_vec();
    all.push(r#"{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}"#);
    crib.call(with("git", "say", &json!({ "lines": all }))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn expired_list_is_fetched_for_the_caller_that_asks() {
    for announces in [false, true] {
        let lists = [tools(&["a"], Some(0)), tools(&["a", "b"], Some(0)), tools(&["b"], Some(0))];
        let fake = stateless(&lists, announces);
        let crib = crib(&[("git", &fake)]);
        assert_eq!(names(&crib.list().await), ["git__a"]);
        assert_eq!(names(&crib.list().await), ["git__a", "git__b"], "announces: {announces}");
        assert_eq!(names(&crib.list_server(&id("git")).await.unwrap()), ["git__b"]);
        assert_eq!(fake.received("tools/list").len(), 3);
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn list_is_not_fetched_again_within_its_ttl() {
    let fake = stateless(&[tools(&["a"], Some(600_000)), tools(&["b"], Some(1000))], false);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    advance(299 * SECOND).await;
    assert_eq!(names(&crib.list().await), ["git__a"]);
    assert_eq!(fake.received("tools/list").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn list_without_ttl_is_fetched_again_after_list_ttl() {
    for announces in [false, true] {
        let lists = [tools(&["a"], None), tools(&["b"], None)];
        let fake = match announces {
            true => announcing(&lists),
            false => FakeServer::new().script("tools/list", &lists.each_ref().map(String::as_str)),
        };
        let lifecycle = Lifecycle { keep_alive: KeepAlive::Forever, ..Lifecycle::default() };
        let crib = Crib::builder().server(spec("git", &fake).lifecycle(lifecycle)).build().unwrap();
        crib.list().await;
        advance(290 * SECOND).await;
        assert_eq!(names(&crib.list().await), ["git__a"]);
        advance(10 * SECOND).await;
        settle().await;
        assert_eq!(fake.received("tools/list").len(), 1, "only when a list is asked for");
        assert_eq!(names(&crib.list().await), ["git__b"], "announces: {announces}");
        assert_eq!(fake.received("tools/list").len(), 2);
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn sleeping_server_is_listed_again_when_it_wakes() {
    let fake = stateless(&[tools(&["a"], Some(0)), tools(&["b"], Some(60_000))], false);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    crib.stop(&id("git")).await.unwrap();
    advance(1000 * SECOND).await;
    assert_eq!(names(&crib.list().await), ["git__a"]);
    assert_eq!(fake.starts(), 1, "a list starts no server that was listed before");
    crib.call(with("git", "echo", &json!({}))).await.unwrap();
    let mut catalog = crib.watch_catalog();
    catalog.wait_for(|catalog| names(catalog) == ["git__b"]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn announced_change_is_in_the_next_list() {
    let lists = [tools(&["a"], None), tools(&["b"], None), tools(&["c"], None)];
    let fake = announcing(&lists);
    let crib = crib(&[("git", &fake)]);
    assert_eq!(names(&crib.list().await), ["git__a"]);
    let before = Instant::now();
    send_lines(&crib, &[TOOLS_CHANGED]).await;
    assert_eq!(names(&crib.list().await), ["git__b"]);
    send_lines(&crib, &[TOOLS_CHANGED]).await;
    assert_eq!(names(&crib.list().await), ["git__c"], "announced twice within a second");
    assert!(before.elapsed() < SECOND / 10, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn list_does_not_wait_long_for_a_slow_server() {
    let fake = announcing(&[tools(&["a"], None), SILENCE.to_owned()]);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    send_lines(&crib, &[TOOLS_CHANGED]).await;
    let before = Instant::now();
    assert_eq!(names(&crib.list().await), ["git__a"], "the last known list");
    assert_eq!(before.elapsed(), LISTING_WAIT);
    assert_eq!(names(&crib.list().await), ["git__a"]);
    assert_eq!(before.elapsed(), LISTING_WAIT, "only one list waits for it");
}

#[tokio::test(start_paused = true)]
async fn announcement_without_a_change_is_passed_on() {
    let fake = announcing(&[]);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    let mut notifications = crib.notifications();
    send_lines(&crib, &[PROMPTS_CHANGED]).await;
    assert_eq!(next_change(&mut notifications).await, [ListKind::Prompts]);
}

/// Returns the lists that the next notification says have changed.
async fn next_change(notifications: &mut Receiver<ServerNotification>) -> Vec<ListKind> {
    match timeout(5 * SECOND, notifications.recv()).await.unwrap().unwrap() {
        ServerNotification::ListChanged { server, lists, .. } => {
            assert_eq!(server, id("git"));
            lists.to_vec()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn first_announcement_is_passed_on_at_once_and_the_next_are_merged() {
    let fake = announcing(&[]);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    let mut notifications = crib.notifications();
    let began = Instant::now();
    send_lines(&crib, &[PROMPTS_CHANGED]).await;
    assert_eq!(next_change(&mut notifications).await, [ListKind::Prompts]);
    send_lines(&crib, &[TOOLS_CHANGED]).await;
    assert_eq!(next_change(&mut notifications).await, [ListKind::Tools], "another list");
    assert!(began.elapsed() < SECOND / 10, "{:?}", began.elapsed());
    for _ in 0..3 {
        send_lines(&crib, &[PROMPTS_CHANGED]).await;
        settle().await;
    }
    assert_eq!(next_change(&mut notifications).await, [ListKind::Prompts]);
    assert!(began.elapsed() >= SECOND / 2 && began.elapsed() < SECOND, "{:?}", began.elapsed());
    advance(5 * SECOND).await;
    settle().await;
    assert!(notifications.try_recv().is_err(), "they were merged");
}

#[tokio::test(start_paused = true)]
async fn announcement_of_a_list_that_the_server_refuses_is_passed_on() {
    let refusal = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32601,"message":"no prompts"}}"#;
    let fake = announcing(&[]).script("prompts/list", &[refusal; 100]);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    let mut notifications = crib.notifications();
    send_lines(&crib, &[PROMPTS_CHANGED]).await;
    assert_eq!(next_change(&mut notifications).await, [ListKind::Prompts]);
}

#[tokio::test(start_paused = true)]
async fn flood_of_announcements_is_passed_on_twice_per_second() {
    let fake = announcing(&[]);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    let mut notifications = crib.notifications();
    let lists_before = fake.received("tools/list").len();
    let mut heard = 0;
    for _ in 0..10 {
        send_lines(&crib, &[TOOLS_CHANGED; 50]).await;
        // A client that lists whenever it is told to does not make it more.
        for _ in 0..5 {
            crib.list().await;
            while notifications.try_recv().is_ok() {
                heard += 1;
            }
        }
        advance(SECOND / 2).await;
        settle().await;
    }
    assert!((1..=11).contains(&heard), "{heard} notifications in 5 s");
    assert!(
        fake.received("tools/list").len() <= lists_before + 70,
        "at most one per list, and two per second"
    );
}

#[tokio::test(start_paused = true)]
async fn list_does_not_wait_for_the_instances_of_other_callers() {
    let lists = [tools(&["a"], None), tools(&["a"], None)];
    let lists = [&*lists[0], &*lists[1], SILENCE];
    let fake = FakeServer::new().script("tools/list", &lists);
    let lifecycle = Lifecycle { keep_alive: KeepAlive::Forever, ..Lifecycle::default() };
    let spec = spec("git", &fake).sharing(Sharing::PerCaller).lifecycle(lifecycle);
    let crib = Crib::builder().server(spec).build().unwrap();
    let ada = Caller::new("ada");
    let bob = Caller::new("bob");
    crib.list_for(&ada).await;
    crib.call(on("git", "echo").caller(bob.clone())).await.unwrap();
    settle().await;
    advance(300 * SECOND).await;
    for (caller, waited) in [(&ada, Duration::ZERO), (&bob, LISTING_WAIT)] {
        let before = Instant::now();
        assert_eq!(names(&crib.list_for(caller).await), ["git__a"]);
        assert_eq!(before.elapsed(), waited, "{caller:?}");
        settle().await;
        assert_eq!(fake.received("tools/list").len(), 3, "the instance of bob is asked once");
    }
}
