//! Names, collisions, fallbacks and concurrency with many servers.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use toolcrib::{Call, Crib, ErrorKind, ListKind, Outcome};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{FIRST_WAIT, SECOND, crib, id, kind, names, on, roster, settle, spawn, spec, with};

#[tokio::test(start_paused = true)]
async fn bare_name_reaches_the_only_server_with_the_tool() {
    let git = FakeServer::with_tools(&["log", "push"]);
    let time = FakeServer::with_tools(&["now", "log"]);
    let crib = crib(&[("git", &git), ("time", &time)]);
    let outcome = crib.call(Call::tool("push").arguments(&json!({"to": "main"}))).await.unwrap();
    assert_eq!(
        (outcome.server, git.called_tools(), time.called_tools().len()),
        (Some(id("git")), vec!["push".to_owned()], 0)
    );
    crib.call(Call::tool("time__log")).await.unwrap();
    assert_eq!(time.called_tools(), ["log"]);
}

#[tokio::test(start_paused = true)]
async fn ambiguous_bare_name_lists_all_candidates() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["log"]);
    let crib = crib(&[("git", &git), ("time", &time)]);
    let error = crib.call(Call::tool("log")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_eq!(error.to_string(), "several servers have a tool `log`: `git__log`, `time__log`");
    assert!(git.called_tools().is_empty() && time.called_tools().is_empty());
}

