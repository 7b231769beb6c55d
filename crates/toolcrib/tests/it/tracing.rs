//! One span per call, true across awaits, and silent about what was said.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use serde_json::json;
use tokio::task::JoinSet;
use toolcrib::{Call, Caller};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::layer::{Context, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, crib, spawn};

type Fields = BTreeMap<String, String>;

/// What was said, and in which span.
type Line = (Option<u64>, Fields);

/// Keeps every span of a call, and every line said, with the span it was said in.
#[derive(Clone, Default)]
struct Kept {
    spans: Arc<Mutex<BTreeMap<u64, Fields>>>,
    lines: Arc<Mutex<Vec<Line>>>,
}

struct Collect<'a>(&'a mut Fields);

impl Visit for Collect<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Kept {
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

    /// Ids are used again once a span is closed; what is kept moves out of the way.
    fn on_close(&self, id: Id, _: Context<'_, S>) {
        let mut spans = self.spans.lock().unwrap();
        let mut lines = self.lines.lock().unwrap();
        if let Some(fields) = spans.remove(&id.into_u64()) {
            let kept = u64::MAX - spans.len() as u64 - lines.len() as u64;
            lines
                .iter_mut()
                .filter(|(span, _)| *span == Some(id.into_u64()))
                .for_each(|(span, _)| *span = Some(kept));
            spans.insert(kept, fields);
        }
    }
}

impl Kept {
    /// The fields of every call's span together with those of its last line.
    fn calls(&self) -> Vec<Fields> {
        let lines = self.lines.lock().unwrap();
        let ended = lines.iter().filter(|(_, fields)| fields.contains_key("outcome"));
        let spans = self.spans.lock().unwrap();
        ended
            .map(|(span, fields)| spans[&span.unwrap()].clone().into_iter().chain(fields.clone()).collect())
            .collect()
    }
}

/// Keeps what is told on this thread. The first call makes sure that nobody else is just being asked whether anybody
/// listens at all, which would be the answer for everybody.
async fn keep() -> (Kept, tracing::subscriber::DefaultGuard) {
    let kept = Kept::default();
    let guard = tracing::subscriber::set_default(Registry::default().with(kept.clone()));
    crib(&[("first", &Fake::new())]).call(Call::tool("first__echo")).await.unwrap();
    tracing::callsite::rebuild_interest_cache();
    kept.lines.lock().unwrap().clear();
    (kept, guard)
}

#[tokio::test(start_paused = true)]
async fn a_call_is_one_span_with_server_tool_caller_and_outcome() {
    let (kept, _guard) = keep().await;
    let crib = crib(&[("git", &Fake::new())]);
    crib.call(Call::tool("git__echo").by(Caller::named("ada"))).await.unwrap();
    crib.call(Call::tool("git__fail")).await.unwrap();
    crib.call(Call::tool("git__hang").timeout(SECOND)).await.unwrap_err();
    crib.call(Call::tool("nobody")).await.unwrap_err();
    let calls = kept.calls();
    let told = |at: usize, field: &str| calls[at].get(field).map_or("", String::as_str);
    assert_eq!(calls.len(), 4);
    assert_eq!([told(0, "span"), told(0, "mcp.method.name")], ["tools/call", "tools/call"]);
    assert_eq!(
        [told(0, "toolcrib.server"), told(0, "gen_ai.tool.name"), told(0, "toolcrib.caller")],
        ["git", "git__echo", "ada"]
    );
    assert_eq!([0, 1, 2, 3].map(|at| told(at, "outcome")), ["ok", "tool_error", "timed_out", "unknown"]);
    assert_eq!([0, 1, 2, 3].map(|at| told(at, "error.type")), ["", "tool_error", "timed_out", "unknown"]);
}

#[tokio::test(start_paused = true)]
async fn spans_are_true_when_calls_interleave() {
    let (kept, _guard) = keep().await;
    let (git, time) = (Fake::offering(&["slow"]), Fake::offering(&["late"]).usually(Boot::Late(SECOND)));
    let crib = crib(&[("git", &git), ("time", &time)]);
    let mut calls = JoinSet::new();
    for n in 0..40u64 {
        let (server, tool) = if n % 2 == 0 { ("git", "git__slow") } else { ("time", "time__late") };
        let call = Call::tool(tool)
            .arguments(&json!({"ms": n * 13 % 40}))
            .by(Caller::named(&format!("{server}-{n}")));
        spawn(&mut calls, &crib, call);
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    let calls = kept.calls();
    assert_eq!(calls.len(), 40);
    for call in calls {
        let (server, caller) = (&call["toolcrib.server"], &call["toolcrib.caller"]);
        assert!(
            caller.starts_with(server.as_str()) && call["gen_ai.tool.name"].starts_with(server.as_str()),
            "{call:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_of_arguments_or_results_is_told() {
    let (kept, _guard) = keep().await;
    let crib = crib(&[("git", &Fake::new())]);
    let secret =
        json!({"password": "hunter2", "lines": [r#"{"jsonrpc":"2.0","id":"$ID","result":{"a":"hunter2"}}"#]});
    for tool in ["echo", "fail", "refuse", "say", "die"] {
        drop(crib.call(Call::tool(format!("git__{tool}")).arguments(&secret)).await);
    }
    let everything = format!("{:?} {:?}", kept.spans.lock().unwrap(), kept.lines.lock().unwrap());
    assert!(
        everything.contains("git__say")
            && !everything.contains("hunter2")
            && !everything.contains("password")
    );
}
