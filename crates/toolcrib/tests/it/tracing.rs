//! Each call is one span, also across awaits, without arguments and results.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::task::JoinSet;
use toolcrib::protocol::json::object::Object;
use toolcrib::{Call, Caller, Selector, ServerId};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, spawn};

type Fields = BTreeMap<String, String>;

/// The fields of an event, and its span.
type EventLine = (Option<u64>, Fields);

/// A layer that records every span and event.
#[derive(Clone, Default)]
struct Recorded {
    spans: Arc<Mutex<BTreeMap<u64, Fields>>>,
    lines: Arc<Mutex<Vec<EventLine>>>,
}

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Recorded {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, _: Context<'_, S>) {
        let mut fields = Fields::from([("span".to_owned(), attributes.metadata().name().to_owned())]);
        attributes.record(&mut Collect(&mut fields));
        self.spans.lock().unwrap().insert(id.into_u64(), fields);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(fields) = self.spans.lock().unwrap().get_mut(&id.into_u64()) {
            values.record(&mut Collect(fields));
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::new();
        event.record(&mut Collect(&mut fields));
        let span = context.event_span(event).map(|span| span.id().into_u64());
        self.lines.lock().unwrap().push((span, fields));
    }

    /// Moves the fields of a closed span to an unused id, because ids are reused.
    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut spans = self.spans.lock().unwrap();
        let mut lines = self.lines.lock().unwrap();
        if let Some(fields) = spans.remove(&id.into_u64()) {
            let recorded = u64::MAX - spans.len() as u64 - lines.len() as u64;
            lines
                .iter_mut()
                .filter(|(span, _)| *span == Some(id.into_u64()))
                .for_each(|(span, _)| *span = Some(recorded));
            spans.insert(recorded, fields);
        }
    }
}

impl Recorded {
    /// Returns the fields of each call's span and last event.
    fn calls(&self) -> Vec<Fields> {
        let lines = self.lines.lock().unwrap();
        let ended = lines.iter().filter(|(_, fields)| fields.contains_key("outcome"));
        let spans = self.spans.lock().unwrap();
        ended
            .map(|(span, fields)| spans[&span.unwrap()].clone().into_iter().chain(fields.clone()).collect())
            .collect()
    }
}

/// Records spans and events of this thread. The first call makes sure that the callsites are registered, because their
/// cached interest would otherwise be wrong for all threads.
async fn record() -> (Recorded, tracing::subscriber::DefaultGuard) {
    let recorded = Recorded::default();
    let guard = tracing::subscriber::set_default(Registry::default().with(recorded.clone()));
    crib(&[("first", &FakeServer::new())]).call(Call::tool("first__echo")).await.unwrap();
    tracing::callsite::rebuild_interest_cache();
    recorded.lines.lock().unwrap().clear();
    (recorded, guard)
}

