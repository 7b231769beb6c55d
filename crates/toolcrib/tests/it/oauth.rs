//! Logins to remote servers: stored, renewed once for all callers, never used twice, never sent elsewhere.

mod authorization_server;
mod callers;
mod in_band;
mod redaction;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Uri;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use toolcrib::oauth::{
    DeviceLogin, Login, LoginRequest, LoginState, LoginSummary, Logins, OAuthError, OAuthErrorKind,
};
use toolcrib::spec::HttpSpec;
use toolcrib::{
    Call, Crib, CribBuilder, Error, ErrorKind, Hint, Outcome, Secret, SecretError, SecretStore, ServerId,
    ServerSpec,
};

use authorization_server::AuthorizationServer;

const REDIRECT: &str = "http://127.0.0.1:1/callback";

/// Secrets in memory, shared by clones.
#[derive(Debug, Clone, Default)]
struct MemorySecrets(Arc<Mutex<BTreeMap<String, Secret>>>, Arc<AtomicBool>);

impl MemorySecrets {
    /// Makes every later `put` fail, or work again.
    fn set_read_only(&self, is_read_only: bool) {
        self.1.store(is_read_only, Ordering::Relaxed);
    }
}

impl SecretStore for MemorySecrets {
    fn get(&self, name: &str) -> Result<Secret, SecretError> {
        self.0.lock().unwrap().get(name).cloned().ok_or(SecretError::NotFound)
    }

    fn put(&self, name: &str, value: &Secret) -> Result<(), SecretError> {
        if self.1.load(Ordering::Relaxed) {
            return Err(SecretError::Failed("the disk is full".to_owned()));
        }
        self.0.lock().unwrap().insert(name.to_owned(), value.clone());
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<bool, SecretError> {
        Ok(self.0.lock().unwrap().remove(name).is_some())
    }
}

/// A person's machine: secrets and a state folder.
struct Machine {
    secrets: MemorySecrets,
    state: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { secrets: MemorySecrets::default(), state: tempfile::tempdir().unwrap() }
    }

    fn state_dir(&self) -> &Path {
        self.state.path()
    }

    fn logins(&self) -> Logins {
        Logins::new(Arc::new(self.secrets.clone()), self.state_dir())
    }

    fn builder(&self, url: &str) -> CribBuilder {
        Crib::builder().server(spec(url)).secrets(self.secrets.clone()).state_dir(self.state_dir())
    }

    fn crib(&self, url: &str) -> Crib {
        self.builder(url).build().unwrap()
    }

    async fn start_login(&self, url: &str) -> Result<Login, OAuthError> {
        let logins = self.logins();
        Login::start(LoginRequest { server: &spec(url), logins: &logins, redirect_uri: REDIRECT }).await
    }

    async fn log_in(&self, url: &str) -> LoginSummary {
        let login = self.start_login(url).await.unwrap();
        let redirect = browse(login.url()).await;
        login.finish(&redirect).await.unwrap()
    }
}

fn id() -> ServerId {
    "remote".parse().unwrap()
}

fn spec(url: &str) -> ServerSpec {
    ServerSpec::http(id(), HttpSpec::new(url))
}

async fn echo(crib: &Crib) -> Result<Outcome, Error> {
    crib.call(Call::tool_on(id(), "echo").arguments(&json!({}))).await
}

/// Opens a URL like a browser and returns where it redirects to.
async fn browse(url: &str) -> String {
    let uri: Uri = url.parse().unwrap();
    let mut stream = tokio::net::TcpStream::connect(uri.authority().unwrap().as_str()).await.unwrap();
    let path = uri.path_and_query().unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let location = answer.lines().find_map(|line| line.strip_prefix("location: "));
    location.unwrap_or_else(|| panic!("no redirect: {answer}")).to_owned()
}

