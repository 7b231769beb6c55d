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
    /// Valid access tokens.
    pub(super) access_tokens: Vec<String>,
    /// Valid refresh tokens.
    pub(super) refresh_tokens: Vec<String>,
    pub(super) refreshes: u32,
    /// Tokens of the calls that were answered.
    pub(super) calls: Vec<String>,
    /// Token requests of any kind.
    pub(super) token_requests: u32,
    pub(super) registrations: u32,
    pub(super) revoked: Vec<String>,
    /// Requests to `/mcp` with an invalid token.
    pub(super) refused: u32,
    pub(super) is_ended: bool,
    /// Error code with which refreshes are refused; none if it is empty.
    pub(super) refresh_error: &'static str,
    /// Status with which refreshes fail; none if it is 0.
    pub(super) refresh_status: u16,
    /// Time before a token request is answered.
    pub(super) delay: Duration,
    /// Seconds that new tokens are valid.
    pub(super) lifetime: Option<u64>,
    /// The path of the resource in its metadata.
    pub(super) resource_path: &'static str,
    /// Scopes of the resource metadata.
    pub(super) scopes: Vec<String>,
    /// The authorization server that the resource metadata names, if it is not this one.
    pub(super) authorization_server: String,
    /// Members that replace those of the metadata.
    pub(super) metadata: Value,
    /// Parameters that are added to the redirect.
    pub(super) redirect_extra: String,
    /// Where secrets that were received are repeated.
    pub(super) echo: Echo,
    /// Whether the person has entered the device code.
    pub(super) is_device_approved: bool,
}

/// Where a hostile server repeats the secrets that it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Echo {
    #[default]
    Nowhere,
    /// In the error of a token request.
    TokenError,
    /// In a JSON-RPC error.
    RpcError,
    /// In the body of a failed request.
    Body,
    /// In the scopes that a request is said to lack.
    Scope,
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
        let issued =
            Arc::new(Mutex::new(Issued { metadata: json!({}), resource_path: "/mcp", ..Issued::default() }));
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, origin.clone(), issued.clone()));
        Self { origin, issued, _serving: serving }
    }

    pub(super) fn url(&self) -> String {
        format!("{}/mcp", self.origin)
    }

    /// Makes the access token invalid.
    pub(super) fn expire(&self) {
        self.issued.lock().unwrap().access_tokens.clear();
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
            reply(200, &resource_metadata(origin, &issued.lock().unwrap()))
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
        "/device" => {
            let form = parse_form(&String::from_utf8_lossy(&body));
            assert_eq!(form["client_id"], "client");
            let uri = format!("{origin}/enter");
            reply(
                200,
                &json!({
                    "device_code": "device-1", "user_code": "ABCD-EFGH", "verification_uri": uri,
                    "verification_uri_complete": format!("{uri}?code=ABCD-EFGH"), "interval": 1, "expires_in": 60,
                }),
            )
        }
        path if path.contains("/broken") => reply(500, &json!({})),
        path if path.contains("/redirect") => Response::builder()
            .status(302)
            .header("location", format!("{path}x"))
            .body(Full::default())
            .unwrap(),
        "/mcp" => mcp(&head.headers, &body, &mut issued.lock().unwrap()),
        _ => reply(404, &json!({})),
    }
}

fn resource_metadata(origin: &str, issued: &Issued) -> Value {
    let other = issued.authorization_server.as_str();
    let issuer = if other.is_empty() { origin } else { other };
    json!({
        "resource": format!("{origin}{}", issued.resource_path),
        "authorization_servers": [issuer],
        "scopes_supported": issued.scopes,
    })
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
        "refresh_token" if issued.refresh_status != 0 => return reply(issued.refresh_status, &json!({})),
        "refresh_token" if !issued.refresh_error.is_empty() => {
            return reply(401, &json!({"error": issued.refresh_error}));
        }
        "refresh_token" if issued.take_refresh_token(&form["refresh_token"]) => {
            issued.refreshes += 1;
            true
        }
        "urn:ietf:params:oauth:grant-type:device_code" if !issued.is_device_approved => {
            return reply(400, &json!({"error": "authorization_pending"}));
        }
        "urn:ietf:params:oauth:grant-type:device_code" => form["device_code"] == "device-1",
        _ => {
            issued.is_ended = true; // a refresh token was used again
            false
        }
    };
    if !is_right {
        let repeated = (issued.echo == Echo::TokenError).then(|| format!("{form:?}"));
        return reply(400, &json!({"error": "invalid_grant", "error_description": repeated}));
    }
    let number = issued.token_requests;
    let access_token = format!("access-{number}");
    let refresh_token = format!("refresh-{number}");
    let tokens = json!({
        "access_token": access_token, "refresh_token": refresh_token, "token_type": "Bearer",
        "expires_in": issued.lifetime,
    });
    issued.access_tokens.push(access_token);
    issued.refresh_tokens.push(refresh_token);
    reply(200, &tokens)
}

impl Issued {
    /// Uses up a refresh token and returns whether it was valid.
    fn take_refresh_token(&mut self, token: &str) -> bool {
        let before = self.refresh_tokens.len();
        self.refresh_tokens.retain(|valid| valid != token);
        self.refresh_tokens.len() < before && !self.is_ended
    }
}

fn mcp(headers: &hyper::HeaderMap, body: &[u8], issued: &mut Issued) -> Response<Full<Bytes>> {
    let sent = headers.get("authorization").and_then(|value| value.to_str().unwrap().strip_prefix("Bearer "));
    let Some(token) = sent.filter(|sent| issued.access_tokens.iter().any(|valid| valid == sent)) else {
        issued.refused += u32::from(sent.is_some());
        return refusal(401, "Bearer error=\"invalid_token\"");
    };
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    if request["method"] == "tools/call" {
        issued.calls.push(token.to_owned());
        match issued.echo {
            Echo::Nowhere | Echo::TokenError => {}
            Echo::RpcError => {
                let error =
                    json!({"code": -32603, "message": format!("bad {token}"), "data": {"sent": token}});
                return reply(200, &json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
            }
            Echo::Body => return reply(500, &json!({"sent": token})),
            Echo::Scope => {
                return refusal(403, &format!("Bearer error=\"insufficient_scope\", scope=\"{token}\""));
            }
        }
    }
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

fn refusal(status: u16, challenge: &str) -> Response<Full<Bytes>> {
    let mut refusal = reply(status, &json!({}));
    refusal.headers_mut().insert("www-authenticate", challenge.parse().unwrap());
    refusal
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
