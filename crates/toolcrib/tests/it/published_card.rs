//! The card that a remote server publishes: it is requested only if a person asked for it.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use toolcrib::spec::HttpSpec;
use toolcrib::{Call, Crib, ServerId, ServerSpec};

/// The paths of the GET requests that a server got.
type Requested = Arc<Mutex<Vec<String>>>;

async fn serve(listener: TcpListener, requested: Requested) {
    let mut serving = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let requested = requested.clone();
        let service = service_fn(move |request| {
            let requested = requested.clone();
            async move { Ok::<_, Infallible>(answer(request, &requested).await) }
        });
        serving.spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            let _ = connection.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, requested: &Mutex<Vec<String>>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    if head.method == Method::GET {
        requested.lock().unwrap().push(head.uri.path().to_owned());
        return reply(&json!({"title": "Tracker", "description": "Issues"}));
    }
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let result = match request["method"].as_str().unwrap_or_default() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
        "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        _ => json!({"content": []}),
    };
    reply(&json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
}

fn reply(value: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(value.to_string()));
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}

#[tokio::test]
async fn card_is_requested_only_on_demand() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let requested = Requested::default();
    let mut serving = JoinSet::new();
    serving.spawn(serve(listener, requested.clone()));
    let id: ServerId = "remote".parse().unwrap();
    let crib = Crib::builder().server(ServerSpec::http(id.clone(), HttpSpec::new(url))).build().unwrap();
    let call = || crib.call(Call::tool_on(id.clone(), "echo").arguments(&json!({})));
    for _ in 0..20 {
        call().await.unwrap();
    }
    assert_eq!(*requested.lock().unwrap(), [""; 0], "it was not requested");
    crib.request_card(&id).unwrap();
    crib.restart(&id).await.unwrap();
    let title = async {
        loop {
            call().await.unwrap();
            if let Some(card) = crib.server_status(&id).and_then(|status| status.card) {
                return card.title;
            }
        }
    };
    let title = timeout(Duration::from_secs(30), title).await.expect("the card in time");
    assert_eq!(
        (title.as_deref(), requested.lock().unwrap().as_slice()),
        (Some("Tracker"), ["/mcp/server-card".to_owned()].as_slice())
    );
    assert!(crib.request_card(&"other".parse().unwrap()).is_err());
    crib.shutdown(Duration::ZERO).await;
}
