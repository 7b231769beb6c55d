//! Access rules in force: a caller sees exactly the tools that it may call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::prelude::*;
use serde_json::json;
use toolcrib::access::policy::{Policy, Rule, Rules};
use toolcrib::protocol::json::object::Object;
use toolcrib::{
    Call, Caller, Catalog, Crib, CribBuilder, ErrorKind, Exposure, GuardVerdict, Selector, ServerSpec,
    Toolbox,
};

use crate::fake::FakeServer;
use crate::support::{id, spec};

/// A builder with servers `a` and `b` whose tools count how often they run.
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
    let parse = |texts: &[&str]| -> Vec<Rule> { texts.iter().map(|rule| rule.parse().unwrap()).collect() };
    let rules = Rules::default().denying(parse(deny));
    allow.map_or(rules.clone(), |allow| rules.allowing(parse(allow)))
}

fn policy() -> Policy {
    let mut policy = Policy::for_everyone(rules(None, &["*.rm"]));
    policy.callers.insert("ci".to_owned(), rules(Some(&["a.*"]), &["a.write", "a.Odd*"]));
    policy
}

fn names(catalog: &Catalog) -> Vec<String> {
    catalog.tools().iter().map(|tool| format!("{}.{}", tool.server, tool.own_name)).collect()
}

