//! Requests that a trusted proxy passes on, and connections that begin with a handshake.

use std::sync::Mutex;

use toolcrib::config::CertificateNames;

use super::*;
use crate::connection_peer::ConnectionPeer;
use crate::http::{OpenedConnection, serve_after_handshake};

const CALLERS: &str = "[callers.alice]\ntoken = 'alice-token-0123456789'\n";
const ALICE: &str = "|Authorization: Bearer alice-token-0123456789";
const PROXY: &str = "10.0.0.7";
const CLIENT: &str = "|X-Forwarded-For: 192.0.2.1|X-Forwarded-Host: crib.local|X-Forwarded-Proto: https";

/// A gateway behind proxies in `10.0.0.0/8`, and the addresses of failed logins.
struct ProxiedGateway {
    gateway: TestGateway,
    failed: Arc<Mutex<Vec<String>>>,
}

impl ProxiedGateway {
    fn new(callers_text: &str) -> Self {
        let failed = Arc::<Mutex<Vec<String>>>::default();
        let recorded = failed.clone();
        let crib = Crib::builder().build().unwrap();
        let callers = Arc::new(ActiveCallers::new(callers(callers_text)));
        let state = HttpGateway::new(McpService::new(crib), callers, &GatewayLimits::default())
            .with_hosts(vec!["crib.local".to_owned()], Vec::new())
            .with_max_unauthenticated(1)
            .with_trusted_proxies(
                ["10.0.0.0/8", "127.0.0.1"]
                    .map(|range| toolcrib::config::AddressRange::parse(range).unwrap())
                    .into(),
            )
            .with_failed_logins(move |failed| {
                recorded.lock().unwrap().extend(failed.address.map(|ip| ip.to_string()));
            });
        let gateway =
            TestGateway { state: Arc::new(state), tasks: TaskTracker::new(), stop: CancellationToken::new() };
        Self { gateway, failed }
    }

    /// Opens a connection of this peer.
    fn connect(&self, peer: &str) -> Client {
        self.connect_as(ConnectionPeer::new(Entrypoint::Tcp, peer.parse().unwrap()))
    }

    fn connect_as(&self, peer: ConnectionPeer) -> Client {
        let (ours, theirs) = tokio::io::duplex(1 << 20);
        let TestGateway { state, tasks, stop } = &self.gateway;
        tasks.spawn(serve_connection(theirs, state.clone(), peer, stop.clone()));
        Client(ours)
    }

    /// Returns the status of one request over a connection of its own.
    async fn status(&self, peer: &str, headers: &str) -> String {
        request(&mut self.connect(peer), headers).await
    }
}

async fn request(client: &mut Client, headers: &str) -> String {
    let length = INITIALIZE.len();
    let head = "POST /mcp HTTP/1.1|Host: localhost|Content-Type: application/json|Accept: application/json, text/event-stream";
    let head = format!("{head}|Content-Length: {length}{headers}||").replace('|', "\r\n");
    client.0.write_all(format!("{head}{INITIALIZE}").as_bytes()).await.unwrap();
    let head = client.read_head().await;
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    client.0.read_exact(&mut vec![0; length]).await.unwrap();
    status(&head)
}

#[tokio::test(start_paused = true)]
async fn only_trusted_proxies_name_their_clients() {
    let gateway = ProxiedGateway::new(CALLERS);
    assert_eq!(gateway.status(PROXY, &format!("{CLIENT}{ALICE}")).await, "200");
    assert_eq!(gateway.status(PROXY, CLIENT).await, "401");
    assert_eq!(*gateway.failed.lock().unwrap(), ["192.0.2.1"]);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(gateway.status("198.51.100.1", CLIENT).await, "401");
    assert_eq!(*gateway.failed.lock().unwrap(), ["192.0.2.1", "198.51.100.1"]);
    let other_host = "|X-Forwarded-For: 192.0.2.1|X-Forwarded-Host: evil.example";
    assert_eq!(gateway.status(PROXY, &format!("{other_host}{ALICE}")).await, "403");
    assert_eq!(gateway.status("198.51.100.1", &format!("{other_host}{ALICE}")).await, "200", "it is ignored");
    assert_eq!(gateway.status(PROXY, &format!("{CLIENT}|Forwarded: for=192.0.2.2{ALICE}")).await, "400");
}

