//! Many servers behind one door: names, collisions, fallbacks, and nobody in anybody's way.

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use toolcrib::{Call, Crib, ErrorKind, Kind, Outcome, Wanted};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, crib, id, kind, names, on, roster, spawn, spec, with};

#[tokio::test(start_paused = true)]
async fn a_bare_name_reaches_the_only_server_that_has_it() {
    let (git, time) = (Fake::offering(&["log", "push"]), Fake::offering(&["now", "log"]));
    let crib = crib(&[("git", &git), ("time", &time)]);
    let outcome = crib.call(Call::tool("push").arguments(&json!({"to": "main"}))).await.unwrap();
    assert_eq!(
        (outcome.server, git.called(), time.called().len()),
        (Some(id("git")), vec!["push".to_owned()], 0)
    );
    crib.call(Call::tool("time__log")).await.unwrap();
    assert_eq!(time.called(), ["log"]);
}

#[tokio::test(start_paused = true)]
async fn a_bare_name_that_several_servers_have_is_refused_with_all_of_them_named() {
    let (git, time) = (Fake::offering(&["log"]), Fake::offering(&["log"]));
    let crib = crib(&[("git", &git), ("time", &time)]);
    let error = crib.call(Call::tool("log")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unknown);
    assert_eq!(error.to_string(), "several servers have a tool `log`: `git__log`, `time__log`");
    assert!(git.called().is_empty() && time.called().is_empty());
}

