//! The gateway over TLS: client certificates, files that change, and files that cannot be used.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::Home;

/// A certificate and its key, in PEM.
#[derive(Clone)]
struct Identity {
    cert: String,
    key: String,
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, name);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Issues a certificate that `change` has changed.
fn issue(authority: &Authority, change: impl FnOnce(&mut CertificateParams)) -> Identity {
    let mut params = CertificateParams::default();
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    Identity { cert: params.signed_by(&key, authority).unwrap().pem(), key: key.serialize_pem() }
}

fn server_identity(authority: &Authority) -> Identity {
    issue(authority, |params| {
        params.subject_alt_names.push(SanType::DnsName("localhost".try_into().unwrap()));
    })
}

fn client_identity(authority: &Authority, name: &str) -> Identity {
    issue(authority, |params| params.subject_alt_names.push(SanType::DnsName(name.try_into().unwrap())))
}

fn write_private(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

fn write_identity(home: &Home, identity: &Identity) {
    std::fs::write(home.0.file("cert.pem"), &identity.cert).unwrap();
    write_private(&home.0.file("key.pem"), &identity.key);
}

/// A client that trusts one authority.
struct TlsClient {
    address: SocketAddr,
    roots: Arc<RootCertStore>,
}

impl TlsClient {
    fn new(address: SocketAddr, authority: &Authority) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(authority.der().clone()).unwrap();
        Self { address, roots: Arc::new(roots) }
    }

    async fn connect(
        &self,
        identity: Option<&Identity>,
        alpn: &[u8],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let builder = builder.with_root_certificates(self.roots.clone());
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let cert = CertificateDer::from_pem_slice(identity.cert.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(vec![cert], key).unwrap()
            }
        };
        config.alpn_protocols = vec![alpn.to_vec()];
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }

    /// Sends a request for the status and returns the response, or `None` if the handshake fails.
    async fn status(&self, identity: Option<&Identity>, token: Option<&str>) -> Option<String> {
        let mut stream = self.connect(identity, b"http/1.1").await.ok()?;
        request(&mut stream, token, "Connection: close\r\n").await.ok()?;
        let mut response = Vec::new();
        // A client learns that its certificate is refused only when it reads.
        timeout(Duration::from_secs(30), stream.read_to_end(&mut response)).await.unwrap().ok()?;
        Some(String::from_utf8(response).unwrap()).filter(|response| !response.is_empty())
    }
}

async fn request(
    stream: &mut TlsStream<TcpStream>,
    token: Option<&str>,
    headers: &str,
) -> std::io::Result<()> {
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let head = format!("GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n{token}{headers}\r\n");
    stream.write_all(head.as_bytes()).await
}

/// Returns the caller of a response, or what else happened. Only callers that are not admins are named.
fn caller(response: Option<String>) -> String {
    let Some(response) = response else { return "no connection".to_owned() };
    let status = response.split(' ').nth(1).unwrap().to_owned();
    let named = response.split_once("caller `").and_then(|(_, rest)| rest.split_once('`'));
    named.map_or(status, |(name, _)| name.to_owned())
}

const CALLERS: &str = "[listen]\ntls = { cert = 'cert.pem', key = 'key.pem', client-ca = 'clients.pem' }\n\
    [callers.ci]\nmtls = { san = 'ci-*.example.org' }\n\
    [callers.ops]\nmtls = { subject = 'CN=ops, O=Example' }\n\
    [callers.human]\ntoken = 'human-token-0123456789'\n\
    [callers.both]\ntoken = 'both-token-0123456789'\nmtls = { san = 'spiffe://example.org/both' }\n";

