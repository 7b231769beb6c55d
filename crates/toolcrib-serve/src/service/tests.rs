//! Tests of request classification and of notifications to sessions.

use std::pin::Pin;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use toolcrib::model::event::ServerNotification;
use toolcrib::protocol::era::client::{ELICITATION_COMPLETE, TASK_STATUS};
use toolcrib::protocol::jsonrpc::RequestId;
use toolcrib::spec::EraChoice;
use toolcrib::store::{Store, StoreKey, StoreKind};
use toolcrib::{InProcess, InstanceKey, ServerSpec, Sharing};

use super::change_watcher::{ChangeEvent, ChangeSink as _};
use super::methods::{MethodAction, classify};
use super::session_client::SessionClientState;
use super::session_record::{SessionRecord, SharedSession};
use super::*;
use crate::tests::delayed_store::DelayedStore;

fn params(text: &str) -> Object {
    Object::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
}

fn one_server() -> CatalogScope {
    CatalogScope::One("git".parse().unwrap())
}

fn code_of(answer: &ResponsePayload) -> i64 {
    let ResponsePayload::Error(error) = answer else { panic!("{answer:?}") };
    serde_json::from_slice::<Value>(error).unwrap()["code"].as_i64().unwrap()
}

#[test]
fn parameters_select_the_target() {
    let classify = |method, text| classify(&CatalogScope::All, Era::Stateless, method, &params(text));
    let forward = |selector| Ok(MethodAction::Forward(selector));
    assert_eq!(classify("tools/call", r#"{"name":"a"}"#), forward(Selector::Tool("a".into())));
    assert_eq!(classify("prompts/get", r#"{"name":"a"}"#), forward(Selector::Prompt("a".into())));
    assert_eq!(classify("resources/read", r#"{"uri":"a:b"}"#), forward(Selector::Resource("a:b".into())));
    assert_eq!(classify("tasks/update", r#"{"taskId":"t"}"#), forward(Selector::Task("t".into())));
    let prompt = r#"{"ref":{"type":"ref/prompt","name":"p"}}"#;
    assert_eq!(classify("completion/complete", prompt), forward(Selector::Prompt("p".into())));
    let template = r#"{"ref":{"type":"ref/resource","uri":"x://{y}"}}"#;
    assert_eq!(classify("completion/complete", template), forward(Selector::Resource("x://{y}".into())));
    for (method, text) in [
        ("tools/call", "{}"),
        ("tools/call", r#"{"name":"a","arguments":[]}"#),
        ("resources/read", r#"{"uri":7}"#),
        ("completion/complete", r#"{"ref":{"type":"ref/other"}}"#),
    ] {
        assert_eq!(code_of(&classify(method, text).unwrap_err()), -32602, "{method} {text}");
    }
}

#[test]
fn methods_depend_on_the_era() {
    for (method, session, stateless) in [
        ("ping", true, false),
        ("initialize", false, false),
        ("server/discover", false, true),
        ("tools/list", true, true),
        ("resources/templates/list", true, true),
        ("no/such/method", true, true),
        ("tasks/list", true, false),
    ] {
        let exists = |era| classify(&CatalogScope::All, era, method, &Object::default()).is_ok();
        assert_eq!((exists(Era::Session), exists(Era::Stateless)), (session, stateless), "{method}");
    }
    let removed = classify(&one_server(), Era::Stateless, "ping", &Object::default()).unwrap_err();
    assert_eq!(code_of(&removed), -32601);
}

#[test]
fn unknown_methods_belong_to_extensions() {
    for view in [CatalogScope::All, one_server()] {
        let classify = |method| classify(&view, Era::Stateless, method, &Object::default());
        assert_eq!(classify("chat/say"), Ok(MethodAction::Extension));
        assert_eq!(classify("skills/get"), Ok(MethodAction::Extension));
        for refused in ["notifications/cancelled", "notifications/chat/new", "roots/list"] {
            assert_eq!(code_of(&classify(refused).unwrap_err()), -32601, "{refused}");
            assert!(!McpService::is_forwarded(Era::Stateless, refused));
        }
    }
    let list = |view| classify(&view, Era::Session, "skills/list", &Object::default());
    assert_eq!(list(CatalogScope::All), Ok(MethodAction::ListSkills));
    assert_eq!(list(one_server()), Ok(MethodAction::Extension));
    assert!(McpService::is_forwarded(Era::Stateless, "skills/list"));
    assert!(!McpService::is_forwarded(Era::Stateless, "tools/list"));
}

#[tokio::test]
async fn hints_are_completed() {
    let crib = Crib::builder().build().unwrap();
    let service = McpService::new(crib).with_hints(|hint| format!("{hint} --config /my.toml"));
    let error = Error::new(ErrorKind::Ejected, "it is").with_server(&"git".parse().unwrap());
    let ResponsePayload::Error(response) = service.error_payload(&error) else { panic!("an error") };
    let response: Value = serde_json::from_slice(&response).unwrap();
    assert_eq!(response["data"]["hint"], "restart `git` --config /my.toml");
}

#[tokio::test]
async fn message_of_a_missing_login_says_what_to_do() {
    let server: ServerId = "ref".parse().unwrap();
    let error = Error::new(ErrorKind::AuthNeeded, "`ref` requires authentication (HTTP 401)")
        .with_hint(Hint::Login { server: server.clone() });
    let message = |service: &McpService, error: &Error| {
        let ResponsePayload::Error(response) = service.error_payload(error) else { panic!("an error") };
        let response: Value = serde_json::from_slice(&response).unwrap();
        response["message"].as_str().unwrap().to_owned()
    };
    let service = McpService::new(Crib::builder().build().unwrap());
    assert_eq!(
        message(&service, &error),
        "`ref` requires authentication (HTTP 401); hint: log in to `ref`, or set `servers.ref.headers`"
    );
    let service = service.with_hints(|hint| match hint {
        Hint::Login { server } => format!("toolcrib login {server}"),
        other => other.to_string(),
    });
    assert_eq!(
        message(&service, &error),
        "`ref` requires authentication (HTTP 401); hint: toolcrib login ref"
    );
    let without_login = Error::new(ErrorKind::AuthNeeded, "it is refused").with_server(&server);
    assert_eq!(message(&service, &without_login), "it is refused; hint: set `servers.ref.headers`");
    let other = Error::new(ErrorKind::Ejected, "it is ejected").with_server(&server);
    assert_eq!(message(&service, &other), "it is ejected");
}

#[tokio::test]
async fn session_gets_log_messages_only_after_set_level() {
    let service = McpService::new(Crib::builder().build().unwrap());
    let mut session = Arc::new(SessionClientState::new(&service, EndpointScope::local(), None, None));
    let log_params = Bytes::from_static(br#"{"level":"error","data":"of another client"}"#);
    let logged = ChangeEvent::Notification(ServerNotification::Log {
        server: "git".parse().unwrap(),
        instance: InstanceKey::Shared,
        client: None,
        params: log_params,
    });
    assert!(session.encode_change(&logged).is_empty());
    let (out, _receiver) = crate::outbox::outbox();
    let request_id = RequestId::parse(Bytes::from_static(b"7")).unwrap();
    let level = params(r#"{"level":"error"}"#);
    let set = session.respond(&service, &request_id, "logging/setLevel", Some(level), Some(&out)).await;
    assert!(matches!(set, ResponsePayload::Result(_)), "{set:?}");
    assert_eq!(session.encode_change(&logged).len(), 1);
}

#[tokio::test]
async fn session_is_notified_of_changes_in_its_own_instances() {
    let service = McpService::new(Crib::builder().build().unwrap());
    let mut session = Arc::new(SessionClientState::new(&service, EndpointScope::local(), None, None));
    let list_changed = |instance| {
        let lists = [ListKind::Tools, ListKind::Templates, ListKind::Resources].into();
        ChangeEvent::Notification(ServerNotification::ListChanged {
            server: "git".parse().unwrap(),
            instance,
            lists,
        })
    };
    assert!(session.encode_change(&list_changed(InstanceKey::Discovery)).is_empty());
    let messages = session.encode_change(&list_changed(InstanceKey::Shared));
    let methods: Vec<Value> = messages
        .iter()
        .map(|message| serde_json::from_slice::<Value>(message).unwrap()["method"].clone())
        .collect();
    assert_eq!(methods, ["notifications/tools/list_changed", "notifications/resources/list_changed"]);
}

#[tokio::test]
async fn session_is_notified_of_its_own_tasks_and_elicitations() {
    let service = McpService::new(Crib::builder().build().unwrap());
    let mut session = Arc::new(SessionClientState::new(&service, EndpointScope::local(), None, None));
    let follow_up = |method, name: &str, params: &'static str| {
        let server = "git".parse().unwrap();
        let params = Bytes::from_static(params.as_bytes());
        ChangeEvent::Notification(ServerNotification::FollowUp { server, method, name: name.into(), params })
    };
    let task = follow_up(TASK_STATUS, "7", r#"{"taskId":"7","status":"completed"}"#);
    let elicitation = follow_up(ELICITATION_COMPLETE, "e", r#"{"elicitationId":"e"}"#);
    assert!(
        session.encode_change(&task).is_empty() && session.encode_change(&elicitation).is_empty(),
        "of another client"
    );
    let name = Catalog::public_task_id(&"git".parse().unwrap(), "7");
    let created = json!({"task": {"taskId": name}}).to_string();
    session.questions.remember_follow_ups(&ResponsePayload::Result(created.into()), true);
    let elicitations = json!({"code": -32042, "message": "", "data": {"elicitations": [{"mode": "url", "elicitationId": "e"}]}});
    session.questions.remember_follow_ups(&ResponsePayload::Error(elicitations.to_string().into()), false);
    let message: Value = serde_json::from_slice(&session.encode_change(&task)[0]).unwrap();
    assert_eq!(
        (&message["method"], &message["params"]["taskId"]),
        (&json!(TASK_STATUS), &json!(name)),
        "{message}"
    );
    assert_eq!(session.encode_change(&elicitation).len(), 1);
}

/// A server with two resources that answers every other request with an empty result.
struct ResourceServer;

impl InProcess for ResourceServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let (reads, mut writes) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reads).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let request: Value = serde_json::from_str(&line).unwrap();
                let result = match request["method"].as_str().unwrap() {
                    "initialize" => json!({
                        "protocolVersion": "2025-11-25",
                        "capabilities": {"resources": {"subscribe": true}},
                        "serverInfo": {"name": "resources", "version": "1"},
                    }),
                    "resources/list" => {
                        json!({"resources": [{"uri": "a:1", "name": "a"}, {"uri": "a:2", "name": "b"}]})
                    }
                    "resources/templates/list" => json!({"resourceTemplates": []}),
                    _ => json!({}),
                };
                if request["id"].is_null() {
                    continue;
                }
                let response = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
                if writes.write_all(format!("{response}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        })
    }
}

#[tokio::test]
async fn lagged_client_is_notified_of_all_subscriptions() {
    let spec =
        ServerSpec::in_process("git".parse().unwrap(), ResourceServer).era(EraChoice::Era(Era::Session));
    let service = McpService::new(Crib::builder().server(spec).build().unwrap());
    let scope = EndpointScope { view: one_server(), ..EndpointScope::local() };
    let mut session = Arc::new(SessionClientState::new(&service, scope.clone(), None, None));
    let (out, _receiver) = crate::outbox::outbox();
    let request_id = RequestId::parse(Bytes::from_static(b"7")).unwrap();
    for uri in [r#"{"uri":"a:1"}"#, r#"{"uri":"a:2"}"#] {
        let done = session
            .respond(&service, &request_id, "resources/subscribe", Some(params(uri)), Some(&out))
            .await;
        assert!(matches!(done, ResponsePayload::Result(_)), "{done:?}");
    }
    let requested = params(r#"{"notifications":{"resourceSubscriptions":["a:2"]}}"#);
    let client = Client::without_capabilities();
    let context =
        RequestContext { scope, client, client_context: None, updates: None, has_extensions: false };
    let mut stream = service.listen(&context, &request_id, Some(&requested)).await.map_err(drop).unwrap();
    let uris = |messages: Vec<Vec<u8>>| -> Vec<Value> {
        let messages = messages.iter().map(|message| serde_json::from_slice::<Value>(message).unwrap());
        messages.map(|message| message["params"]["uri"].clone()).collect()
    };
    assert_eq!(uris(session.encode_change(&ChangeEvent::Lagged)), ["a:1", "a:2"]);
    assert_eq!(uris(stream.encode_change(&ChangeEvent::Lagged)), ["a:2"]);
    let updated = ChangeEvent::Notification(ServerNotification::ResourceUpdated {
        server: "git".parse().unwrap(),
        instance: InstanceKey::Shared,
        uri: "a:1".into(),
        details: None,
    });
    assert_eq!(uris(session.encode_change(&updated)), ["a:1"]);
    assert!(stream.encode_change(&updated).is_empty());
}

#[tokio::test]
async fn subscriptions_follow_the_session_to_another_gateway() {
    let store: Arc<dyn Store> = Arc::new(DelayedStore::new());
    let service = || {
        let spec = ServerSpec::in_process("git".parse().unwrap(), ResourceServer);
        let spec = spec.era(EraChoice::Era(Era::Session));
        McpService::new(Crib::builder().server(spec).store(store.clone()).build().unwrap())
    };
    let [service, other_service] = [service(), service()];
    let scope = EndpointScope { view: one_server(), ..EndpointScope::local() };
    let shared = SharedSession::new(store.clone(), "id".to_owned(), "first".into(), None, None);
    let session = SessionClientState::new(&service, scope.clone(), None, None).share(shared);
    let other = SessionClientState::new(&other_service, scope, None, None);
    let (out, _receiver) = crate::outbox::outbox();
    let request_id = RequestId::parse(Bytes::from_static(b"7")).unwrap();
    for (method, uri, expected) in [
        ("resources/subscribe", r#"{"uri":"a:1"}"#, &["a:1"][..]),
        ("resources/subscribe", r#"{"uri":"a:2"}"#, &["a:1", "a:2"]),
        ("resources/unsubscribe", r#"{"uri":"a:1"}"#, &["a:2"]),
    ] {
        let done = session.respond(&service, &request_id, method, Some(params(uri)), Some(&out)).await;
        assert!(matches!(done, ResponsePayload::Result(_)), "{done:?}");
        let stored = store.get(StoreKey::new(StoreKind::Session, "id")).wait().await.unwrap();
        let record = SessionRecord::parse(&stored.unwrap()).unwrap();
        other.apply_record(&other_service, &record).await;
        assert_eq!(other.subscribed_uris(), expected);
    }
}

/// A server of the session era whose tool creates numbered tasks. A task `gone` is unknown to it.
#[derive(Default)]
struct TaskServer {
    created: Arc<AtomicU64>,
}

impl InProcess for TaskServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let created = self.created.clone();
        Box::pin(async move {
            let (reads, mut writes) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reads).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let request: Value = serde_json::from_str(&line).unwrap();
                let result = match request["method"].as_str().unwrap() {
                    "initialize" => json!({
                        "protocolVersion": "2025-11-25",
                        "capabilities": {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}}},
                        "serverInfo": {"name": "tasks", "version": "1"},
                    }),
                    "tools/list" => json!({"tools": [{"name": "build", "inputSchema": {"type": "object"}}]}),
                    "tools/call" => {
                        let number = created.fetch_add(1, Ordering::Relaxed) + 1;
                        json!({"task": {"taskId": format!("t{number}"), "status": "working"}})
                    }
                    "tasks/get" if request["params"]["taskId"] == "t2" => Value::Null,
                    "tasks/get" => {
                        json!({"taskId": request["params"]["taskId"], "status": "completed", "_meta": {}})
                    }
                    _ => json!({}),
                };
                let mut response = json!({"jsonrpc": "2.0", "id": request["id"], "result": result});
                if result.is_null() {
                    let error = json!({"code": -32602, "message": "no such task"});
                    response = json!({"jsonrpc": "2.0", "id": request["id"], "error": error});
                }
                let has_id = !request["id"].is_null();
                if has_id && writes.write_all(format!("{response}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        })
    }
}

fn session_context(caller: Caller) -> RequestContext {
    let client = Client { era: Era::Session, ..Client::without_capabilities() };
    RequestContext {
        scope: EndpointScope::trusted(caller),
        client,
        client_context: None,
        updates: None,
        has_extensions: false,
    }
}

fn result_of(answer: &ResponsePayload) -> Value {
    let ResponsePayload::Result(result) = answer else { panic!("{answer:?}") };
    serde_json::from_slice(result).unwrap()
}

#[tokio::test]
async fn tasks_of_the_caller_are_listed_for_sessions() {
    let era = EraChoice::Era(Era::Session);
    let spec = ServerSpec::in_process("git".parse().unwrap(), TaskServer::default()).era(era);
    let crib = Crib::builder().server(spec).build().unwrap();
    let service = McpService::new(crib.clone());
    let ask = async |caller: &str, method: &str, text: &str| {
        service.plan(session_context(Caller::new(caller)), method, Some(params(text))).respond().await
    };
    assert_eq!(result_of(&ask("ada", "tasks/list", "{}").await), json!({"tasks": []}));
    for caller in ["ada", "ada", "bob", "ada"] {
        ask(caller, "tools/call", r#"{"name":"git__build","task":{}}"#).await;
    }
    let listed = result_of(&ask("ada", "tasks/list", "{}").await);
    let task = |id: &str| json!({"taskId": format!("git__{id}"), "status": "completed"});
    // The second one is unknown to the server by now.
    assert_eq!(listed, json!({"tasks": [task("t1"), task("t4")]}));
    assert_eq!(result_of(&ask("bob", "tasks/list", "{}").await), json!({"tasks": [task("t3")]}));
    assert_eq!(code_of(&ask("ada", "tasks/list", r#"{"cursor":"x"}"#).await), -32602);
    // A server that sleeps has lost its tasks, and is not started for a list.
    crib.stop(&"git".parse().unwrap()).await.unwrap();
    assert_eq!(result_of(&ask("ada", "tasks/list", "{}").await), json!({"tasks": []}));
    assert_eq!(crib.status()[0].generation, 1);
    let stateless = RequestContext {
        client: Client { era: Era::Stateless, ..Client::without_capabilities() },
        ..session_context(Caller::local())
    };
    assert_eq!(code_of(&service.plan(stateless, "tasks/list", None).respond().await), -32601);
}

#[tokio::test]
async fn tasks_are_declared_to_sessions_of_the_revision_that_has_them() {
    let service = McpService::new(Crib::builder().build().unwrap());
    let scope = EndpointScope::local();
    let declared = async |revision: &str| -> Value {
        let result = service.initialize_result(&scope, revision.parse().unwrap()).await;
        serde_json::from_slice::<Value>(&result).unwrap()["capabilities"]["tasks"].clone()
    };
    let tasks = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
    assert_eq!(declared("2025-11-25").await, tasks);
    assert_eq!(declared("2025-06-18").await, Value::Null);
    let discovered = service.discover_result(&scope).await;
    assert!(serde_json::from_slice::<Value>(&discovered).unwrap()["capabilities"].get("tasks").is_none());
}

/// A server of the session era that tells only clients with extensions that it has no tools.
struct ReservedServer;

impl InProcess for ReservedServer {
    fn serve(&self, pipe: DuplexStream) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            let (reads, mut writes) = tokio::io::split(pipe);
            let mut lines = BufReader::new(reads).lines();
            let mut has_extensions = false;
            while let Ok(Some(line)) = lines.next_line().await {
                let request: Value = serde_json::from_str(&line).unwrap();
                let mut response = json!({"jsonrpc": "2.0", "id": request["id"]});
                match request["method"].as_str().unwrap() {
                    "initialize" => {
                        has_extensions = request["params"]["capabilities"]["extensions"].is_object();
                        response["result"] = json!({
                            "protocolVersion": "2025-11-25",
                            "capabilities": {"tools": {}},
                            "serverInfo": {"name": "reserved", "version": "1"},
                        });
                    }
                    "tools/list" if has_extensions => response["result"] = json!({"tools": []}),
                    _ => response["error"] = json!({"code": -32050, "message": "no"}),
                }
                let has_id = !request["id"].is_null();
                if has_id && writes.write_all(format!("{response}\n").as_bytes()).await.is_err() {
                    return;
                }
            }
        })
    }
}

#[tokio::test(start_paused = true)]
async fn own_list_of_a_client_replaces_the_error_of_the_server() {
    let spec = ServerSpec::in_process("git".parse().unwrap(), ReservedServer)
        .era(EraChoice::Era(Era::Session))
        .sharing(Sharing::PerClient);
    let service = McpService::new(Crib::builder().server(spec).build().unwrap());
    let scope = EndpointScope { view: one_server(), ..EndpointScope::local() };
    let plain = RequestContext { scope: scope.clone(), ..session_context(Caller::local()) };
    let extensions = Bytes::from_static(br#"{"extensions":{"com.example/x":{}}}"#);
    let client = Client {
        key: 7,
        era: Era::Session,
        capabilities: ClientCapabilities::parse(&extensions),
        ..Client::without_capabilities()
    };
    let extended = RequestContext { client, has_extensions: true, ..plain.clone() };
    assert_eq!(code_of(&service.plan(plain.clone(), "tools/list", None).respond().await), -32050);
    // Starts the instance of the client.
    let called =
        service.plan(extended.clone(), "tools/call", Some(params(r#"{"name":"x"}"#))).respond().await;
    assert_eq!(code_of(&called), -32050);
    let listed = service.plan(extended, "tools/list", None).respond().await;
    assert_eq!(result_of(&listed), json!({"tools": []}));
    assert_eq!(code_of(&service.plan(plain, "tools/list", None).respond().await), -32050);
}
