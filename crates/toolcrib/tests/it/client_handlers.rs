//! Handlers of the embedder answer what servers ask, and servers learn only what can be answered.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolcrib::{
    CallUpdate, Caller, Client, ClientCapabilities, ClientNotification, Crib, CribBuilder, Era, ServerSpec,
};

use crate::asking_server::AskingServer;
use crate::fake::FakeServer;
use crate::support::{SECOND, id, on, settle, spec, with};

const SAMPLE: &str = "sampling/createMessage";
const ELICIT: &str = "elicitation/create";

fn asking_crib(builder: CribBuilder, server: &AskingServer) -> Crib {
    builder.server(ServerSpec::in_process(id("a"), server.clone())).build().unwrap()
}

/// Calls the tool that sends this request, and returns the answer that the server got.
async fn ask(crib: &Crib, client: Client, method: &str) -> Value {
    let arguments = json!({"method": method, "params": {"message": "?", "messages": []}});
    let call = with("a", "ask", &arguments).client(client).caller(Caller::new("ada"));
    let outcome = crib.call(call).await.unwrap();
    serde_json::from_str(&outcome.text()).unwrap_or_else(|_| json!(outcome.text()))
}

fn client(era: Era, capabilities: &'static str) -> Client {
    let capabilities = ClientCapabilities::parse(&capabilities.as_bytes().into());
    Client { era, capabilities, ..Client::without_capabilities() }
}

fn sampling_builder() -> CribBuilder {
    Crib::builder().on_sampling(|request| async move {
        let server = request.server.map(|server| server.to_string());
        Ok(json!({"server": server, "caller": request.caller.map(|caller| caller.as_str().to_owned())}))
    })
}

