//! An MCP server with its own authorization server, on a real socket. Refresh tokens are valid once: using one again ends the
//! login, as the OAuth security recommendations have it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What the server has issued and seen.
#[derive(Debug, Default)]
pub(super) struct Issued {
    pub(super) codes: u32,
    pub(super) access_token: String,
    pub(super) refresh_token: String,
    pub(super) refreshes: u32,
    /// Token requests of any kind.
    pub(super) token_requests: u32,
    pub(super) registrations: u32,
    pub(super) revoked: Vec<String>,
    /// Requests to `/mcp` with an invalid token.
    pub(super) refused: u32,
    pub(super) is_ended: bool,
    /// Time before a token request is answered.
    pub(super) delay: Duration,
    /// Seconds that new tokens are valid.
    pub(super) lifetime: Option<u64>,
    /// Members that replace those of the metadata.
    pub(super) metadata: Value,
    /// Parameters that are added to the redirect.
    pub(super) redirect_extra: String,
}

pub(super) struct AuthorizationServer {
    pub(super) origin: String,
    pub(super) issued: Arc<Mutex<Issued>>,
    _serving: JoinSet<()>,
}

impl AuthorizationServer {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin = format!("http://{}", listener.local_addr().unwrap());
        let issued = Arc::new(Mutex::new(Issued { metadata: json!({}), ..Issued::default() }));
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, origin.clone(), issued.clone()));
        Self { origin, issued, _serving: serving }
    }

    pub(super) fn url(&self) -> String {
        format!("{}/mcp", self.origin)
    }

    /// Makes the access token invalid.
    pub(super) fn expire(&self) {
        self.issued.lock().unwrap().access_token.clear();
    }

    pub(super) fn refreshes(&self) -> u32 {
        self.issued.lock().unwrap().refreshes
    }
}

async fn accept(listener: TcpListener, origin: String, issued: Arc<Mutex<Issued>>) {
    let mut serving = JoinSet::new();
    loop {
        let (socket, _) = listener.accept().await.unwrap();
        let (origin, issued) = (origin.clone(), issued.clone());
        let service = service_fn(move |request| {
            let (origin, issued) = (origin.clone(), issued.clone());
            async move { Ok::<_, Infallible>(serve(request, &origin, &issued).await) }
        });
        serving.spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new();
            // A client that disconnects is part of some tests.
            let _ = connection.serve_connection(TokioIo::new(socket), service).await;
        });
    }
}

async fn serve(request: Request<Incoming>, origin: &str, issued: &Mutex<Issued>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let query = parse_form(head.uri.query().unwrap_or_default());
    match head.uri.path() {
        "/.well-known/oauth-protected-resource/mcp" => {
            reply(200, &json!({"resource": format!("{origin}/mcp"), "authorization_servers": [origin]}))
        }
        "/.well-known/oauth-authorization-server" => reply(200, &metadata(origin, issued)),
        "/register" => {
            issued.lock().unwrap().registrations += 1;
            reply(201, &json!({"client_id": "client", "token_endpoint_auth_method": "none"}))
        }
        "/authorize" => {
            let mut issued = issued.lock().unwrap();
            issued.codes += 1;
            let (uri, state) = (&query["redirect_uri"], &query["state"]);
            let location = format!("{uri}?code=code-{}&state={state}{}", issued.codes, issued.redirect_extra);
            Response::builder().status(302).header("location", location).body(Full::default()).unwrap()
        }
        "/token" => {
            let delay = issued.lock().unwrap().delay;
            let answer = token(&parse_form(&String::from_utf8_lossy(&body)), &mut issued.lock().unwrap());
            tokio::time::sleep(delay).await;
            answer
        }
        "/revoke" => {
            let form = parse_form(&String::from_utf8_lossy(&body));
            issued.lock().unwrap().revoked.push(form["token"].clone());
            reply(200, &json!({}))
        }
        "/mcp" => mcp(&head.headers, &body, &mut issued.lock().unwrap()),
        _ => reply(404, &json!({})),
    }
}

fn metadata(origin: &str, issued: &Mutex<Issued>) -> Value {
    let mut document = json!({
        "issuer": origin,
        "authorization_endpoint": format!("{origin}/authorize"),
        "token_endpoint": format!("{origin}/token"),
        "registration_endpoint": format!("{origin}/register"),
        "revocation_endpoint": format!("{origin}/revoke"),
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["none"],
    });
    let replaced = issued.lock().unwrap().metadata.clone();
    for (name, value) in replaced.as_object().unwrap() {
        document[name] = value.clone();
    }
    document
}

fn token(form: &HashMap<String, String>, issued: &mut Issued) -> Response<Full<Bytes>> {
    issued.token_requests += 1;
    let is_right = match form["grant_type"].as_str() {
        "authorization_code" => {
            form["code"] == format!("code-{}", issued.codes) && !form["code_verifier"].is_empty()
        }
        "refresh_token" if form["refresh_token"] == issued.refresh_token && !issued.is_ended => {
            issued.refreshes += 1;
            true
        }
        _ => {
            issued.is_ended = true; // a refresh token was used again
            false
        }
    };
    if !is_right {
        return reply(400, &json!({"error": "invalid_grant"}));
    }
    let number = issued.token_requests;
    issued.access_token = format!("access-{number}");
    issued.refresh_token = format!("refresh-{number}");
    reply(
        200,
        &json!({
            "access_token": issued.access_token, "refresh_token": issued.refresh_token,
            "token_type": "Bearer", "expires_in": issued.lifetime,
        }),
    )
}

fn mcp(headers: &hyper::HeaderMap, body: &[u8], issued: &mut Issued) -> Response<Full<Bytes>> {
    let sent = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    if issued.access_token.is_empty() || sent != Some(format!("Bearer {}", issued.access_token)) {
        issued.refused += u32::from(sent.is_some());
        let mut refusal = reply(401, &json!({}));
        refusal.headers_mut().insert("www-authenticate", "Bearer error=\"invalid_token\"".parse().unwrap());
        return refusal;
    }
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let result = match request["method"].as_str().unwrap_or_default() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
        "tools/list" => json!({"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "hello"}]}),
        _ => {
            return reply(
                404,
                &json!({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": ""}}),
            );
        }
    };
    reply(200, &json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
}

fn reply(status: u16, value: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(value.to_string()));
    Response::builder().status(status).header("content-type", "application/json").body(body).unwrap()
}

fn parse_form(text: &str) -> HashMap<String, String> {
    let decode = |text: &str| toolcrib::util::encoding::percent_decode(text).unwrap().into_owned();
    let pairs = text.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), decode(value))).collect()
}