#[tokio::test(start_paused = true)]
async fn failed_logins_of_one_client_do_not_close_the_connection_of_a_proxy() {
    let gateway = ProxiedGateway::new(CALLERS);
    let mut connection = gateway.connect(PROXY);
    let others = [gateway.connect(PROXY), gateway.connect(PROXY)];
    for _ in 0..12 {
        assert_eq!(request(&mut connection, CLIENT).await, "401");
    }
    assert_eq!(request(&mut connection, &format!("{CLIENT}{ALICE}")).await, "200");
    drop(others);
}

#[tokio::test(start_paused = true)]
async fn remote_client_of_a_proxy_is_not_the_local_caller() {
    let gateway = ProxiedGateway::new("");
    assert_eq!(gateway.status(PROXY, CLIENT).await, "403");
    assert_eq!(gateway.status(PROXY, "|X-Forwarded-Proto: https").await, "403", "its address is not known");
    for hidden in
        ["|X-Forwarded-For: unknown", "|Forwarded: for=_hidden", "|X-Forwarded-For: 127.0.0.1, unknown"]
    {
        assert_eq!(gateway.status(PROXY, hidden).await, "403", "{hidden}");
    }
    // A client in the network of the proxies can write any address before its own.
    for forged in [
        "|X-Forwarded-For: 127.0.0.1, 10.0.0.9",
        "|Forwarded: for=127.0.0.1, for=10.0.0.9",
        "|Forwarded: for=127.0.0.1|X-Forwarded-For: 127.0.0.1, 10.0.0.9",
    ] {
        assert_eq!(gateway.status(PROXY, forged).await, "403", "{forged}");
    }
    assert_eq!(gateway.status(PROXY, "|X-Forwarded-For: 127.0.0.1").await, "200");
    assert_eq!(gateway.status(PROXY, "|X-Forwarded-For: 127.0.0.1, ::1").await, "200");
    assert_eq!(gateway.status(PROXY, "").await, "200", "a program on the machine of the proxy");
}

#[tokio::test(start_paused = true)]
async fn proxy_is_not_a_caller_by_its_certificate() {
    let both = "[callers.bob]\ntoken = 'bob-token-0123456789'\nmtls = { san = 'proxy.example.org' }\n";
    let gateway = ProxiedGateway::new(&format!("[callers.ci]\nmtls = {{ san = '*.example.org' }}\n{both}"));
    let names = CertificateNames { alternative: vec!["proxy.example.org".to_owned()], subject: Vec::new() };
    for (peer, headers, expected) in [
        ("198.51.100.1", "", "200"),
        (PROXY, CLIENT, "401"),
        (PROXY, "", "401"),
        (PROXY, &format!("{CLIENT}|Authorization: Bearer bob-token-0123456789"), "200"),
    ] {
        let peer = ConnectionPeer::new(Entrypoint::Tcp, peer.parse().unwrap()).with_tls(Some(names.clone()));
        let mut client = gateway.connect_as(peer);
        assert_eq!(request(&mut client, headers).await, expected, "{headers}");
    }
}

#[tokio::test(start_paused = true)]
async fn handshake_must_end_in_time_and_the_oldest_gives_way() {
    let gateway = ProxiedGateway::new("").gateway;
    let TestGateway { state, stop, .. } = &gateway;
    let never = || std::future::pending::<std::io::Result<OpenedConnection<DuplexStream>>>();
    let before = Instant::now();
    assert!(serve_after_handshake(never(), state.clone(), stop.clone()).await.is_none());
    assert_eq!(before.elapsed(), Duration::from_secs(10));
    let before = Instant::now();
    let oldest = gateway.tasks.spawn(serve_after_handshake(never(), state.clone(), stop.clone()));
    tokio::task::yield_now().await;
    for _ in 0..512 {
        gateway.tasks.spawn(serve_after_handshake(never(), state.clone(), stop.clone()));
    }
    assert!(oldest.await.unwrap().is_none() && before.elapsed() < Duration::from_secs(1));
    let (ours, io) = tokio::io::duplex(1 << 20);
    let opened = std::future::ready(Ok(OpenedConnection { io, peer: Entrypoint::Tcp.into() }));
    gateway.tasks.spawn(serve_after_handshake(opened, state.clone(), stop.clone()));
    assert_eq!(request(&mut Client(ours), "").await, "200");
}