#[tokio::test]
async fn client_certificate_identifies_its_caller() {
    let clients = authority("clients");
    let servers = authority("servers");
    let home = Home::new(CALLERS);
    write_identity(&home, &server_identity(&servers));
    std::fs::write(home.0.file("clients.pem"), clients.pem()).unwrap();
    let gateway = home.0.serve();
    let client = TlsClient::new(gateway.address, &servers);
    let ci = client_identity(&clients, "CI-7.example.org");
    let ops = issue(&clients, |params| {
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        params.distinguished_name.push(DnType::CommonName, "ops");
    });
    let both = issue(&clients, |params| {
        params.subject_alt_names.push(SanType::URI("spiffe://example.org/both".try_into().unwrap()));
    });
    let two_callers = issue(&clients, |params| {
        params.distinguished_name.push(DnType::OrganizationName, "Example");
        params.distinguished_name.push(DnType::CommonName, "ops");
        params.subject_alt_names.push(SanType::DnsName("ci-1.example.org".try_into().unwrap()));
    });
    let expired = issue(&clients, |params| {
        params.subject_alt_names.push(SanType::DnsName("ci-1.example.org".try_into().unwrap()));
        params.not_after = date_time_ymd(2020, 1, 1);
    });
    let forged = client_identity(&authority("clients"), "ci-1.example.org");
    let unknown = client_identity(&clients, "web.example.org");
    let human = Some("human-token-0123456789");
    let both_token = Some("both-token-0123456789");
    for (case, identity, token, expected) in [
        ("the right name", Some(&ci), None, "ci"),
        ("the right subject", Some(&ops), None, "ops"),
        ("no certificate", None, None, "401"),
        ("a token", None, human, "human"),
        ("a wrong token", None, Some("wrong"), "401"),
        ("a token wins over a certificate", Some(&ci), human, "human"),
        ("a wrong token with a certificate", Some(&ci), Some("wrong"), "401"),
        ("another name", Some(&unknown), None, "401"),
        ("another name with a token", Some(&unknown), human, "human"),
        ("two callers", Some(&two_callers), None, "401"),
        ("another authority", Some(&forged), None, "no connection"),
        ("expired", Some(&expired), None, "no connection"),
        ("both needed, certificate only", Some(&both), None, "401"),
        ("both needed, token only", None, both_token, "401"),
        ("both needed, other certificate", Some(&ci), both_token, "401"),
        ("both needed, both given", Some(&both), both_token, "both"),
    ] {
        assert_eq!(caller(client.status(identity, token).await), expected, "{case}");
    }
    assert_http2(&client, &ci).await;
    let mut plain = TcpStream::connect(gateway.address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    plain.read_to_string(&mut answer).await.unwrap();
    assert!(answer.ends_with("\r\n\r\nthis address serves https, not http\n"), "{answer}");
    // Commands use the gateway's own socket.
    assert_eq!(home.run(&["status", "--json"]).expect(0).json()["config"]["problems"], serde_json::json!([]));
}

async fn assert_http2(client: &TlsClient, identity: &Identity) {
    let stream = client.connect(Some(identity), b"h2").await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let io = TokioIo::new(stream);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request =
        hyper::Request::get("https://localhost/healthz").body(http_body_util::Empty::<bytes::Bytes>::new());
    let response = sender.send_request(request.unwrap()).await.unwrap();
    assert_eq!(response.status(), hyper::StatusCode::OK);
}

#[tokio::test]
async fn changed_files_are_used_without_closing_connections() {
    let first = authority("first");
    let second = authority("second");
    let home = Home::new(CALLERS);
    write_identity(&home, &server_identity(&first));
    std::fs::write(home.0.file("clients.pem"), first.pem()).unwrap();
    let gateway = home.0.serve();
    let old_client = TlsClient::new(gateway.address, &first);
    let new_client = TlsClient::new(gateway.address, &second);
    let mut open = old_client.connect(None, b"http/1.1").await.unwrap();
    assert!(new_client.connect(None, b"http/1.1").await.is_err());

    write_private(&home.0.file("key.pem"), "broken");
    let problem =
        || home.run(&["status", "--json"]).expect(0).json()["config"]["problems"][0]["message"].clone();
    wait_until(async || problem().as_str().is_some_and(|text| text.contains("has no private key in PEM")))
        .await;
    assert!(old_client.connect(None, b"http/1.1").await.is_ok(), "the last files stay in use");

    write_identity(&home, &server_identity(&second));
    wait_until(async || new_client.connect(None, b"http/1.1").await.is_ok()).await;
    assert_eq!(problem(), serde_json::Value::Null);
    request(&mut open, Some("human-token-0123456789"), "Connection: close\r\n").await.unwrap();
    let mut response = Vec::new();
    open.read_to_end(&mut response).await.unwrap();
    assert!(String::from_utf8(response).unwrap().contains("caller `human`"), "an open connection goes on");
    drop(gateway);
}

/// Opens a connection and sends a request on it. Returns it after the head of the response.
async fn open(client: &TlsClient, identity: &Identity, path: &str) -> TlsStream<TcpStream> {
    let mut stream = client.connect(Some(identity), b"http/1.1").await.unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        response.push(stream.read_u8().await.unwrap());
    }
    assert!(response.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&response));
    stream
}

