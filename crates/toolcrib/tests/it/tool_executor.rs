//! The crib as a tool executor, fallbacks, and tool definitions for model APIs.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use toolcrib::{Call, Caller, Crib, ErrorKind, Outcome, Policy, Rules, SchemaFormat, ToolCall, ToolExecutor};

use crate::fake::FakeServer;
use crate::support::{SECOND, crib, id, kind, spec};

fn text_result(text: &str) -> Outcome {
    Outcome::result(&json!({"content": [{"type": "text", "text": text}]}))
}

/// Returns a crib whose fallback records its calls.
fn recording_crib(fake: &FakeServer) -> (Crib, Arc<Mutex<Vec<ToolCall>>>) {
    let seen: Arc<Mutex<Vec<ToolCall>>> = Arc::default();
    let record = seen.clone();
    let builder = Crib::builder().server(spec("git", fake)).fallback(move |call| {
        record.lock().unwrap().push(call);
        async { Ok(text_result("own")) }
    });
    (builder.build().unwrap(), seen)
}

#[tokio::test(start_paused = true)]
async fn crib_runs_a_tool_call_as_an_executor() {
    let fake = FakeServer::with_tools(&["log"]);
    let executor: Arc<dyn ToolExecutor> = Arc::new(crib(&[("git", &fake)]));
    let call = ToolCall::new("git__log", json!({"max": 3})).id("toolu_1").caller(Caller::new("ada"));
    let outcome = executor.execute(call.deadline(Instant::now() + SECOND)).await.unwrap();
    assert_eq!(outcome.server, Some(id("git")));
    assert_eq!(fake.received("tools/call")[0]["params"]["arguments"], json!({"max": 3}));
}

#[tokio::test(start_paused = true)]
async fn fallback_gets_arguments_deadline_caller_and_id() {
    let fake = FakeServer::with_tools(&["log"]);
    let (crib, seen) = recording_crib(&fake);
    let start = Instant::now();
    let call = Call::tool("weather").arguments(&json!({"city": "Ulm"})).caller(Caller::new("ada"));
    assert_eq!(crib.call(call.id("toolu_7").timeout(5 * SECOND)).await.unwrap().text(), "own");
    crib.call(Call::tool("weather")).await.unwrap();
    crib.call(Call::tool("weather").deadline(start + 3 * SECOND).timeout(5 * SECOND)).await.unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!((seen[0].name.as_str(), seen[0].id.as_str()), ("weather", "toolu_7"));
    assert_eq!((&seen[0].arguments, seen[0].caller.as_str()), (&json!({"city": "Ulm"}), "ada"));
    assert_eq!(seen[0].deadline, Some(start + 5 * SECOND));
    assert_eq!((&seen[1].arguments, seen[1].deadline), (&json!({}), None));
    assert!(!seen[1].id.is_empty() && seen[1].id != seen[2].id, "each call has an id");
    assert_eq!(seen[2].deadline, Some(start + 3 * SECOND), "the earlier limit applies");
}