#[tokio::test(start_paused = true)]
async fn bare_name_of_a_known_server_is_used_until_it_is_ambiguous() {
    for is_known in [true, false] {
        let git = FakeServer::with_tools(&["log", "push"]);
        let time = FakeServer::with_tools(&["log"]).default_start(FakeStart::SlowHandshake(20 * SECOND));
        let broken = FakeServer::new().default_start(FakeStart::Exits);
        let crib = crib(&[("broken", &broken), ("git", &git), ("time", &time)]);
        if is_known {
            crib.list_server(&id("git")).await.unwrap();
        }
        let before = Instant::now();
        assert_eq!(crib.call(Call::tool("log")).await.unwrap().server, Some(id("git")));
        assert!(before.elapsed() < SECOND, "{is_known}: it waited {:?} for other servers", before.elapsed());
        crib.discover().await;
        let error = crib.call(Call::tool("log")).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::Unknown, "several servers have a tool `log`: `git__log`, `time__log`")
        );
        assert_eq!(crib.call(Call::tool("push")).await.unwrap().server, Some(id("git")));
        assert!(time.called_tools().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn misspelt_name_is_answered_from_what_is_known() {
    let git = FakeServer::with_tools(&["push"]);
    let hung = FakeServer::new().default_start(FakeStart::Silent);
    let crib = crib(&[("git", &git), ("hung", &hung)]);
    crib.list_server(&id("git")).await.unwrap();
    let before = Instant::now();
    for name in ["psuh", "gti__push", "git.push"] {
        let error = crib.call(Call::tool(name)).await.unwrap_err();
        assert_eq!(error.to_string(), format!("Unknown tool: {name}; not searched: `hung`"));
        assert_eq!(error.hint().to_string().replace("git__", ""), "did you mean `push`?");
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    let error = crib.call(Call::tool("something_else")).await.unwrap_err();
    assert_eq!(error.to_string(), "Unknown tool: something_else; not searched: `hung`");
    assert_eq!(before.elapsed(), 8 * SECOND, "within the bounds of a first list");
    let error = crib.call(Call::tool("something_else")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed()), (ErrorKind::Unknown, 8 * SECOND));
}

#[tokio::test(start_paused = true)]
async fn bare_name_error_says_which_server_is_not_known_yet() {
    let git = FakeServer::with_tools(&["push"]);
    let lifecycle = toolcrib::Lifecycle { start_timeout: 5 * SECOND, ..toolcrib::Lifecycle::default() };
    let git = spec("git", &git).lifecycle(lifecycle.clone());
    // More hung servers than start at the same time, so that the last ones are still waiting for their turn.
    let hung: Vec<FakeServer> = (0..80).map(|_| FakeServer::new().default_start(FakeStart::Silent)).collect();
    let hung =
        hung.iter().enumerate().map(|(n, fake)| spec(&format!("h{n}"), fake).lifecycle(lifecycle.clone()));
    let crib = Crib::builder().roster(roster(hung.chain([git]))).build().unwrap();
    crib.call(Call::tool("git__push")).await.unwrap();
    let before = Instant::now();
    crib.call(Call::tool("push")).await.unwrap();
    assert_eq!(before.elapsed(), Duration::ZERO, "a known server has it");
    let error = crib.call(Call::tool("status")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed()), (ErrorKind::CouldNotStart, 8 * SECOND));
    assert!(
        error.to_string().starts_with("cannot tell which server has `status`: not known yet: "),
        "{error}"
    );
    assert_eq!(error.data()["sent"], "never");
    sleep(20 * SECOND).await;
    let before = Instant::now();
    let error = crib.call(Call::tool("status")).await.unwrap_err();
    assert_eq!((error.kind(), before.elapsed()), (ErrorKind::Unknown, Duration::ZERO), "all have failed");
    let error = crib.call(Call::tool("git__psuh")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_eq!(error.hint(), "did you mean `git__push`?");
}

#[tokio::test(start_paused = true)]
async fn names_with_ambiguous_separators_stay_distinct() {
    let a = FakeServer::with_tools(&["b_c", "b__c"]);
    let ab = FakeServer::with_tools(&["c"]);
    let crib = crib(&[("a", &a), ("a_b", &ab)]);
    let catalog = crib.list().await;
    assert_eq!(names(&catalog), ["a__b_c", "a__b__c", "a_b__c"]);
    for tool in catalog.tools() {
        let outcome = crib.call(Call::tool(&*tool.public_name)).await.unwrap();
        assert_eq!(outcome.server.as_ref(), Some(&tool.server));
    }
    assert_eq!((a.called_tools().len(), ab.called_tools()), (2, vec!["c".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn equal_server_names_are_rejected() {
    let fake = FakeServer::new();
    let clash =
        Crib::builder().server(spec("my-git", &fake)).server(spec("my_git", &fake)).build().unwrap_err();
    assert!(clash.to_string().contains("count as equal"), "{clash}");
}

#[tokio::test(start_paused = true)]
async fn unknown_name_goes_to_the_fallback() {
    let fake = FakeServer::with_tools(&["log"]);
    let builder = Crib::builder().server(spec("git", &fake)).fallback(|call| async move {
        let text = format!("{} for {}", call.name, call.caller.as_str());
        Ok(Outcome::result(&json!({"content": [{"type": "text", "text": text}]})))
    });
    let crib = builder.build().unwrap();
    let outcome = crib.call(Call::tool("weather").caller(toolcrib::Caller::new("ada"))).await.unwrap();
    assert_eq!((outcome.text().as_str(), outcome.server), ("weather for ada", None));
    assert_eq!(crib.call(Call::tool("log")).await.unwrap().server, Some(id("git")));
}

#[tokio::test(start_paused = true)]
async fn failed_start_does_not_use_the_fallback() {
    let fake = FakeServer::new().default_start(FakeStart::Silent);
    let builder = Crib::builder().server(spec("git", &fake));
    let crib = builder.fallback(|_| async { Ok(Outcome::result(&json!({}))) }).build().unwrap();
    assert_eq!(kind(crib.call(Call::tool("git__log")).await), ErrorKind::CouldNotStart);
}

#[tokio::test(start_paused = true)]
async fn unknown_name_ignores_servers_that_cannot_start() {
    let builder = || Crib::builder().server(spec("git", &FakeServer::new().default_start(FakeStart::Exits)));
    let without_fallback = builder().build().unwrap();
    assert_eq!(kind(without_fallback.call(Call::tool("weather")).await), ErrorKind::Unknown);
    let with_fallback = builder().fallback(|_| async { Ok(Outcome::result(&json!({}))) }).build().unwrap();
    assert!(with_fallback.call(Call::tool("weather")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn ambiguous_name_does_not_use_the_fallback() {
    let git = FakeServer::with_tools(&["log"]);
    let time = FakeServer::with_tools(&["log"]);
    let builder = Crib::builder().server(spec("git", &git)).server(spec("time", &time));
    let crib = builder.fallback(|_| async { Ok(Outcome::result(&json!({}))) }).build().unwrap();
    assert_eq!(kind(crib.call(Call::tool("log")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn discovery_reports_failures_next_to_results() {
    let working = FakeServer::with_tools(&["a", "b"]);
    let failing = FakeServer::new().default_start(FakeStart::Exits);
    let slow = FakeServer::with_tools(&["c"]).default_start(FakeStart::SlowHandshake(60 * SECOND));
    let crib = crib(&[("bad", &failing), ("good", &working), ("slow", &slow)]);
    let before = Instant::now();
    let found = crib.discover().await;
    assert_eq!(before.elapsed().as_secs(), 30, "it waits for the start timeout");
    let servers: Vec<&str> = found.iter().map(|discovery| discovery.server.as_str()).collect();
    assert_eq!(servers, ["bad", "good", "slow"]);
    let tools: Vec<&str> = found[1].tools.as_ref().unwrap().iter().map(|tool| &*tool.own_name).collect();
    assert_eq!(tools, ["a", "b"]);
    assert_eq!(found[0].tools.as_ref().unwrap_err().kind(), ErrorKind::Ejected);
    assert_eq!(found[2].tools.as_ref().unwrap_err().kind(), ErrorKind::CouldNotStart);
}

#[tokio::test(start_paused = true)]
async fn discovery_of_known_servers_starts_nothing() {
    let fake = FakeServer::with_tools(&["a"]);
    let crib = crib(&[("git", &fake)]);
    crib.discover().await;
    crib.stop(&id("git")).await.unwrap();
    assert_eq!(crib.discover().await[0].tools.as_ref().unwrap().len(), 1);
    assert_eq!(fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn slow_server_does_not_delay_others() {
    let slow = FakeServer::new();
    let quick = FakeServer::new();
    let crib = crib(&[("slow", &slow), ("quick", &quick)]);
    let mut calls = JoinSet::new();
    (0..64).for_each(|_| spawn(&mut calls, &crib, with("slow", "slow", &json!({"ms": 30_000}))));
    crib.call(on("quick", "echo")).await.unwrap();
    let before = Instant::now();
    for _ in 0..100 {
        crib.call(on("quick", "echo")).await.unwrap();
    }
    assert!(before.elapsed() < SECOND / 10);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn slow_start_does_not_delay_others_or_a_reload() {
    let slow = FakeServer::new().default_start(FakeStart::SlowHandshake(29 * SECOND));
    let quick = FakeServer::new();
    let both = [spec("slow", &slow), spec("quick", &quick)];
    let crib = Crib::builder().roster(roster(both.clone())).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("slow", "echo"));
    settle().await;
    let before = Instant::now();
    crib.call(on("quick", "echo")).await.unwrap();
    crib.apply_roster(roster(both.into_iter().chain([spec("more", &FakeServer::new())]))).await.unwrap();
    crib.call(on("more", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn calls_of_one_server_run_concurrently() {
    let fake = FakeServer::new();
    let crib = crib(&[("git", &fake)]);
    crib.call(on("git", "echo")).await.unwrap();
    let mut calls = JoinSet::new();
    (0..32).for_each(|_| spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 1000}))));
    let before = Instant::now();
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert!(before.elapsed() < 2 * SECOND, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn list_changed_relists_at_most_once_per_second() {
    let fake = FakeServer::with_tools(&["say", "echo"]);
    let crib = crib(&[("git", &fake)]);
    crib.list().await;
    let page = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"say"},{"name":"fresh"}]}}"#;
    let fake = fake.script("tools/list", &[page]);
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let mut lines = vec![changed; 1000];
    lines.push(r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#);
    crib.call(with("git", "say", &json!({ "lines": lines }))).await.unwrap();
    let mut catalog = crib.watch_catalog();
    catalog.wait_for(|catalog| catalog.tools().iter().any(|tool| &*tool.own_name == "fresh")).await.unwrap();
    sleep(10 * SECOND).await;
    assert!(fake.received("tools/list").len() <= 3, "{}", fake.received("tools/list").len());
}

#[tokio::test(start_paused = true)]
async fn definitions_are_kept_as_written() {
    let definition = r#"{"name":"a","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},"outputSchema":{"type":"object","x":1.0},"x-own":[ ]}"#;
    let page = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"tools":[{definition}]}}}}"#);
    let crib = crib(&[("git", &FakeServer::new().script("tools/list", &[&page]))]);
    let catalog = crib.list().await;
    assert_eq!(catalog.tools()[0].definition, definition);
    assert_eq!(
        catalog.list_json(ListKind::Tools, None),
        format!("[{}]", definition.replace("\"a\"", "\"git__a\""))
    );
}

#[tokio::test(start_paused = true)]
async fn only_first_list_waits_for_slow_server() {
    let quick = FakeServer::with_tools(&["a"]);
    let slow = FakeServer::with_tools(&["b"]).default_start(FakeStart::SlowHandshake(25 * SECOND));
    let crib = crib(&[("quick", &quick), ("slow", &slow)]);
    let before = Instant::now();
    assert_eq!(names(&crib.list().await), ["quick__a"]);
    assert_eq!(before.elapsed(), FIRST_WAIT);
    assert_eq!(names(&crib.list().await), ["quick__a"]);
    assert_eq!(before.elapsed(), FIRST_WAIT);
    sleep(25 * SECOND).await;
    assert_eq!(
        (names(&crib.list().await), slow.starts()),
        (vec!["quick__a".to_owned(), "slow__b".to_owned()], 1)
    );
}
