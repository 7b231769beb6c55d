//! In-process tools with typed arguments and a context.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, timeout};
use toolcrib::{
    Call, CallUpdate, Caller, Client, Crib, ErrorKind, LogLevel, ServerSpec, ToolContext, Toolbox,
};

use crate::support::{SECOND, id, kind, on, settle, with};

#[derive(Deserialize)]
struct City {
    name: String,
    days: Option<u8>,
}

fn toolbox_crib(tools: Toolbox) -> Crib {
    Crib::builder().server(ServerSpec::in_process(id("own"), tools)).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn typed_tool_gets_its_arguments_or_says_why_not() {
    let tools = Toolbox::new().typed_tool("weather", "d", &json!({}), |city: City, _| async move {
        Ok(json!({"city": city.name, "days": city.days.unwrap_or(1)}))
    });
    let crib = toolbox_crib(tools);
    let outcome = crib.call(with("own", "weather", &json!({"name": "Ulm"}))).await.unwrap();
    assert_eq!(outcome.structured::<Value>().unwrap(), json!({"city": "Ulm", "days": 1}));
    assert_eq!(outcome.text(), r#"{"city":"Ulm","days":1}"#);
    for (arguments, reason) in [
        (json!({}), "missing field `name`"),
        (json!({"name": 7}), "invalid type: integer `7`, expected a string"),
        (json!({"name": "Ulm", "days": 300}), "invalid value: integer `300`, expected u8"),
    ] {
        let outcome = crib.call(with("own", "weather", &arguments)).await.unwrap();
        let expected = format!("the arguments of `weather` are invalid: {reason}");
        assert_eq!((outcome.is_error(), outcome.text()), (true, expected));
    }
    let without = crib.call(on("own", "weather")).await.unwrap();
    assert!(without.text().ends_with("missing field `name`"), "{}", without.text());
}

#[tokio::test(start_paused = true)]
async fn context_has_caller_id_and_deadline() {
    let start = Instant::now();
    let tools = Toolbox::new().typed_tool("who", "d", &json!({}), move |_: Value, context: ToolContext| {
        let left = context.deadline().map(|deadline| (deadline - start).as_secs());
        let caller = context.caller();
        let facts = json!([caller.as_str(), caller.profile(), context.id(), left]);
        async move { Ok(facts.to_string()) }
    });
    let crib = toolbox_crib(tools);
    let call = on("own", "who").caller(Caller::new("ada")).id("toolu_3").timeout(7 * SECOND);
    assert_eq!(crib.call(call).await.unwrap().text(), r#"["ada",null,"toolu_3",7]"#);
    // Without a limit of the call, the server's `call-timeout` applies. What a client writes does not count.
    let mut params = toolcrib::Object::default();
    params.set("name", r#""who""#).unwrap();
    params.set("_meta", r#"{"toolcrib/call":{"caller":"root","id":"x"}}"#).unwrap();
    let forged = crib.call(on("own", "who").params(params)).await.unwrap();
    assert_eq!(forged.text(), r#"["local",null,null,60]"#);
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_is_visible_in_the_context() {
    let noticed = Arc::new(AtomicBool::new(false));
    let cleaned_up = noticed.clone();
    let tools = Toolbox::new().typed_tool("wait", "d", &json!({}), move |_: Value, context: ToolContext| {
        let cleaned_up = cleaned_up.clone();
        async move {
            context.cancelled().await;
            cleaned_up.store(context.is_cancelled(), Ordering::SeqCst);
            Ok("too late")
        }
    });
    let crib = toolbox_crib(tools);
    assert_eq!(kind(crib.call(on("own", "wait").timeout(SECOND)).await), ErrorKind::TimedOut);
    settle().await;
    assert!(noticed.load(Ordering::SeqCst));
}

/// Notifies when it is dropped.
struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[tokio::test(start_paused = true)]
async fn cancelled_tool_is_dropped_at_once_or_after_its_grace() {
    let dropped = Arc::new(Notify::new());
    let simple = dropped.clone();
    let typed = dropped.clone();
    let tools = Toolbox::new()
        .tool("simple", "d", &json!({}), move |_| {
            let alive = NotifyOnDrop(simple.clone());
            async move {
                sleep(3600 * SECOND).await;
                drop(alive);
                Ok(String::new())
            }
        })
        .typed_tool("typed", "d", &json!({}), move |_: Value, _| {
            let alive = NotifyOnDrop(typed.clone());
            async move {
                sleep(3600 * SECOND).await;
                drop(alive);
                Ok("")
            }
        });
    let crib = toolbox_crib(tools);
    for (tool, grace) in [("simple", 0), ("typed", 5)] {
        assert_eq!(kind(crib.call(on("own", tool).timeout(SECOND)).await), ErrorKind::TimedOut);
        let cancelled = Instant::now();
        timeout(60 * SECOND, dropped.notified()).await.unwrap();
        assert_eq!(cancelled.elapsed().as_secs(), grace, "{tool}");
    }
}

/// Returns the progress and log messages of a call, in order.
async fn updates(crib: &Crib, call: Call) -> Vec<Value> {
    let (sender, mut receiver) = mpsc::channel(16);
    crib.call(call.updates(sender)).await.unwrap();
    let mut updates = Vec::new();
    while let Ok(update) = receiver.try_recv() {
        updates.push(match update {
            CallUpdate::Progress(progress) => serde_json::from_slice(&progress.to_bytes()).unwrap(),
            CallUpdate::Log(params) => serde_json::from_slice(&params).unwrap(),
            other => panic!("unexpected {other:?}"),
        });
    }
    updates
}

#[tokio::test(start_paused = true)]
async fn progress_and_logs_arrive_before_the_result() {
    let tools =
        Toolbox::new().typed_tool("work", "d", &json!({}), |_: Value, context: ToolContext| async move {
            context.progress(1.0, Some(2.0), Some("half"));
            context.log(LogLevel::Info, "working");
            context.log(LogLevel::Debug, "details");
            context.progress(2.0, None, None);
            Ok("done")
        });
    let crib = toolbox_crib(tools);
    let expected = [
        json!({"progress": 1.0, "total": 2.0, "message": "half"}),
        json!({"level": "info", "data": "working"}),
        json!({"level": "debug", "data": "details"}),
        json!({"progress": 2.0}),
    ];
    assert_eq!(updates(&crib, on("own", "work")).await, expected);
    // Without a receiver nothing is sent to a client, and nothing breaks.
    assert_eq!(crib.call(on("own", "work")).await.unwrap().text(), "done");
}

#[tokio::test(start_paused = true)]
async fn logs_of_concurrent_clients_reach_their_own_call() {
    let tools =
        Toolbox::new().typed_tool("log", "d", &json!({}), |city: City, context: ToolContext| async move {
            sleep(SECOND).await;
            context.log(LogLevel::Warning, city.name);
            sleep(SECOND).await;
            Ok("done")
        });
    let crib = toolbox_crib(tools);
    let call = |key: u64, name: &str| {
        let client = Client { key, ..Client::without_capabilities() };
        with("own", "log", &json!({ "name": name })).client(client)
    };
    let (first, second) = tokio::join!(updates(&crib, call(1, "a")), updates(&crib, call(2, "b")));
    assert_eq!(first, [json!({"level": "warning", "data": "a"})]);
    assert_eq!(second, [json!({"level": "warning", "data": "b"})]);
}

#[tokio::test(start_paused = true)]
async fn panic_in_a_typed_tool_fails_only_its_call() {
    let tools = Toolbox::new().typed_tool("burst", "d", &json!({}), |city: City, _| async move {
        assert!(city.name != "x", "on purpose");
        Ok("whole")
    });
    let crib = toolbox_crib(tools);
    let burst = crib.call(with("own", "burst", &json!({"name": "x"}))).await.unwrap();
    assert_eq!((burst.is_error(), burst.text().as_str()), (true, "the tool panicked"));
    assert_eq!(crib.call(with("own", "burst", &json!({"name": "y"}))).await.unwrap().text(), "whole");
}