#[tokio::test(start_paused = true)]
async fn fallback_runs_only_unknown_tools() {
    let fake = FakeServer::with_tools(&["log"]);
    let (crib, seen) = recording_crib(&fake);
    crib.call(Call::tool("git__log")).await.unwrap();
    assert_eq!(kind(crib.call(Call::tool_on(id("other"), "log")).await), ErrorKind::Unknown);
    assert_eq!(kind(crib.get_prompt("weather", &json!({})).await), ErrorKind::Unknown);
    assert_eq!(kind(crib.read_resource("x://1").await), ErrorKind::Unknown);
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn fallback_can_be_another_crib() {
    let near = FakeServer::with_tools(&["log"]);
    let far = FakeServer::with_tools(&["now"]);
    let crib = Crib::builder().server(spec("git", &near)).fallback_executor(crib(&[("time", &far)]));
    let crib = crib.build().unwrap();
    assert_eq!(crib.call(Call::tool("time__now")).await.unwrap().server, Some(id("time")));
    assert_eq!(kind(crib.call(Call::tool("nowhere")).await), ErrorKind::Unknown);
}

#[tokio::test(start_paused = true)]
async fn deadline_drops_the_fallback_and_a_passed_one_sends_nothing() {
    let fake = FakeServer::with_tools(&["log"]);
    let builder = Crib::builder().server(spec("git", &fake)).fallback(|_| async {
        sleep(60 * SECOND).await;
        Ok(text_result("late"))
    });
    let crib = builder.build().unwrap();
    let start = Instant::now();
    let call = ToolCall::new("weather", json!({})).deadline(start + 2 * SECOND);
    assert_eq!(kind(crib.execute(call).await), ErrorKind::TimedOut);
    assert_eq!(start.elapsed(), 2 * SECOND);
    let call = ToolCall::new("git__log", json!({})).deadline(start + 2 * SECOND);
    let late = crib.execute(call).await.unwrap_err();
    assert!(late.kind() == ErrorKind::TimedOut && late.is_not_sent(), "{late}");
    assert!(fake.called_tools().is_empty());
}

/// A server whose tools are listed in another order at every start, one of them without a schema.
fn unsorted_server(tools: &[Value]) -> FakeServer {
    let line = format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{}}}"#, json!({ "tools": tools }));
    FakeServer::new().script("tools/list", &[&line])
}

#[tokio::test(start_paused = true)]
async fn schemas_have_a_stable_order_and_the_form_of_each_api() {
    let log = json!({"name": "log", "description": "Shows commits", "annotations": {"readOnlyHint": true},
        "inputSchema": {"type": "object", "properties": {"max": {"type": "integer"}}}});
    let bare = json!({"name": "add", "inputSchema": null});
    let mut forms = Vec::new();
    for tools in [[log.clone(), bare.clone()], [bare, log]] {
        let crib = crib(&[("git", &unsorted_server(&tools))]);
        let local = Caller::local();
        let mcp = crib.schemas(SchemaFormat::Mcp, &local).await;
        let open_ai = crib.schemas(SchemaFormat::OpenAi, &local).await;
        forms.push((mcp, open_ai, crib.schemas(SchemaFormat::Anthropic, &local).await));
    }
    assert_eq!(forms[0], forms[1]);
    let (mcp, open_ai, anthropic) = &forms[0];
    let parameters = json!({"type": "object", "properties": {"max": {"type": "integer"}}});
    assert_eq!(mcp[0], json!({"name": "git__add", "inputSchema": {"type": "object"}}));
    assert_eq!((&mcp[1]["name"], &mcp[1]["inputSchema"]), (&json!("git__log"), &parameters));
    assert_eq!(mcp[1]["annotations"], json!({"readOnlyHint": true}));
    assert_eq!(
        open_ai[1],
        json!({"type": "function",
            "function": {"name": "git__log", "description": "Shows commits", "parameters": parameters}})
    );
    assert_eq!(open_ai[0]["function"]["parameters"], json!({"type": "object", "properties": {}}));
    assert_eq!(
        anthropic[0],
        json!({"name": "git__add", "description": "", "input_schema": {"type": "object"}})
    );
    assert_eq!(anthropic[1]["input_schema"], parameters);
}

#[tokio::test(start_paused = true)]
async fn schemas_have_only_what_the_caller_may_see() {
    let fake = FakeServer::with_tools(&["log", "push"]);
    let deny = Rules { deny: vec!["git.push".parse().unwrap()], ..Rules::default() };
    let mut policy = Policy::default();
    policy.callers.insert("ada".to_owned(), deny);
    let crib = Crib::builder().server(spec("git", &fake)).policy(policy).build().unwrap();
    let count = async |caller| crib.schemas(SchemaFormat::Mcp, &Caller::new(caller)).await.len();
    assert_eq!((count("ada").await, count("bob").await), (1, 2));
}
