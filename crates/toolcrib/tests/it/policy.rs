//! Rules in force: what a caller may not call it does not see, and what it sees it may call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::json;
use toolcrib::policy::{Policy, Rule, Rules};
use toolcrib::wire::object::Object;
use toolcrib::{Call, Caller, Crib, CribBuilder, ErrorKind, ServerSpec, Toolbox, Verdict, Wanted};

use crate::fake::Fake;
use crate::house::{id, spec};

/// A crib with servers `a` and `b`, each of which counts how often its tools really run.
fn crib(ran: &Arc<AtomicUsize>) -> CribBuilder {
    ["a", "b"].into_iter().fold(Crib::builder(), |builder, server| {
        let toolbox =
            ["read", "write", "Odd Name!", "rm"].into_iter().fold(Toolbox::new(), |toolbox, name| {
                let ran = ran.clone();
                toolbox.tool(name, "", &json!({"type": "object"}), move |_| {
                    ran.fetch_add(1, Ordering::Relaxed);
                    async { Ok("ran".to_owned()) }
                })
            });
        builder.server(ServerSpec::in_process(id(server), toolbox))
    })
}

fn rules(allow: Option<&[&str]>, deny: &[&str]) -> Rules {
    let parsed =
        |written: &[&str]| -> Vec<Rule> { written.iter().map(|rule| rule.parse().unwrap()).collect() };
    let rules = Rules::default().denying(parsed(deny));
    allow.map_or(rules.clone(), |allow| rules.allowing(parsed(allow)))
}

fn policy() -> Policy {
    let mut policy = Policy::for_everyone(rules(None, &["*.rm"]));
    policy.callers.insert("ci".to_owned(), rules(Some(&["a.*"]), &["a.write", "a.Odd*"]));
    policy
}

fn names(catalog: &toolcrib::Catalog) -> Vec<String> {
    catalog.tools().iter().map(|tool| format!("{}.{}", tool.server, tool.own_name)).collect()
}