#[tokio::test(start_paused = true)]
async fn handler_answers_in_every_combination_of_eras() {
    for server in [AskingServer::in_session(), AskingServer::stateless()] {
        let crib = asking_crib(sampling_builder(), &server);
        for era in [Era::Session, Era::Stateless] {
            let answer = ask(&crib, client(era, "{}"), SAMPLE).await;
            assert_eq!(answer, json!({"server": "a", "caller": "ada"}), "{era:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn request_without_handler_is_refused_to_the_server() {
    let server = AskingServer::in_session();
    let crib = asking_crib(sampling_builder(), &server);
    let answer = ask(&crib, client(Era::Session, "{}"), ELICIT).await;
    assert_eq!(answer["message"], "the client does not support `elicitation/create`");
}

#[tokio::test(start_paused = true)]
async fn failing_and_panicking_handlers_answer_with_an_error() {
    let server = AskingServer::in_session();
    let builder = Crib::builder().on_sampling(|_| async { Err("no model".to_owned()) }).on_elicitation(
        |request| async move {
            assert!(request.params.is_array(), "on purpose");
            Ok(json!({}))
        },
    );
    let crib = asking_crib(builder, &server);
    let failed = ask(&crib, client(Era::Session, "{}"), SAMPLE).await;
    assert_eq!(failed["message"], "no model");
    let panicked = ask(&crib, client(Era::Session, "{}"), ELICIT).await;
    assert_eq!(panicked["message"], "the client disconnected without an answer");
    assert_eq!(crib.status()[0].restarts, 0, "the server is not affected");
}

#[tokio::test(start_paused = true)]
async fn client_that_can_answer_is_asked_instead_of_the_handler() {
    let server = AskingServer::in_session();
    let crib = asking_crib(sampling_builder(), &server);
    let (sender, mut updates) = mpsc::channel(4);
    let arguments = json!({"method": SAMPLE, "params": {}});
    let able = client(Era::Session, r#"{"sampling":{}}"#);
    let calling = crib.call(with("a", "ask", &arguments).client(able).updates(sender));
    let answering = async {
        let Some(CallUpdate::Request(request)) = updates.recv().await else { panic!("no request") };
        request.answer(toolcrib::ResponsePayload::Result(r#"{"by":"client"}"#.into()));
    };
    let (outcome, ()) = tokio::join!(calling, answering);
    assert_eq!(outcome.unwrap().text(), r#"{"by":"client"}"#);
}

/// Starts the server with one call and returns the parameters of its `initialize` request.
async fn introduced(builder: CribBuilder, client: Client) -> Value {
    let fake = FakeServer::with_tools(&["echo"]);
    let crib = builder.server(spec("s", &fake)).build().unwrap();
    crib.call(on("s", "echo").client(client)).await.unwrap();
    fake.received("initialize")[0]["params"].clone()
}

#[tokio::test(start_paused = true)]
async fn servers_learn_only_what_can_be_answered() {
    let unanswered = introduced(Crib::builder(), client(Era::Session, "{}")).await;
    assert_eq!(
        (&unanswered["capabilities"], &unanswered["clientInfo"]["name"]),
        (&json!({}), &json!("toolcrib"))
    );
    let handlers = sampling_builder().roots(["file:///a"]).client_info("my-agent", "1.2.0");
    let introduction = introduced(handlers, client(Era::Session, "{}")).await;
    assert_eq!(introduction["capabilities"], json!({"roots": {"listChanged": true}, "sampling": {}}));
    assert_eq!(introduction["clientInfo"], json!({"name": "my-agent", "version": "1.2.0"}));
    let calling = introduced(Crib::builder(), client(Era::Session, r#"{"elicitation":{},"x":{}}"#)).await;
    assert_eq!(calling["capabilities"], json!({"elicitation": {"form": {}}}));
    let expected = Crib::builder().client_capabilities(ClientCapabilities::all());
    let everyone = introduced(expected, client(Era::Session, "{}")).await;
    let all = json!({"roots": {}, "sampling": {"tools": {}}, "elicitation": {"form": {}, "url": {}}});
    assert_eq!(everyone["capabilities"], all);
}

#[tokio::test(start_paused = true)]
async fn stateless_servers_get_name_and_capabilities_with_each_call() {
    let server = AskingServer::stateless();
    let crib = asking_crib(sampling_builder().client_info("my-agent", "1.2.0"), &server);
    ask(&crib, client(Era::Session, "{}"), SAMPLE).await;
    let meta = &server.received_of("tools/call")[0]["params"]["_meta"];
    assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({"sampling": {}}));
    assert_eq!(meta["io.modelcontextprotocol/clientInfo"], json!({"name": "my-agent", "version": "1.2.0"}));
}

#[tokio::test(start_paused = true)]
async fn roots_are_answered_also_outside_of_calls_and_can_be_replaced() {
    let question = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;
    let listing = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[]}}"#;
    let fake = FakeServer::new().script("tools/list", &[&format!("{question}\n{listing}")]);
    let crib = Crib::builder().server(spec("s", &fake)).roots(["file:///a"]).build().unwrap();
    crib.list().await;
    settle().await;
    assert_eq!(fake.replies()[0]["result"], json!({"roots": [{"uri": "file:///a"}]}));
    crib.set_roots(["file:///b", "file:///c"]);
    settle().await;
    assert_eq!(fake.received("notifications/roots/list_changed").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn notifications_of_calls_and_servers_reach_their_handler() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let record = seen.clone();
    let fake = FakeServer::new();
    let builder = Crib::builder().server(spec("s", &fake)).on_notification(move |notification| {
        record.lock().unwrap().push(match notification {
            ClientNotification::Progress { name, .. } => format!("progress of {name}"),
            ClientNotification::Log { name, .. } => format!("log of {name}"),
            ClientNotification::CatalogChanged => "catalog".to_owned(),
            other => panic!("unexpected {other:?}"),
        });
    });
    let crib = builder.build().unwrap();
    crib.call(with("s", "progress", &json!({"steps": 2}))).await.unwrap();
    settle().await;
    let seen = seen.lock().unwrap().clone();
    assert!(seen.contains(&"progress of progress".to_owned()), "{seen:?}");
    assert!(seen.contains(&"catalog".to_owned()), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn handler_that_never_answers_does_not_hold_a_shutdown() {
    let server = AskingServer::in_session();
    let builder = Crib::builder().on_sampling(|_| std::future::pending());
    let crib = asking_crib(builder, &server);
    let asking = crib.call(with("a", "ask", &json!({"method": SAMPLE, "params": {}})).timeout(SECOND));
    assert!(asking.await.is_err());
    crib.shutdown(SECOND).await;
}
