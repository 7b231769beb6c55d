//! Credentials that change between requests, and their rejection.

use std::borrow::Cow;
use std::sync::Mutex;

use hyper::header::{AUTHORIZATION, HeaderMap};

use super::*;
use crate::upstream::mux::Mux;
use crate::upstream::transport::http::HttpTransport;
use crate::upstream::transport::http::auth::{Auth, AuthDecision, AuthHeaders, AuthRejection};

/// Sends a numbered token that grows with every rejection.
#[derive(Debug)]
struct NumberedTokens {
    decision: AuthDecision,
    /// Fetches every token, instead of having it ready.
    pending: bool,
    asked: AtomicUsize,
    /// Status, challenge and token of each rejected request.
    rejected: Mutex<Vec<String>>,
}

impl NumberedTokens {
    fn new(decision: AuthDecision) -> Arc<Self> {
        let asked = AtomicUsize::new(0);
        Arc::new(Self { decision, pending: false, asked, rejected: Mutex::default() })
    }

    fn token(&self) -> String {
        format!("Bearer {}", self.rejected().len())
    }

    fn rejected(&self) -> Vec<String> {
        self.rejected.lock().unwrap().clone()
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

impl Auth for NumberedTokens {
    fn headers<'a>(&'a self, base: &'a HeaderMap) -> AuthHeaders<'a> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mut headers = base.clone();
        headers.insert(AUTHORIZATION, self.token().parse().unwrap());
        if !self.pending {
            return AuthHeaders::Ready(Cow::Owned(headers));
        }
        AuthHeaders::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            match self.rejected().is_empty() {
                true => Ok(headers),
                false => Err(Error::new(ErrorKind::AuthNeeded, "the token expired")),
            }
        }))
    }

    fn rejected(&self, rejection: &AuthRejection<'_>) -> AuthDecision {
        let challenge = rejection.challenge.map_or("-", |value| value.to_str().unwrap());
        let token = rejection.sent[AUTHORIZATION].to_str().unwrap();
        self.rejected.lock().unwrap().push(format!("{} {challenge} {token}", rejection.status.as_u16()));
        self.decision
    }
}

async fn open(server: &RemoteServer, auth: &Arc<NumberedTokens>) -> Mux {
    let remote = HttpSpec::new(&server.url).header("X-Key", "configured");
    let spec = ServerSpec::http("remote".parse().unwrap(), remote.clone());
    let context = mux_context();
    let secrets = crate::secrets::ResolvedSecrets::default();
    let transport = HttpTransport::new(
        &spec,
        &remote,
        &secrets,
        &context.redactor,
        auth.clone(),
        &context.tasks,
        MessageLimit::new(1 << 20),
    );
    let transport = transport.await;
    Mux::new(spec.id, context, transport.unwrap())
}

async fn call_echo(mux: &Mux) -> Result<ResponsePayload, Error> {
    let params = br#"{"name":"echo","arguments":{}}"#;
    mux.send_request("tools/call", None, None, |_, line| line.extend_from_slice(params)).unwrap().await
}

/// Starts a server that accepts the listed tokens and rejects others with this status.
async fn start_server(
    status: u16,
    accepted: &'static [&'static str],
    challenge: Option<&'static str>,
) -> RemoteServer {
    RemoteServer::start(move |request| {
        if accepted.contains(&request.header("authorization").unwrap()) {
            return stateless(request);
        }
        match challenge {
            Some(challenge) => Reply::empty(status).with("www-authenticate", challenge),
            None => Reply::empty(status),
        }
    })
    .await
}

#[tokio::test]
async fn headers_are_asked_for_every_request() {
    let server = start_server(401, &["Bearer 0"], None).await;
    let auth = NumberedTokens::new(AuthDecision::Retry);
    let mux = open(&server, &auth).await;
    for count in 1..=3 {
        call_echo(&mux).await.unwrap();
        assert_eq!(auth.asked(), count);
    }
    assert!(auth.rejected().is_empty());
    let calls = server.requests("tools/call");
    assert!(calls.iter().all(|call| call.header("x-key") == Some("configured")));
    assert!(calls.iter().all(|call| call.header("mcp-name") == Some("echo")));
}

#[tokio::test]
async fn rejected_request_is_sent_again_with_new_headers() {
    let server = start_server(401, &["Bearer 1"], Some("Bearer scope=\"a\"")).await;
    let auth = NumberedTokens::new(AuthDecision::Retry);
    let mux = open(&server, &auth).await;
    call_echo(&mux).await.unwrap();
    assert_eq!(auth.rejected(), ["401 Bearer scope=\"a\" Bearer 0"]);
    let calls = server.requests("tools/call");
    let tokens: Vec<_> = calls.iter().map(|call| call.header("authorization").unwrap()).collect();
    assert_eq!(tokens, ["Bearer 0", "Bearer 1"]);
    assert_eq!(calls[1].header("mcp-name"), Some("echo"));
    assert_eq!(calls[0].body, calls[1].body);
}

#[tokio::test]
async fn rejected_request_is_sent_again_only_once() {
    let server = start_server(401, &["Bearer 2"], None).await;
    let auth = NumberedTokens::new(AuthDecision::Retry);
    let mux = open(&server, &auth).await;
    let error = call_echo(&mux).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthNeeded, "{error}");
    assert_eq!(server.requests("tools/call").len(), 2);
    assert_eq!(auth.rejected().len(), 1);
}

#[tokio::test]
async fn fail_decision_reports_the_status() {
    let described = r#"Bearer error="invalid_token", error_description="it is for another resource""#;
    for (status, challenge, expected) in [
        (401, "Bearer", "`remote` requires authentication (HTTP 401)"),
        (401, described, "`remote` requires authentication (HTTP 401): it is for another resource"),
        (403, "Bearer", "`remote` denies access (HTTP 403)"),
    ] {
        let server = start_server(status, &[], Some(challenge)).await;
        let auth = NumberedTokens::new(AuthDecision::Fail);
        let mux = open(&server, &auth).await;
        let error = call_echo(&mux).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AuthNeeded);
        assert_eq!(error.to_string(), expected);
        assert_eq!(server.requests("tools/call").len(), 1);
        assert_eq!(auth.rejected(), [format!("{status} {challenge} Bearer 0")]);
    }
}

#[tokio::test]
async fn forbidden_request_is_sent_again_only_after_a_challenge() {
    for (challenge, requests) in [(None, 1), (Some("Bearer error=\"insufficient_scope\""), 2)] {
        let server = start_server(403, &["Bearer 1"], challenge).await;
        let auth = NumberedTokens::new(AuthDecision::Retry);
        let mux = open(&server, &auth).await;
        assert_eq!(call_echo(&mux).await.is_ok(), challenge.is_some());
        assert_eq!(auth.rejected().len(), 1);
        assert_eq!(server.requests("tools/call").len(), requests);
    }
}

#[tokio::test]
async fn request_without_credentials_is_not_sent() {
    let server = start_server(401, &[], None).await;
    let tokens = NumberedTokens::new(AuthDecision::Retry);
    let auth = Arc::new(NumberedTokens { pending: true, ..Arc::into_inner(tokens).unwrap() });
    let mux = open(&server, &auth).await;
    let error = call_echo(&mux).await.unwrap_err();
    assert_eq!((error.kind(), error.is_not_sent()), (ErrorKind::AuthNeeded, true));
    assert!(error.to_string().starts_with("the token expired"), "{error}");
    assert_eq!(server.requests("tools/call").len(), 1, "only with the first token");
}