#[tokio::test]
async fn what_is_denied_is_not_listed_and_does_not_run_by_any_name() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran).policy(policy()).build().unwrap();
    let ci = Caller::named("ci");
    assert_eq!(names(&*crib.list_for(&ci).await), ["a.read"]);
    assert_eq!(crib.list().await.tools().len(), 6);
    let odd = crib
        .catalog()
        .tools()
        .iter()
        .find(|tool| &*tool.own_name == "Odd Name!")
        .unwrap()
        .public_name
        .clone();
    for name in ["a__write", "a__rm", &odd] {
        let error = crib.call(Call::tool(name).by(ci.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{name}: {error}");
    }
    for tool in ["write", "rm", "Odd Name!"] {
        let error = crib.call(Call::on(id("a"), tool).by(ci.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{tool}: {error}");
    }
    // To this caller there is no `b`, by whatever name it is asked for.
    let unknown = crib.call(Call::on(id("nobody"), "read").by(ci.clone())).await.unwrap_err().to_string();
    for call in [Call::tool("b__read"), Call::on(id("b"), "read"), Call::on(id("b"), "nope")] {
        let error = crib.call(call.by(ci.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        assert!(!error.advice().contains("`b"), "{}", error.advice());
    }
    let hidden = crib.call(Call::on(id("b"), "read").by(ci.clone())).await.unwrap_err().to_string();
    assert_eq!(hidden, unknown.replace("nobody", "b"));
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    // The bare name is this caller's alone, though two servers have it.
    assert_eq!(crib.call(Call::tool("read").by(ci)).await.unwrap().text(), "ran");
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn what_no_rule_can_tell_goes_only_where_everything_is_allowed() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran).policy(policy()).build().unwrap();
    let ask = |caller: &str, server: &str, method: &'static str, name: &str| {
        let wanted = Wanted::On(id(server), name.to_owned());
        crib.call(Call::request(method, wanted, Object::default()).by(Caller::named(caller)))
    };
    for method in ["Tools/call", "tools/call ", "skills/run"] {
        assert_eq!(ask("ci", "a", method, method).await.unwrap_err().kind(), ErrorKind::Denied, "{method}");
    }
    for spelling in ["READ", "read ", "ｒｅａｄ", "./read", "a__read"] {
        let refused = ask("ci", "a", "tools/call", spelling).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unknown, "{spelling}: {refused}");
    }
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_guard_is_asked_at_lists_and_at_calls() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran)
        .guard(|caller, server, name| match (caller.as_str(), server.as_str(), name) {
            (_, "b", None) => Verdict::Deny("not here".to_owned()),
            (_, _, Some("write")) => Verdict::Deny("read only".to_owned()),
            _ => Verdict::Allow,
        })
        .build()
        .unwrap();
    assert_eq!(names(&*crib.list().await), ["a.read", "a.Odd Name!", "a.rm"]);
    let error = crib.call(Call::tool("a__write")).await.unwrap_err();
    assert_eq!(error.to_string(), "`local` may not use `a.write`: read only");
    assert_eq!(crib.call(Call::tool("b__read")).await.unwrap_err().kind(), ErrorKind::Unknown);
    // Rules come and go; the guard stays.
    crib.govern(Policy::for_everyone(rules(None, &["a.rm"])));
    assert_eq!(names(&*crib.list().await), ["a.read", "a.Odd Name!"]);
    assert_eq!(crib.discover().await.len(), 1);
}

#[tokio::test]
async fn rules_that_change_hold_from_the_next_call_on_and_are_announced() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran).build().unwrap();
    crib.call(Call::tool("a__write")).await.unwrap();
    let mut changes = crib.watch_catalog();
    changes.mark_unchanged();
    crib.govern(Policy::for_everyone(rules(None, &["a.write"])));
    assert_eq!(crib.call(Call::tool("a__write")).await.unwrap_err().kind(), ErrorKind::Denied);
    changes.changed().await.unwrap();
    assert!(!names(&crib.catalog_for(&Caller::local())).contains(&"a.write".to_owned()));
    crib.govern(Policy::default());
    crib.call(Call::tool("a__write")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_task_is_judged_by_the_tool_that_made_it() {
    let task = r#"{"jsonrpc":"2.0","id":$ID,"result":{"taskId":"7","status":"working"}}"#;
    let fake = Fake::offering(&["build", "other"])
        .script(
            "tools/call",
            &[r#"{"jsonrpc":"2.0","id":$ID,"result":{"task":{"taskId":"7","status":"working"}}}"#],
        )
        .script("tasks/get", &[task; 3]);
    let crib = Crib::builder().server(spec("a", &fake)).build().unwrap();
    let params = Object::parse(&br#"{"name":"build","task":{}}"#.as_slice().into()).unwrap();
    let made =
        crib.call(Call::request("tools/call", Wanted::Named("a__build".into()), params)).await.unwrap();
    assert_eq!(made.to_value()["task"]["taskId"], "a__7");
    let get = |wanted: Wanted| crib.call(Call::request("tasks/get", wanted, Object::default()));
    let ways = || [Wanted::Task("a__7".into()), Wanted::On(id("a"), "7".into())];
    crib.govern(Policy::for_everyone(rules(None, &["a.other"])));
    for wanted in ways() {
        get(wanted).await.unwrap();
    }
    crib.govern(Policy::for_everyone(rules(None, &["a.build"])));
    for wanted in ways() {
        let refused = get(wanted).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("`policy.deny` has `a.build`"), "{refused}");
    }
    // Of whom nothing is known is judged by its server alone.
    get(Wanted::Task("a__8".into())).await.unwrap();
}

#[test]
fn the_list_is_what_can_be_called() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = runtime.block_on(async { crib(&ran).build().unwrap() });
    let pattern = || prop_oneof![Just("*".to_owned()), "[ab*]\\.(read|write|rm|r\\*|\\*e|Odd\\*)"];
    let list = || prop::collection::vec(pattern(), 0..3);
    let case = (prop::option::of(list()), list(), prop::option::of(list()), list());
    proptest!(ProptestConfig::with_cases(300), |(case in case)| {
        let made = |allow: &Option<Vec<String>>, deny: &[String]| {
            let parsed = |rules: &[String]| -> Vec<Rule> { rules.iter().map(|rule| rule.parse().unwrap()).collect() };
            let rules = Rules::default().denying(parsed(deny));
            allow.as_ref().map_or(rules.clone(), |allow| rules.allowing(parsed(allow)))
        };
        let mut policy = Policy::for_everyone(made(&case.0, &case.1));
        policy.callers.insert("me".to_owned(), made(&case.2, &case.3));
        crib.govern(policy);
        let me = Caller::named("me");
        runtime.block_on(async {
            let listed = names(&*crib.list_for(&me).await);
            let mut called = Vec::new();
            for tool in crib.catalog().tools() {
                for call in [Call::tool(&*tool.public_name), Call::on(tool.server.clone(), &*tool.own_name)] {
                    let went = crib.call(call.by(me.clone())).await.is_ok();
                    let name = format!("{}.{}", tool.server, tool.own_name);
                    assert_eq!(went, listed.contains(&name), "{name}");
                    if went { called.push(name); }
                }
            }
            assert_eq!(called.len(), 2 * listed.len());
        });
    });
}
