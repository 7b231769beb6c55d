//! Every step of a script, seen through a crib: in this process on a paused clock, and as a child process.
#![expect(clippy::unwrap_used, reason = "a failing test should panic at the cause")]

use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;
use toolcrib::{
    Call, CallUpdate, Client, ClientCapabilities, Crib, ErrorKind, Lifecycle, ResponsePayload, ServerSpec,
};
use toolcrib_testkit::{Script, ScriptedServer, StartMode};

fn crib_with(spec: ServerSpec) -> Crib {
    Crib::builder().server(spec).build().unwrap()
}

fn in_process(server: &ScriptedServer) -> Crib {
    crib_with(ServerSpec::in_process("fake".parse().unwrap(), server.clone()))
}

fn as_child(server: &ScriptedServer) -> Crib {
    let command = server.command(env!("CARGO_BIN_EXE_toolcrib-testkit"));
    crib_with(ServerSpec::command("fake".parse().unwrap(), command))
}

async fn text(crib: &Crib, tool: &str) -> String {
    crib.call(Call::tool(tool)).await.unwrap().text()
}

/// Calls a tool, answers every question with `answer`, and returns the result and everything before it.
async fn call_and_answer(crib: &Crib, tool: &str, answer: &Value) -> (String, Vec<String>) {
    let (sender, mut updates) = mpsc::channel(16);
    let capabilities = ClientCapabilities::parse(&r#"{"elicitation":{},"sampling":{},"roots":{}}"#.into());
    let client = Client { key: 1, capabilities, ..Client::without_capabilities() };
    let call = crib.call(Call::tool(tool).client(client).updates(sender));
    let collect = async {
        let mut seen = Vec::new();
        while let Some(update) = updates.recv().await {
            match update {
                CallUpdate::Progress(params) => seen.push(format!("progress {params:?}")),
                CallUpdate::Log(params) => seen.push(String::from_utf8_lossy(&params).into_owned()),
                CallUpdate::Request(request) => {
                    seen.push(request.method.clone());
                    request.answer(ResponsePayload::Result(answer.to_string().into()));
                }
                _ => {}
            }
        }
        seen
    };
    let (outcome, seen) = tokio::join!(call, collect);
    (outcome.unwrap().text(), seen)
}

fn answering() -> ScriptedServer {
    ScriptedServer::new()
        .tool("text", Script::new().text("hello"))
        .tool("arguments", Script::new().arguments())
        .tool("empty", Script::new())
        .tool("tool_error", Script::new().tool_error("no"))
        .tool("error", Script::new().error(-32000, "refused"))
        .tool("result", Script::new().result(json!({"content": [], "structuredContent": {"a": 1}})))
        .tool_calls("twice", [Script::new().text("first"), Script::new().text("other")])
        .method("resources/list", Script::new().result(json!({"resources": [{"uri": "x:1", "name": "one"}]})))
}

#[tokio::test(start_paused = true)]
async fn answers_follow_the_script_in_both_eras() {
    for server in [answering(), answering().stateless()] {
        let crib = in_process(&server);
        assert_eq!(text(&crib, "text").await, "hello");
        assert_eq!(text(&crib, "empty").await, "");
        let echoed = crib.call(Call::tool("arguments").arguments(&json!({"a": 1}))).await.unwrap();
        assert_eq!(echoed.text(), r#"{"a":1}"#);
        assert!(crib.call(Call::tool("tool_error")).await.unwrap().is_error());
        assert!(crib.call(Call::tool("error")).await.unwrap().is_error());
        let result = crib.call(Call::tool("result")).await.unwrap().to_value();
        assert_eq!(result["structuredContent"], json!({"a": 1}));
        let calls = [text(&crib, "twice").await, text(&crib, "twice").await, text(&crib, "twice").await];
        assert_eq!(calls, ["first", "other", "other"]);
        assert_eq!(server.received("resources/list").len(), 1);
        assert_eq!(server.starts(), 1);
        crib.shutdown(Duration::ZERO).await;
        assert_eq!(server.running(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn waits_take_no_real_time_on_a_paused_clock() {
    let long = Duration::from_secs(30);
    let crib = in_process(&ScriptedServer::new().tool("slow", Script::new().wait(long).text("done")));
    let started = Instant::now();
    assert_eq!(text(&crib, "slow").await, "done");
    assert!(started.elapsed() >= long);
}

#[tokio::test(start_paused = true)]
async fn crash_ends_the_call_and_the_next_start_answers() {
    let server = ScriptedServer::new()
        .tool("crash", Script::new().crash())
        .tool("bad", Script::new().line(r#"{"jsonrpc":"2.0","id":$ID,"result":7}"#))
        .tool("text", Script::new().text("up"));
    let crib = in_process(&server);
    assert_eq!(crib.call(Call::tool("crash")).await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(text(&crib, "text").await, "up");
    assert_eq!(crib.call(Call::tool("bad")).await.unwrap_err().kind(), ErrorKind::BadReply);
    server.crash();
    assert_eq!(text(&crib, "text").await, "up");
    assert_eq!(server.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn hanging_call_times_out_and_is_cancelled_at_the_server() {
    let server = ScriptedServer::new().tool("hang", Script::new().hang());
    let crib = in_process(&server);
    let call = Call::tool("hang").timeout(Duration::from_secs(1));
    assert_eq!(crib.call(call).await.unwrap_err().kind(), ErrorKind::TimedOut);
    crib.shutdown(Duration::ZERO).await;
    assert_eq!(server.received("notifications/cancelled").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn questions_progress_and_logs_reach_the_client() {
    let script = Script::new().progress(1, 2).log("working").elicit("Really?").response();
    let crib = in_process(&ScriptedServer::new().tool("ask", script));
    let (result, seen) = call_and_answer(&crib, "ask", &json!({"action": "accept"})).await;
    assert_eq!(result, r#"{"action":"accept"}"#);
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[0].starts_with("progress") && seen[1].contains("working"), "{seen:?}");
    assert_eq!(seen[2], "elicitation/create");
}

#[tokio::test(start_paused = true)]
async fn every_kind_of_question_is_asked_in_order() {
    for server in [ScriptedServer::new(), ScriptedServer::new().stateless()] {
        let script = Script::new().sample("once upon").list_roots().elicit("Really?").response();
        let crib = in_process(&server.tool("ask", script));
        let (result, seen) = call_and_answer(&crib, "ask", &json!({"n": 1})).await;
        assert_eq!(seen, ["sampling/createMessage", "roots/list", "elicitation/create"]);
        assert_eq!(result, r#"{"n":1}"#);
    }
}

#[tokio::test(start_paused = true)]
async fn stateless_questions_go_on_at_the_next_call() {
    let server = ScriptedServer::new().tool("ask", Script::new().elicit("Really?").response()).stateless();
    let crib = in_process(&server);
    let (result, seen) = call_and_answer(&crib, "ask", &json!({"action": "decline"})).await;
    assert_eq!(
        (result.as_str(), &*seen),
        (r#"{"action":"decline"}"#, &["elicitation/create".to_owned()][..])
    );
    assert_eq!(server.received("tools/call").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn added_tools_are_announced_in_both_eras() {
    for server in [ScriptedServer::new(), ScriptedServer::new().stateless()] {
        let server = server.tool("grow", Script::new().add_tool("second").text("grown"));
        let crib = in_process(&server);
        let mut catalog = crib.watch_catalog();
        assert_eq!(text(&crib, "grow").await, "grown");
        let has = |name: &'static str| {
            move |catalog: &std::sync::Arc<toolcrib::Catalog>| {
                catalog.tools().iter().any(|tool| &*tool.own_name == name)
            }
        };
        tokio::time::timeout(Duration::from_secs(60), catalog.wait_for(has("second")))
            .await
            .unwrap()
            .unwrap();
        server.add_tool("third", Script::new().text("3"));
        tokio::time::timeout(Duration::from_secs(60), catalog.wait_for(has("third"))).await.unwrap().unwrap();
        crib.shutdown(Duration::ZERO).await;
    }
}

#[tokio::test(start_paused = true)]
async fn starts_behave_as_scripted() {
    let lifecycle = Lifecycle { start_timeout: Duration::from_secs(10), ..Lifecycle::default() };
    let start = async |modes: &[StartMode]| {
        let server =
            ScriptedServer::new().tool("text", Script::new().text("up")).first_starts(modes.to_vec());
        let spec = ServerSpec::in_process("fake".parse().unwrap(), server).lifecycle(lifecycle.clone());
        let crib = crib_with(spec);
        crib.call(Call::tool_on("fake".parse().unwrap(), "text")).await
    };
    assert!(start(&[StartMode::slow(Duration::from_secs(5))]).await.is_ok());
    assert!(start(&[StartMode::Exits, StartMode::NotJson]).await.is_ok());
    for failing in [StartMode::Silent, StartMode::Refuses, StartMode::slow(Duration::from_secs(20))] {
        assert_eq!(start(&[failing; 4]).await.unwrap_err().kind(), ErrorKind::CouldNotStart, "{failing:?}");
    }
}

#[tokio::test]
async fn child_process_follows_the_same_script() {
    let folder = std::env::temp_dir().join(format!("toolcrib-testkit-{}", std::process::id()));
    let server = answering()
        .tool("crash", Script::new().crash())
        .first_starts([StartMode::Exits])
        .start_count(&folder);
    let crib = as_child(&server);
    assert_eq!(text(&crib, "text").await, "hello");
    let error = crib.call(Call::tool("crash")).await.unwrap_err();
    assert!(error.to_string().contains("exit status 101"), "{error}");
    assert_eq!(text(&crib, "text").await, "hello");
    crib.shutdown(Duration::from_secs(1)).await;
    let starts = std::fs::read(&folder).unwrap().len();
    std::fs::remove_file(&folder).unwrap();
    assert_eq!(starts, 3);
}

#[test]
fn invalid_script_is_reported_with_status_64() {
    let program = env!("CARGO_BIN_EXE_toolcrib-testkit");
    let output = std::process::Command::new(program).arg(r#"{"tool": 1}"#).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("unknown field `tool`"));
}

#[test]
fn step_after_the_answer_is_refused() {
    type Ending = (&'static str, fn(Script) -> Script);
    let endings: [Ending; 9] = [
        ("Text", |script| script.text("a")),
        ("ToolError", |script| script.tool_error("a")),
        ("Result", |script| script.result(json!({}))),
        ("Error", |script| script.error(-1, "a")),
        ("Response", Script::response),
        ("Arguments", Script::arguments),
        ("Line", |script| script.line("noise")),
        ("Hang", Script::hang),
        ("Crash", Script::crash),
    ];
    for (name, end) in endings {
        for further in [|script: Script| script.log("b"), |script: Script| script.text("ok")] {
            let script = end(Script::new().log("before"));
            let built = std::panic::catch_unwind(|| further(script));
            let panic = built.expect_err(name);
            let message = panic.downcast_ref::<String>().unwrap();
            assert!(message.contains("would never run") && message.contains(name), "{name}: {message}");
        }
    }
}

#[test]
fn parsed_script_with_a_step_after_the_answer_is_refused() {
    let script: Script = serde_json::from_value(json!([{"log": "a"}, {"line": "b"}])).unwrap();
    assert_eq!(script, Script::new().log("a").line("b"));
    assert_eq!(serde_json::to_value(&script).unwrap(), json!([{"log": "a"}, {"line": "b"}]));
    let error = serde_json::from_value::<Script>(json!([{"line": "noise"}, {"text": "ok"}])).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the step Text(\"ok\") would never run, because Line(\"noise\") ends the script"
    );
}