#[tokio::test]
async fn denied_tool_is_not_listed_and_never_runs() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran).policy(policy()).build().unwrap();
    let ci = Caller::new("ci");
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
        let error = crib.call(Call::tool(name).caller(ci.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{name}: {error}");
    }
    for tool in ["write", "rm", "Odd Name!"] {
        let error = crib.call(Call::tool_on(id("a"), tool).caller(ci.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{tool}: {error}");
    }
    // For this caller `b` does not exist, under any name.
    let unknown =
        crib.call(Call::tool_on(id("absent"), "read").caller(ci.clone())).await.unwrap_err().to_string();
    for call in [Call::tool("b__read"), Call::tool_on(id("b"), "read"), Call::tool_on(id("b"), "nope")] {
        let error = crib.call(call.caller(ci.clone())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unknown, "{error}");
        assert!(!error.hint().to_string().contains("`b"), "{}", error.hint());
    }
    let hidden = crib.call(Call::tool_on(id("b"), "read").caller(ci.clone())).await.unwrap_err().to_string();
    assert_eq!(hidden, unknown.replace("absent", "b"));
    assert_eq!(ran.load(Ordering::Relaxed), 0);
    // The bare name is unambiguous for this caller, although two servers have the tool.
    assert_eq!(crib.call(Call::tool("read").caller(ci)).await.unwrap().text(), "ran");
    assert_eq!(ran.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn unknown_method_needs_unrestricted_access() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran).policy(policy()).build().unwrap();
    let ask = |caller: &str, server: &str, method: &'static str, name: &str| {
        let selector = Selector::OnServer(id(server), name.to_owned());
        crib.call(Call::request(method, selector, Object::default()).caller(Caller::new(caller)))
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
async fn guard_applies_to_lists_and_calls() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran)
        .guard(|caller, server, name| match (caller.as_str(), server.as_str(), name) {
            (_, "b", None) => GuardVerdict::Deny("not here".to_owned()),
            (_, _, Some("write")) => GuardVerdict::Deny("read only".to_owned()),
            _ => GuardVerdict::Allow,
        })
        .build()
        .unwrap();
    assert_eq!(names(&*crib.list().await), ["a.read", "a.Odd Name!", "a.rm"]);
    let error = crib.call(Call::tool("a__write")).await.unwrap_err();
    assert_eq!(error.to_string(), "`local` may not use `a.write`: read only");
    let error = crib.call(Call::tool("b__read")).await.unwrap_err();
    assert_eq!(error.to_string(), "`local` may not use `b`: not here");
    // The guard stays when the rules are replaced.
    crib.set_policy(Policy::for_everyone(rules(None, &["a.rm"])));
    assert_eq!(names(&*crib.list().await), ["a.read", "a.Odd Name!"]);
    assert_eq!(crib.discover().await.len(), 1);
}

#[tokio::test]
async fn new_rules_apply_to_the_next_call_and_are_announced() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran).build().unwrap();
    crib.call(Call::tool("a__write")).await.unwrap();
    let mut changes = crib.watch_catalog();
    changes.mark_unchanged();
    crib.set_policy(Policy::for_everyone(rules(None, &["a.write"])));
    assert_eq!(crib.call(Call::tool("a__write")).await.unwrap_err().kind(), ErrorKind::Denied);
    changes.changed().await.unwrap();
    assert!(!names(&crib.catalog_for(&Caller::local())).contains(&"a.write".to_owned()));
    crib.set_policy(Policy::default());
    crib.call(Call::tool("a__write")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn task_is_authorized_by_the_tool_that_created_it() {
    let task = r#"{"jsonrpc":"2.0","id":$ID,"result":{"taskId":"7","status":"working"}}"#;
    let fake = FakeServer::with_tools(&["build", "other"])
        .script(
            "tools/call",
            &[r#"{"jsonrpc":"2.0","id":$ID,"result":{"task":{"taskId":"7","status":"working"}}}"#],
        )
        .script("tasks/get", &[task; 3]);
    let crib = Crib::builder().server(spec("a", &fake)).build().unwrap();
    let params = Object::parse(&br#"{"name":"build","task":{}}"#.as_slice().into()).unwrap();
    let made =
        crib.call(Call::request("tools/call", Selector::Tool("a__build".into()), params)).await.unwrap();
    assert_eq!(made.to_value()["task"]["taskId"], "a__7");
    let get = |selector: Selector| crib.call(Call::request("tasks/get", selector, Object::default()));
    let selectors = || [Selector::Task("a__7".into()), Selector::OnServer(id("a"), "7".into())];
    crib.set_policy(Policy::for_everyone(rules(None, &["a.other"])));
    for selector in selectors() {
        get(selector).await.unwrap();
    }
    crib.set_policy(Policy::for_everyone(rules(None, &["a.build"])));
    for selector in selectors() {
        let refused = get(selector).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("`policy.deny` has `a.build`"), "{refused}");
    }
    // A task of an unknown tool is authorized by its server alone.
    get(Selector::Task("a__8".into())).await.unwrap();
}

#[test]
fn listed_tools_are_exactly_the_callable_ones() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = runtime.block_on(async { crib(&ran).build().unwrap() });
    let pattern = || prop_oneof![Just("*".to_owned()), "[ab*]\\.(read|write|rm|r\\*|\\*e|Odd\\*)"];
    let list = || prop::collection::vec(pattern(), 0..3);
    let case = (prop::option::of(list()), list(), prop::option::of(list()), list());
    proptest!(ProptestConfig::with_cases(300), |(case in case)| {
        let rules = |allow: &Option<Vec<String>>, deny: &[String]| {
            let parse = |rules: &[String]| -> Vec<Rule> { rules.iter().map(|rule| rule.parse().unwrap()).collect() };
            let rules = Rules::default().denying(parse(deny));
            allow.as_ref().map_or(rules.clone(), |allow| rules.allowing(parse(allow)))
        };
        let mut policy = Policy::for_everyone(rules(&case.0, &case.1));
        policy.callers.insert("me".to_owned(), rules(&case.2, &case.3));
        crib.set_policy(policy);
        let me = Caller::new("me");
        runtime.block_on(async {
            let listed = names(&*crib.list_for(&me).await);
            let mut called = Vec::new();
            for tool in crib.catalog().tools() {
                for call in [Call::tool(&*tool.public_name), Call::tool_on(tool.server.clone(), &*tool.own_name)] {
                    let is_called = crib.call(call.caller(me.clone())).await.is_ok();
                    let name = format!("{}.{}", tool.server, tool.own_name);
                    assert_eq!(is_called, listed.contains(&name), "{name}");
                    if is_called { called.push(name); }
                }
            }
            assert_eq!(called.len(), 2 * listed.len());
        });
    });
}

/// Lists nothing.
#[derive(Debug)]
struct HiddenTools;

impl Exposure for HiddenTools {
    fn listed(&self, _: &Caller, _: &Arc<Catalog>) -> Arc<Catalog> {
        Arc::default()
    }
}

#[tokio::test(start_paused = true)]
async fn tool_that_is_not_listed_can_be_called() {
    let builder = Crib::builder().server(spec("a", &FakeServer::new()));
    let crib = builder.exposure(Arc::new(HiddenTools)).build().unwrap();
    crib.call(Call::tool("a__echo")).await.unwrap();
    assert!(crib.list().await.tools().is_empty());
    assert!(!crib.callable_catalog_for(&Caller::local()).tools().is_empty());
    crib.call(Call::tool("a__echo")).await.unwrap();
    crib.set_policy(Policy::for_everyone(rules(None, &["a.echo"])));
    assert_eq!(crib.call(Call::tool("a__echo")).await.unwrap_err().kind(), ErrorKind::Denied);
}

#[tokio::test(start_paused = true)]
async fn denied_bare_name_is_refused_with_its_rule() {
    let ran = Arc::new(AtomicUsize::new(0));
    let crib = crib(&ran).policy(policy()).build().unwrap();
    crib.list().await;
    // Both servers have the tool, and both are denied.
    let error = crib.call(Call::tool("rm")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("`policy.deny` has `*.rm`"), "{error}");
    // One of them does not exist for this caller; the other one is named.
    let error = crib.call(Call::tool("write").caller(Caller::new("ci"))).await.unwrap_err();
    assert_eq!(error.to_string(), "`ci` may not use `a.write`: `callers.ci.deny` has `a.write`");
    crib.set_policy(Policy::for_everyone(rules(None, &["a.read"])));
    assert_eq!(crib.call(Call::tool("read")).await.unwrap().text(), "ran", "only `b` has it for the caller");
}

#[tokio::test(start_paused = true)]
async fn wholly_denied_server_says_so_to_the_local_user_only() {
    let ran = Arc::new(AtomicUsize::new(0));
    let is_listed_first = [true, false];
    for is_listed in is_listed_first {
        let crib = crib(&ran).build().unwrap();
        if is_listed {
            crib.list().await;
        }
        crib.set_policy(Policy::for_everyone(rules(None, &["b.*"])));
        for call in [|| Call::tool("b__read"), || Call::tool_on(id("b"), "read")] {
            let error = crib.call(call()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            assert!(error.to_string().contains("`policy.deny` has `b.*`"), "{error}");
            let hidden = crib.call(call().caller(Caller::new("ci"))).await.unwrap_err();
            assert_eq!(hidden.kind(), ErrorKind::Unknown, "{hidden}");
        }
        let error = crib.list_server(&id("b")).await.unwrap_err();
        assert_eq!(error.to_string(), "`local` may not use `b`: `policy.deny` has `b.*`");
        assert_eq!(
            crib.list_server_for(&id("b"), &Caller::new("ci")).await.unwrap_err().kind(),
            ErrorKind::Unknown
        );
    }
    assert_eq!(ran.load(Ordering::Relaxed), 0);
}