/// Waits until the gateway has closed a connection, and returns the time that it took.
async fn closed_after(stream: &mut TlsStream<TcpStream>) -> Duration {
    let started = Instant::now();
    let mut rest = Vec::new();
    // A connection that is closed without a TLS alert is an error.
    let _ = timeout(Duration::from_secs(60), stream.read_to_end(&mut rest)).await.unwrap();
    started.elapsed()
}

#[tokio::test]
async fn connection_ends_when_its_certificate_is_no_longer_accepted() {
    let servers = authority("servers");
    let removed = authority("removed");
    let kept = authority("kept");
    let home = Home::new(CALLERS);
    write_identity(&home, &server_identity(&servers));
    std::fs::write(home.0.file("clients.pem"), removed.pem() + &kept.pem()).unwrap();
    let gateway = home.0.serve();
    let client = TlsClient::new(gateway.address, &servers);
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let short_lived = issue(&kept, |params| {
        params.subject_alt_names.push(SanType::DnsName("ci-1.example.org".try_into().unwrap()));
        params.not_after = date_time_ymd(1970, 1, 1) + now + Duration::from_secs(3);
    });
    let mut expiring = open(&client, &short_lived, "/api/v1/events").await;
    let one = client_identity(&removed, "ci-2.example.org");
    let mut stream = open(&client, &one, "/api/v1/events").await;
    let mut idle = open(&client, &one, "/healthz").await;
    let mut other = open(&client, &client_identity(&kept, "ci-3.example.org"), "/api/v1/events").await;

    std::fs::write(home.0.file("clients.pem"), kept.pem()).unwrap();
    for ended in [&mut stream, &mut idle, &mut expiring] {
        let elapsed = closed_after(ended).await;
        assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
    }
    assert_eq!(caller(client.status(Some(&one), None).await), "no connection");
    let open = timeout(Duration::from_millis(100), other.read_u8()).await;
    assert!(open.is_err(), "a certificate of the other authority stays accepted: {open:?}");
    drop(gateway);
}

async fn wait_until(mut holds: impl AsyncFnMut() -> bool) {
    let due = Instant::now() + Duration::from_secs(60);
    while !holds().await {
        assert!(Instant::now() < due, "not in time");
        sleep(Duration::from_millis(50)).await;
    }
}

#[test]
fn unusable_files_are_reported_with_a_fix() {
    let servers = authority("servers");
    let good = server_identity(&servers);
    let other = server_identity(&servers);
    let home = Home::new("[listen]\ntls = { cert = 'cert.pem', key = 'key.pem' }\n");
    let refusal = || {
        let checked = home.run(&["check"]).expect(6);
        let served = home.run(&["serve", "--listen", "127.0.0.1:0"]).expect(6);
        let message = served.stderr.lines().next().unwrap().to_owned();
        assert!(
            (checked.stdout + &checked.stderr).contains(message.trim_start_matches("error: ")),
            "{message}"
        );
        served.stderr
    };
    assert!(refusal().contains("cert.pem: cannot read the file of `listen.tls.cert`: No such file"));
    write_identity(&home, &Identity { cert: good.cert.clone(), key: other.key });
    assert!(refusal().contains("key.pem: the key does not belong to the certificate"));
    write_identity(&home, &good);
    std::fs::set_permissions(home.0.file("key.pem"), std::fs::Permissions::from_mode(0o644)).unwrap();
    let permissions = refusal();
    assert!(permissions.contains("can be used by every user of this machine (mode 644)"), "{permissions}");
    assert!(permissions.contains("chmod 600 "), "{permissions}");
    write_identity(&home, &Identity { cert: good.key.clone(), key: good.key });
    assert!(refusal().contains("cert.pem: has no certificate in PEM"));
}

#[test]
fn expired_certificate_is_a_warning() {
    let servers = authority("servers");
    let expired = issue(&servers, |params| params.not_after = date_time_ymd(2020, 1, 1));
    let home = Home::new("[listen]\ntls = { cert = 'cert.pem', key = 'key.pem' }\n");
    write_identity(&home, &expired);
    let _gateway = home.0.serve();
    let status = home.run(&["status", "--json"]).expect(0).json();
    let message = status["config"]["problems"][0]["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("the certificate expired at 2020-01-01"), "{message}");
}
