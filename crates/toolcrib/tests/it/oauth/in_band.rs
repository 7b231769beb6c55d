//! Clients that can show a URL are asked to log in while their call waits.

use serde_json::{Value, json};
use tokio::sync::mpsc;
use toolcrib::oauth::{Login, LoginFuture, LoginRequest, LoginStarter, Logins, OAuthError, PendingLogin};
use toolcrib::protocol::era::capabilities::ClientCapabilities;
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::versions::Era;
use toolcrib::{Call, CallUpdate, Caller, Client, Crib, ErrorKind, Hint, Selector, ServerSpec};

use super::authorization_server::AuthorizationServer;
use super::{Machine, REDIRECT, browse, id};

/// Starts logins in which the browser opens the URL as soon as there is a permit.
struct PermittedLogins(std::sync::Arc<tokio::sync::Semaphore>);

impl LoginStarter for PermittedLogins {
    fn start(
        &self,
        server: ServerSpec,
        _: Caller,
        logins: Logins,
    ) -> LoginFuture<Result<PendingLogin, OAuthError>> {
        let permits = self.0.clone();
        Box::pin(async move {
            let request = LoginRequest { server: &server, logins: &logins, redirect_uri: REDIRECT };
            let login = Login::start(request).await?;
            let url = login.url().to_owned();
            let finished = Box::pin(async move {
                permits.acquire().await.unwrap().forget();
                let redirect = browse(login.url()).await;
                login.finish(&redirect).await
            });
            Ok(PendingLogin { url, finished })
        })
    }
}

struct Test {
    server: AuthorizationServer,
    crib: Crib,
    permits: std::sync::Arc<tokio::sync::Semaphore>,
    _machine: Machine,
}

impl Test {
    async fn new() -> Self {
        let server = AuthorizationServer::start().await;
        let machine = Machine::new();
        let permits = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
        let builder = machine.builder(&server.url()).login_starter(PermittedLogins(permits.clone()));
        Self { server, crib: builder.build().unwrap(), permits, _machine: machine }
    }

    fn codes(&self) -> u32 {
        self.server.issued.lock().unwrap().codes
    }
}

fn call(era: Era, capabilities: &'static str, params: &Value) -> Call {
    let capabilities = ClientCapabilities::parse(&capabilities.into());
    let client = Client { key: 7, era, capabilities, ..Client::without_capabilities() };
    let params = Object::parse(&params.to_string().into()).unwrap();
    Call::request("tools/call", Selector::OnServer(id(), "echo".to_owned()), params).client(client)
}

const URLS: &str = r#"{"elicitation":{"url":{}}}"#;

/// Returns the parameters of the next question.
async fn next_question(updates: &mut mpsc::Receiver<CallUpdate>, action: &str) -> Value {
    let Some(CallUpdate::Request(request)) = updates.recv().await else { panic!("no question") };
    assert_eq!(request.method, "elicitation/create");
    let params = serde_json::from_slice(request.params.as_ref().unwrap()).unwrap();
    request.answer(ResponsePayload::Result(json!({"action": action}).to_string().into()));
    params
}

#[tokio::test]
async fn session_client_is_asked_once_and_its_calls_continue() {
    let test = Test::new().await;
    let params = json!({"name": "echo", "arguments": {}});
    let (sink, mut updates) = mpsc::channel(8);
    let one = || test.crib.call(call(Era::Session, URLS, &params).updates(sink.clone()));
    let answering = async {
        let question = next_question(&mut updates, "accept").await;
        assert_eq!((&question["mode"], question["elicitationId"].is_string()), (&json!("url"), true));
        assert!(question["url"].as_str().unwrap().starts_with(&format!("{}/authorize?", test.server.origin)));
        assert_eq!(test.codes(), 0, "nothing opens the URL but the person");
        test.permits.add_permits(1);
    };
    let (first, second, ()) = tokio::join!(one(), one(), answering);
    assert_eq!((first.unwrap().text(), second.unwrap().text()), ("hello".to_owned(), "hello".to_owned()));
    assert!(updates.try_recv().is_err(), "one question for both calls");
    assert_eq!(test.codes(), 1);
}

#[tokio::test]
async fn stateless_client_gets_the_url_as_its_result() {
    let test = Test::new().await;
    let mut params = json!({"name": "echo", "arguments": {}});
    let asked = test.crib.call(call(Era::Stateless, URLS, &params)).await.unwrap().to_value();
    assert_eq!(asked["resultType"], "input_required");
    let request = &asked["inputRequests"]["ask-1"];
    assert_eq!(
        (&request["method"], &request["params"]["mode"]),
        (&json!("elicitation/create"), &json!("url"))
    );
    test.permits.add_permits(1);
    params["inputResponses"] = json!({"ask-1": {"action": "accept"}});
    params["requestState"] = asked["requestState"].clone();
    let outcome = test.crib.call(call(Era::Stateless, URLS, &params)).await.unwrap();
    assert_eq!(outcome.text(), "hello");
}

#[tokio::test]
async fn other_clients_and_callers_get_the_error() {
    let test = Test::new().await;
    let params = json!({"name": "echo", "arguments": {}});
    let (sink, mut updates) = mpsc::channel(8);
    let cases = [
        call(Era::Session, r#"{"elicitation":{"form":{}}}"#, &params).updates(sink.clone()),
        call(Era::Stateless, r#"{"elicitation":{}}"#, &params),
        call(Era::Session, URLS, &params),
        // The login of a shared server belongs to the local user.
        call(Era::Session, URLS, &params).updates(sink.clone()).caller(Caller::new("bob")),
    ];
    for call in cases {
        let error = test.crib.call(call).await.unwrap_err();
        assert_eq!((error.kind(), error.hint()), (ErrorKind::AuthNeeded, Hint::Login { server: id() }));
    }
    assert!(updates.try_recv().is_err());
    let declined = test.crib.call(call(Era::Session, URLS, &params).updates(sink));
    let (declined, _) = tokio::join!(declined, next_question(&mut updates, "decline"));
    assert_eq!(declined.unwrap_err().kind(), ErrorKind::AuthNeeded);
    test.crib.shutdown(std::time::Duration::ZERO).await;
    assert_eq!(test.codes(), 0);
}