#[tokio::test(start_paused = true)]
async fn names_that_could_be_split_in_two_ways_stay_apart() {
    let (a, ab) = (Fake::offering(&["b_c", "b__c"]), Fake::offering(&["c"]));
    let crib = crib(&[("a", &a), ("a_b", &ab)]);
    let catalog = crib.list().await;
    assert_eq!(names(&catalog), ["a__b_c", "a__b__c", "a_b__c"]);
    for tool in catalog.tools() {
        let outcome = crib.call(Call::tool(&*tool.public_name)).await.unwrap();
        assert_eq!(outcome.server.as_ref(), Some(&tool.server));
    }
    assert_eq!((a.called().len(), ab.called()), (2, vec!["c".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn two_servers_of_one_name_are_refused() {
    let fake = Fake::new();
    let clash =
        Crib::builder().server(spec("my-git", &fake)).server(spec("my_git", &fake)).build().unwrap_err();
    assert!(clash.to_string().contains("have the same name"), "{clash}");
}

#[tokio::test(start_paused = true)]
async fn a_name_nobody_has_goes_to_the_fallback_with_everything_it_carried() {
    let fake = Fake::offering(&["log"]);
    let builder = Crib::builder().server(spec("git", &fake)).fallback(|call| async move {
        let Wanted::Named(name) = &call.wanted else { return Ok(Outcome::result(&json!({}))) };
        Ok(Outcome::result(
            &json!({"content": [{"type": "text", "text": format!("{name} for {}", call.caller.as_str())}]}),
        ))
    });
    let crib = builder.build().unwrap();
    let outcome = crib.call(Call::tool("weather").by(toolcrib::Caller::named("ada"))).await.unwrap();
    assert_eq!((outcome.text().as_str(), outcome.server), ("weather for ada", None));
    assert_eq!(crib.call(Call::tool("log")).await.unwrap().server, Some(id("git")));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_not_papered_over_by_the_fallback() {
    let fake = Fake::new().usually(Boot::Silent);
    let builder = Crib::builder().server(spec("git", &fake));
    let crib = builder.fallback(|_| async { Ok(Outcome::result(&json!({}))) }).build().unwrap();
    assert_eq!(kind(crib.call(Call::tool("git__log")).await), ErrorKind::CouldNotStart);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_cannot_start_does_not_answer_for_names_it_never_had() {
    let builder = || Crib::builder().server(spec("git", &Fake::new().usually(Boot::Dies)));
    let alone = builder().build().unwrap();
    assert_eq!(kind(alone.call(Call::tool("weather")).await), ErrorKind::Unknown);
    let backed = builder().fallback(|_| async { Ok(Outcome::result(&json!({}))) }).build().unwrap();
    assert!(backed.call(Call::tool("weather")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_ambiguous_name_is_refused_and_not_given_to_the_fallback() {
    let (git, time) = (Fake::offering(&["log"]), Fake::offering(&["log"]));
    let builder = Crib::builder().server(spec("git", &git)).server(spec("time", &time));
    let crib = builder.fallback(|_| async { Ok(Outcome::result(&json!({}))) }).build().unwrap();
    assert_eq!(kind(crib.call(Call::tool("log")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn discovery_gives_what_it_can_and_says_what_it_cannot_in_its_place() {
    let (good, bad, slow) = (
        Fake::offering(&["a", "b"]),
        Fake::new().usually(Boot::Dies),
        Fake::offering(&["c"]).usually(Boot::Late(60 * SECOND)),
    );
    let crib = crib(&[("bad", &bad), ("good", &good), ("slow", &slow)]);
    let before = Instant::now();
    let found = crib.discover().await;
    assert_eq!(before.elapsed().as_secs(), 10);
    let servers: Vec<&str> = found.iter().map(|discovery| discovery.server.as_str()).collect();
    assert_eq!(servers, ["bad", "good", "slow"]);
    let tools: Vec<&str> = found[1].tools.as_ref().unwrap().iter().map(|tool| &*tool.own_name).collect();
    assert_eq!(tools, ["a", "b"]);
    for failed in [&found[0], &found[2]] {
        assert_eq!(failed.tools.as_ref().unwrap_err().kind(), ErrorKind::CouldNotStart);
    }
}

#[tokio::test(start_paused = true)]
async fn discovery_of_known_servers_starts_none() {
    let fake = Fake::offering(&["a"]);
    let crib = crib(&[("git", &fake)]);
    crib.discover().await;
    crib.stop(&id("git")).await.unwrap();
    assert_eq!(crib.discover().await[0].tools.as_ref().unwrap().len(), 1);
    assert_eq!(fake.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_never_delays_another() {
    let (slow, quick) = (Fake::new(), Fake::new());
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
async fn a_slow_start_never_delays_another_server_or_a_reload() {
    let (slow, quick) = (Fake::new().usually(Boot::Late(29 * SECOND)), Fake::new());
    let both = [spec("slow", &slow), spec("quick", &quick)];
    let crib = Crib::builder().roster(roster(both.clone())).build().unwrap();
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, on("slow", "echo"));
    breath().await;
    let before = Instant::now();
    crib.call(on("quick", "echo")).await.unwrap();
    crib.apply(roster(both.into_iter().chain([spec("more", &Fake::new())]))).await;
    crib.call(on("more", "echo")).await.unwrap();
    assert!(before.elapsed() < SECOND);
    assert!(calls.join_next().await.unwrap().unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn thirty_two_calls_of_one_server_run_side_by_side() {
    let fake = Fake::new();
    let crib = crib(&[("git", &fake)]);
    crib.call(on("git", "echo")).await.unwrap();
    let mut calls = JoinSet::new();
    (0..32).for_each(|_| spawn(&mut calls, &crib, with("git", "slow", &json!({"ms": 1000}))));
    let before = Instant::now();
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert!(before.elapsed() < 2 * SECOND, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_says_its_tools_changed_is_listed_anew_but_not_more_than_once_a_second() {
    let fake = Fake::offering(&["say", "echo"]);
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
    assert!(fake.heard("tools/list").len() <= 3, "{}", fake.heard("tools/list").len());
}

#[tokio::test(start_paused = true)]
async fn definitions_keep_what_the_server_wrote() {
    let definition = r#"{"name":"a","annotations":{"readOnlyHint":true},"outputSchema":{"type":"object","x":1.0},"x-own":[ ]}"#;
    let page = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{{"tools":[{definition}]}}}}"#);
    let crib = crib(&[("git", &Fake::new().script("tools/list", &[&page]))]);
    let catalog = crib.list().await;
    assert_eq!(catalog.tools()[0].definition, definition);
    assert_eq!(
        catalog.rendered(Kind::Tools, None),
        format!("[{}]", definition.replace("\"a\"", "\"git__a\""))
    );
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_slow_to_start_is_waited_for_once_and_not_by_every_list() {
    let (quick, slow) = (Fake::offering(&["a"]), Fake::offering(&["b"]).usually(Boot::Late(25 * SECOND)));
    let crib = crib(&[("quick", &quick), ("slow", &slow)]);
    let before = Instant::now();
    assert_eq!(names(&crib.list().await), ["quick__a"]);
    assert_eq!(before.elapsed().as_secs(), 10);
    assert_eq!(names(&crib.list().await), ["quick__a"]);
    assert_eq!(before.elapsed().as_secs(), 10);
    sleep(20 * SECOND).await;
    assert_eq!(
        (names(&crib.list().await), slow.starts()),
        (vec!["quick__a".to_owned(), "slow__b".to_owned()], 1)
    );
}
