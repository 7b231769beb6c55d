//! What remote servers learn about callers: nothing by default, a name in a header, or an exchanged token; never those of another
//! caller.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use toolcrib::spec::template::TemplateText;
use toolcrib::spec::{Forward, HttpSpec, Sharing, TokenExchange};
use toolcrib::{Call, Caller, Crib, Error, ErrorKind, ServerId, ServerSpec};

/// A server whose tool returns the headers about the caller, and a token endpoint.
struct RemoteServer {
    origin: String,
    exchanges: Arc<Mutex<Vec<HashMap<String, String>>>>,
    _serving: JoinSet<()>,
}

impl RemoteServer {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let exchanges = Arc::<Mutex<Vec<_>>>::default();
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, exchanges.clone()));
        Self { origin, exchanges, _serving: serving }
    }

    fn crib(&self, forward: Forward) -> Crib {
        let mut http = HttpSpec::new(format!("{}/mcp", self.origin));
        http.forward = forward;
        Crib::builder().server(ServerSpec::http(id(), http).sharing(Sharing::PerCaller)).build().unwrap()
    }
}

async fn accept(listener: TcpListener, exchanges: Arc<Mutex<Vec<HashMap<String, String>>>>) {
    let mut serving = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let exchanges = exchanges.clone();
        let service = service_fn(move |request| {
            let exchanges = exchanges.clone();
            async move { Ok::<_, Infallible>(serve(request, &exchanges).await) }
        });
        serving.spawn(async move {
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(socket), service)
                .await;
        });
    }
}

async fn serve(
    request: Request<Incoming>,
    exchanges: &Mutex<Vec<HashMap<String, String>>>,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    if head.uri.path() == "/token" {
        let form = parse_form(&String::from_utf8_lossy(&body));
        let token = format!("for-{}", form["subject_token"]);
        exchanges.lock().unwrap().push(form);
        return reply(&json!({"access_token": token, "token_type": "Bearer", "expires_in": 300}));
    }
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = match request["method"].as_str().unwrap_or_default() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
        "tools/list" => json!({"tools": [{"name": "headers", "inputSchema": {"type": "object"}}]}),
        _ => json!({"content": [{"type": "text", "text": caller_headers(&head.headers)}]}),
    };
    reply(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
}

fn caller_headers(headers: &HeaderMap) -> String {
    let values = ["x-caller", "x-caller-groups", "authorization"]
        .map(|name| headers.get(name).map(|value| value.to_str().unwrap()));
    values.map(Option::unwrap_or_default).join("|")
}

fn reply(value: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(value.to_string()));
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}

fn parse_form(text: &str) -> HashMap<String, String> {
    let decode = |text: &str| toolcrib::util::encoding::percent_decode(text).unwrap().into_owned();
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), decode(value))).collect()
}

fn id() -> ServerId {
    "remote".parse().unwrap()
}

async fn call(crib: &Crib, caller: &str) -> Result<String, Error> {
    let call = Call::tool_on(id(), "headers").caller(Caller::new(caller)).arguments(&json!({}));
    crib.call(call).await.map(|outcome| outcome.text())
}

/// Makes many calls of several callers at the same time, and checks that the server sees each caller as `expected` says.
async fn assert_not_mixed(crib: &Crib, expected: impl Fn(&str) -> String) {
    let mut calls = JoinSet::new();
    for number in 0..60 {
        let crib = crib.clone();
        let caller = ["alice", "bob", "idp:carol"][number % 3];
        calls.spawn(async move { (caller, call(&crib, caller).await.unwrap()) });
    }
    while let Some(called) = calls.join_next().await {
        let (caller, seen) = called.unwrap();
        assert_eq!(seen, expected(caller), "{caller}");
    }
}

#[tokio::test]
async fn server_learns_nothing_about_callers_by_default() {
    let server = RemoteServer::start().await;
    let crib = server.crib(Forward::Nothing);
    assert_eq!(call(&crib, "alice").await.unwrap(), "||");
}

#[tokio::test]
async fn header_names_the_caller_of_each_call() {
    let server = RemoteServer::start().await;
    let crib = server.crib(Forward::Header("X-Caller".to_owned()));
    assert_not_mixed(&crib, |caller| format!("{caller}||")).await;
    assert_eq!(call(&crib, "idp:ä, b%\n").await.unwrap(), "idp:%C3%A4%2C b%25%0A||");
    for groups in [&["dev", "o,ps"][..], &["dev"]] {
        let groups = groups.iter().map(|group| (*group).to_owned());
        crib.known_callers().record(&Caller::with_groups("alice", groups.clone()), None);
        let sent: Vec<String> = groups.map(|group| group.replace(',', "%2C")).collect();
        assert_eq!(
            call(&crib, "alice").await.unwrap(),
            format!("alice|{}|", sent.join(",")),
            "the latest groups"
        );
    }
}

#[tokio::test]
async fn token_of_each_caller_is_exchanged_once() {
    let server = RemoteServer::start().await;
    let mut exchange =
        TokenExchange::new(format!("{}/token", server.origin), TemplateText::literal("gateway"));
    exchange.audience = Some("https://remote.example".to_owned());
    let crib = server.crib(Forward::TokenExchange(Box::new(exchange)));
    for caller in ["alice", "bob", "idp:carol"] {
        crib.known_callers().record(&Caller::new(caller), Some(&format!("token-of-{caller}")));
    }
    assert_not_mixed(&crib, |caller| format!("||Bearer for-token-of-{caller}")).await;
    let exchanges = server.exchanges.lock().unwrap().clone();
    assert_eq!(exchanges.len(), 3, "{exchanges:?}");
    let first = &exchanges[0];
    assert_eq!(first["grant_type"], "urn:ietf:params:oauth:grant-type:token-exchange");
    assert_eq!(
        (first["audience"].as_str(), first["client_id"].as_str()),
        ("https://remote.example", "gateway")
    );

    let error = call(&crib, "dave").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthNeeded, "{error}");
    assert!(error.to_string().contains("`dave` has not authenticated with a token"), "{error}");
}