#[tokio::test]
async fn call_before_the_login_names_it_and_works_after_it() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    let error = echo(&machine.crib(&server.url())).await.unwrap_err();
    assert_eq!((error.kind(), error.hint()), (ErrorKind::AuthNeeded, Hint::Login { server: id() }));
    assert_eq!(machine.logins().summary(&id()), None);

    let summary = machine.log_in(&server.url()).await;
    assert_eq!(summary.state(std::time::SystemTime::UNIX_EPOCH), LoginState::Ok);
    assert_eq!(machine.logins().summary(&id()), Some(summary));
    for crib in [machine.crib(&server.url()), machine.crib(&server.url())] {
        assert_eq!(echo(&crib).await.unwrap().text(), "hello");
    }
    assert_eq!(server.issued.lock().unwrap().token_requests, 1, "one login serves all");
}

#[tokio::test]
async fn concurrent_calls_with_an_expired_token_cause_one_refresh() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let cribs = [machine.crib(&server.url()), machine.crib(&server.url())];
    for crib in &cribs {
        echo(crib).await.unwrap();
    }
    for round in 1..=3 {
        server.expire();
        let mut calls = tokio::task::JoinSet::new();
        for number in 0..64 {
            let crib = cribs[number % 2].clone();
            calls.spawn(async move { echo(&crib).await.unwrap().text() });
        }
        assert!(calls.join_all().await.iter().all(|text| text == "hello"));
        assert_eq!(server.refreshes(), round);
    }
    assert!(!server.issued.lock().unwrap().is_ended, "no refresh token was used twice");
}

#[tokio::test]
async fn token_is_renewed_before_it_expires() {
    let server = AuthorizationServer::start().await;
    server.issued.lock().unwrap().lifetime = Some(0);
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    server.issued.lock().unwrap().lifetime = Some(3600);
    let crib = machine.crib(&server.url());
    echo(&crib).await.unwrap();
    echo(&crib).await.unwrap();
    assert_eq!(server.refreshes(), 1);
    assert_eq!(server.issued.lock().unwrap().refused, 0, "the server saw no expired token");
}

#[tokio::test]
async fn refresh_goes_on_when_its_caller_gives_up() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let crib = machine.crib(&server.url());
    echo(&crib).await.unwrap();
    server.expire();
    server.issued.lock().unwrap().delay = Duration::from_millis(300);
    let gave_up = tokio::time::timeout(Duration::from_millis(100), echo(&crib)).await;
    assert!(gave_up.is_err(), "the token request takes longer");
    echo(&crib).await.unwrap();
    assert_eq!(server.refreshes(), 1, "the first refresh was finished and stored");
}

#[tokio::test]
async fn ended_login_asks_for_a_new_one_and_sends_nothing_more() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let crib = machine.crib(&server.url());
    echo(&crib).await.unwrap();
    server.expire();
    server.issued.lock().unwrap().is_ended = true;
    for _ in 0..3 {
        let error = echo(&crib).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.hint()),
            (ErrorKind::AuthNeeded, Hint::Login { server: id() }),
            "{error}"
        );
    }
    assert_eq!(server.issued.lock().unwrap().token_requests, 2, "the login and one refused refresh");
    let summary = machine.logins().summary(&id()).unwrap();
    assert_eq!(summary.state(std::time::SystemTime::UNIX_EPOCH), LoginState::Expired);

    server.issued.lock().unwrap().is_ended = false;
    machine.log_in(&server.url()).await;
    crib.restart(&id()).await.unwrap();
    assert_eq!(echo(&crib).await.unwrap().text(), "hello");
}

#[tokio::test]
async fn client_that_is_no_longer_registered_ends_the_login_and_registers_again() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let crib = machine.crib(&server.url());
    server.expire();
    server.issued.lock().unwrap().refresh_error = "invalid_client";
    for _ in 0..2 {
        let error = echo(&crib).await.unwrap_err();
        assert_eq!(error.hint(), Hint::Login { server: id() }, "{error}");
    }
    assert_eq!(server.issued.lock().unwrap().token_requests, 2, "the login and one refused refresh");
    let summary = machine.logins().summary(&id()).unwrap();
    assert_eq!(summary.state(std::time::SystemTime::UNIX_EPOCH), LoginState::Expired);
    machine.log_in(&server.url()).await;
    assert_eq!(server.issued.lock().unwrap().registrations, 2);
}