#[tokio::test(start_paused = true)]
async fn call_is_one_span_with_its_fields() {
    let (recorded, _guard) = record().await;
    let crib = crib(&[("git", &FakeServer::new())]);
    crib.call(Call::tool("git__echo").caller(Caller::new("ada"))).await.unwrap();
    crib.call(Call::tool("git__fail")).await.unwrap();
    crib.call(Call::tool("git__hang").timeout(SECOND)).await.unwrap_err();
    crib.call(Call::tool("absent")).await.unwrap_err();
    let calls = recorded.calls();
    let field = |at: usize, field: &str| calls[at].get(field).map_or("", String::as_str);
    assert_eq!(calls.len(), 4);
    assert_eq!([field(0, "span"), field(0, "mcp.method.name")], ["tools/call", "tools/call"]);
    assert_eq!(
        [field(0, "toolcrib.server"), field(0, "gen_ai.tool.name"), field(0, "toolcrib.caller")],
        ["git", "git__echo", "ada"]
    );
    assert_eq!([0, 1, 2, 3].map(|at| field(at, "outcome")), ["ok", "tool_error", "timed_out", "unknown"]);
    assert_eq!([0, 1, 2, 3].map(|at| field(at, "error.type")), ["", "tool_error", "timed_out", "unknown"]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_ends_its_span_with_an_error_type() {
    let (recorded, _guard) = record().await;
    let crib = crib(&[("git", &FakeServer::new())]);
    crib.list().await;
    assert!(tokio::time::timeout(SECOND, crib.call(Call::tool("git__hang"))).await.is_err());
    let calls = recorded.calls();
    assert_eq!(calls.len(), 1, "{calls:?}");
    assert_eq!([&*calls[0]["outcome"], &*calls[0]["error.type"]], ["cancelled", "cancelled"]);
    assert_eq!(calls[0]["toolcrib.server"], "git");
}

#[tokio::test(start_paused = true)]
async fn span_is_named_after_the_method() {
    let (recorded, _guard) = record().await;
    let crib = crib(&[("git", &FakeServer::new())]);
    let server: ServerId = "git".parse().unwrap();
    for (method, name) in [("prompts/get", "review"), ("resources/read", "file:///secret.txt")] {
        let selector = Selector::OnServer(server.clone(), name.to_owned());
        crib.call(Call::request(method, selector, Object::default())).await.unwrap();
    }
    let calls = recorded.calls();
    let field = |at: usize, field: &str| calls[at].get(field).map_or("", String::as_str);
    assert_eq!([0, 1].map(|at| field(at, "span")), ["prompts/get", "resources/read"]);
    assert_eq!([0, 1].map(|at| field(at, "mcp.method.name")), ["prompts/get", "resources/read"]);
    assert_eq!([0, 1].map(|at| field(at, "gen_ai.prompt.name")), ["review", ""]);
    assert_eq!([0, 1].map(|at| field(at, "gen_ai.tool.name")), ["", ""]);
    assert_eq!([0, 1].map(|at| field(at, "gen_ai.operation.name")), ["", ""]);
    let text = format!("{calls:?}");
    assert!(!text.contains("secret.txt"), "URIs are not recorded: {text}");
}

#[tokio::test(start_paused = true)]
async fn spans_stay_separate_when_calls_interleave() {
    let (recorded, _guard) = record().await;
    let git = FakeServer::with_tools(&["slow"]);
    let time = FakeServer::with_tools(&["late"]).default_start(FakeStart::SlowHandshake(SECOND));
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = JoinSet::new();
    for n in 0..40u64 {
        let (server, tool) = if n % 2 == 0 { ("git", "git__slow") } else { ("time", "time__late") };
        let call = Call::tool(tool)
            .arguments(&json!({"ms": n * 13 % 40}))
            .caller(Caller::new(&format!("{server}-{n}")));
        spawn(&mut calls, &crib, call);
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    let calls = recorded.calls();
    assert_eq!(calls.len(), 40);
    for call in calls {
        let server = &call["toolcrib.server"];
        let caller = &call["toolcrib.caller"];
        assert!(
            caller.starts_with(server.as_str()) && call["gen_ai.tool.name"].starts_with(server.as_str()),
            "{call:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn arguments_and_results_are_not_traced() {
    let (recorded, _guard) = record().await;
    let crib = crib(&[("git", &FakeServer::new())]);
    let secret =
        json!({"password": "hunter2", "lines": [r#"{"jsonrpc":"2.0","id":"$ID","result":{"a":"hunter2"}}"#]});
    for tool in ["echo", "fail", "refuse", "say", "die"] {
        drop(crib.call(Call::tool(format!("git__{tool}")).arguments(&secret)).await);
    }
    let everything = format!("{:?} {:?}", recorded.spans.lock().unwrap(), recorded.lines.lock().unwrap());
    assert!(
        everything.contains("git__say")
            && !everything.contains("hunter2")
            && !everything.contains("password")
    );
}