#[tokio::test]
async fn refresh_token_is_not_used_while_its_successor_cannot_be_stored() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let crib = machine.crib(&server.url());
    echo(&crib).await.unwrap();
    server.expire();
    machine.secrets.set_read_only(true);
    let error = echo(&crib).await.unwrap_err();
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert_eq!(server.refreshes(), 0);
    machine.secrets.set_read_only(false);
    assert_eq!(echo(&crib).await.unwrap().text(), "hello");
}

#[tokio::test]
async fn failing_authorization_server_does_not_end_the_login() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let crib = machine.crib(&server.url());
    echo(&crib).await.unwrap();
    server.expire();
    server.issued.lock().unwrap().refresh_status = 503;
    let error = echo(&crib).await.unwrap_err();
    assert!(matches!(error.hint(), Hint::Text(hint) if hint.contains("authorization server")), "{error}");
    server.issued.lock().unwrap().refresh_status = 0;
    assert_eq!(echo(&crib).await.unwrap().text(), "hello");
}

#[tokio::test]
async fn logout_during_a_refresh_revokes_the_new_tokens() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let crib = machine.crib(&server.url());
    echo(&crib).await.unwrap();
    server.expire();
    server.issued.lock().unwrap().delay = Duration::from_millis(200);
    let log_out = async {
        while server.refreshes() == 0 {
            tokio::task::yield_now().await;
        }
        machine.logins().log_out(&id()).await.unwrap()
    };
    let (_, was_logged_in) = tokio::join!(echo(&crib), log_out);
    assert!(was_logged_in);
    assert_eq!(server.issued.lock().unwrap().revoked, ["refresh-2", "access-2"]);
    assert_eq!(machine.logins().summary(&id()), None);
}

#[tokio::test]
async fn tokens_are_not_sent_to_another_url() {
    let server = AuthorizationServer::start().await;
    let other = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    let error = echo(&machine.crib(&other.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AuthNeeded);
    assert_eq!(other.issued.lock().unwrap().refused, 0, "it was asked without a token only");
}

#[tokio::test]
async fn redirect_that_does_not_belong_to_the_login_is_refused() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    type Change = fn(&str) -> String;
    let changes: [(Change, OAuthErrorKind); 6] = [
        (|url| url.replace("state=", "state=x"), OAuthErrorKind::WrongState),
        (|url| format!("{}?code=stolen", url.split('?').next().unwrap()), OAuthErrorKind::WrongState),
        (|url| url.replace("127.0.0.1:1/", "127.0.0.1:2/"), OAuthErrorKind::InvalidRedirect),
        (|url| format!("{url}&iss=https://evil.example"), OAuthErrorKind::WrongIssuer),
        (|url| url.replace("code=", "error=access_denied&was="), OAuthErrorKind::Denied),
        (|url| url.replace("code=", "code=other-"), OAuthErrorKind::InvalidGrant),
    ];
    for (change, expected) in changes {
        let login = machine.start_login(&server.url()).await.unwrap();
        let redirect = browse(login.url()).await;
        let changed = change(&redirect);
        assert_eq!(login.has_state(&changed), expected != OAuthErrorKind::WrongState);
        let error = login.finish(&changed).await.unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
    }
    assert_eq!(machine.logins().summary(&id()), None);
}

#[tokio::test]
async fn metadata_that_cannot_be_trusted_is_refused() {
    let server = AuthorizationServer::start().await;
    let origin = &server.origin;
    let cases = [
        (json!({"issuer": "https://evil.example"}), "another issuer"),
        (json!({"issuer": format!("{origin}/")}), "another issuer"),
        (json!({"code_challenge_methods_supported": ["plain"]}), "PKCE"),
        (json!({"code_challenge_methods_supported": null}), "PKCE"),
        (json!({"authorization_endpoint": "http://evil.example/authorize"}), "does not use https"),
        (json!({"authorization_endpoint": "javascript:alert(1)"}), "it must start with"),
        (json!({"registration_endpoint": "http://10.0.0.1/register"}), "not public"),
        (json!({"registration_endpoint": "https://169.254.169.254/register"}), "not public"),
        (json!({"padding": "x".repeat(10 << 20)}), "larger than"),
        (json!({"registration_endpoint": "http://localhost.evil.example/register"}), "does not use https"),
        (json!({"token_endpoint": format!("{origin}@evil.example/token")}), "user name"),
    ];
    for (metadata, expected) in cases {
        server.issued.lock().unwrap().metadata = metadata;
        let error = Machine::new().start_login(&server.url()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    server.issued.lock().unwrap().metadata = json!({});
    server.issued.lock().unwrap().resource_path = "/other";
    let error = Machine::new().start_login(&server.url()).await.unwrap_err().to_string();
    assert!(error.contains("that of another resource"), "{error}");
    let issued = server.issued.lock().unwrap();
    assert_eq!((issued.codes, issued.token_requests), (0, 0), "nothing was asked for");
}

#[tokio::test]
async fn failing_metadata_endpoint_is_not_called_missing() {
    let server = AuthorizationServer::start().await;
    server.issued.lock().unwrap().authorization_server = format!("{}/broken", server.origin);
    let error = Machine::new().start_login(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), OAuthErrorKind::Unreachable);
    assert!(error.to_string().ends_with("answered HTTP 500"), "{error}");
}

#[tokio::test]
async fn scopes_that_fit_in_no_url_are_refused() {
    let server = AuthorizationServer::start().await;
    let many: Vec<String> = (0..2000).map(|number| format!("scope-{number}")).collect();
    server.issued.lock().unwrap().scopes = many;
    let error = Machine::new().start_login(&server.url()).await.unwrap_err();
    assert!(error.to_string().contains("asks for 2000 scopes"), "{error}");
}

#[tokio::test]
async fn authorization_server_that_redirects_endlessly_is_refused() {
    let server = AuthorizationServer::start().await;
    server.issued.lock().unwrap().authorization_server = format!("{}/redirect", server.origin);
    let error = Machine::new().start_login(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), OAuthErrorKind::InvalidMetadata);
    assert!(error.to_string().contains("redirects too often"), "{error}");
}

#[tokio::test]
async fn device_code_logs_in_without_a_redirect() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    let start = async || {
        let logins = machine.logins();
        let (server, redirect_uri) = (&spec(&server.url()), "");
        DeviceLogin::start(LoginRequest { server, logins: &logins, redirect_uri }).await
    };
    assert_eq!(start().await.unwrap_err().kind(), OAuthErrorKind::NotOffered);
    let endpoint = format!("{}/device", server.origin);
    server.issued.lock().unwrap().metadata = json!({"device_authorization_endpoint": endpoint});
    let login = start().await.unwrap();
    assert_eq!(login.user_code(), "ABCD-EFGH");
    assert_eq!(login.url(), format!("{}/enter?code=ABCD-EFGH", server.origin));
    let issued = server.issued.clone();
    let entering = async {
        while issued.lock().unwrap().token_requests == 0 {
            tokio::task::yield_now().await;
        }
        issued.lock().unwrap().is_device_approved = true;
    };
    let (finished, ()) = tokio::join!(login.finish(), entering);
    assert_eq!(finished.unwrap().state(std::time::SystemTime::UNIX_EPOCH), LoginState::Ok);
    assert_eq!(echo(&machine.crib(&server.url())).await.unwrap().text(), "hello");
}

#[tokio::test]
async fn logout_revokes_the_tokens_and_forgets_them() {
    let server = AuthorizationServer::start().await;
    let machine = Machine::new();
    machine.log_in(&server.url()).await;
    assert!(machine.logins().log_out(&id()).await.unwrap());
    assert_eq!(server.issued.lock().unwrap().revoked, ["refresh-1", "access-1"]);
    assert_eq!(machine.logins().summary(&id()), None);
    assert!(machine.secrets.0.lock().unwrap().is_empty());
    assert!(!machine.logins().log_out(&id()).await.unwrap());
}
