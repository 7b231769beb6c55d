//! Tests of callers that tokens of issuers identify: metadata, challenges, scopes, groups and the end of logins.

use std::time::SystemTime;

use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use toolcrib::{Policy, Profile};

use super::*;
use crate::callers::AuthenticatedCaller;
use crate::connection_peer::ConnectionPeer;
use crate::resource::ResourceUrl;

/// An issuer whose keys are in a file.
struct TestIssuer {
    pair: Ed25519KeyPair,
    folder: tempfile::TempDir,
}

/// Encodes bytes as base64url without padding.
fn base64url(bytes: &[u8]) -> String {
    toolcrib::util::encoding::to_base64_url(bytes).trim_end_matches('=').to_owned()
}

impl TestIssuer {
    fn new() -> Self {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let public_key = base64url(pair.public_key().as_ref());
        let keys = json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "x": public_key, "kid": "k"}]});
        std::fs::write(folder.path().join("keys.json"), keys.to_string()).unwrap();
        Self { pair, folder }
    }

    fn config(&self, more: &str) -> String {
        let file = self.folder.path().join("keys.json");
        format!("[issuers.corp]\nissuer = 'https://login.example'\njwks = '{}'\n{more}", file.display())
    }

    fn gateway(&self, config: &str) -> TestGateway {
        let mut policy = Policy::default();
        policy.profiles.insert("work".to_owned(), Profile::default());
        let crib = Crib::builder().policy(policy).build().unwrap();
        TestGateway::with_callers(crib, callers(&self.config(config)), 100_000, 10)
    }

    /// Returns a token that expires in this many seconds, with further claims.
    fn token(&self, lifetime: u64, more: &Value) -> String {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let mut claims = json!({"iss": "https://login.example", "aud": "http://localhost/mcp", "sub": "ada", "exp": now + lifetime});
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let header = base64url(br#"{"alg":"EdDSA","kid":"k"}"#);
        let message = format!("{header}.{}", base64url(claims.to_string().as_bytes()));
        let signature = base64url(self.pair.sign(message.as_bytes()).as_ref());
        format!("{message}.{signature}")
    }
}

/// Sends `initialize` to a path and returns the whole response.
async fn initialize(gateway: &TestGateway, path: &str, token: &str) -> String {
    let head = format!(
        "POST {path} HTTP/1.1|Connection: close|Content-Type: application/json|Accept: application/json, text/event-stream|\
         Authorization: Bearer {token}|Content-Length: {}",
        INITIALIZE.len()
    );
    gateway.send(&head, INITIALIZE).await.read_to_end().await
}

/// Sends a ping in a session.
async fn ping(gateway: &TestGateway, session: &str, token: &str) -> String {
    let headers = format!("|Authorization: Bearer {token}|Mcp-Session-Id: {session}");
    status(&gateway.post(PING.len(), &headers, PING).await.read_head().await)
}

fn authenticate(gateway: &TestGateway, token: &str) -> Option<Arc<AuthenticatedCaller>> {
    let resource = ResourceUrl {
        base: "http://localhost".to_owned(),
        path: "/mcp".to_owned(),
        ..ResourceUrl::default()
    };
    gateway.state.callers.issued()?.find(token.as_bytes(), || resource)?.ok()
}

fn challenge(response: &str) -> &str {
    let header = response.lines().find_map(|line| line.strip_prefix("www-authenticate: "));
    header.unwrap_or_else(|| panic!("no challenge in {response}"))
}

const METADATA_URL: &str = "http://localhost/.well-known/oauth-protected-resource/mcp/p/work";

#[tokio::test(start_paused = true)]
async fn client_finds_the_issuer_and_the_scope_by_itself() {
    let issuer = TestIssuer::new();
    let gateway = issuer.gateway("");
    let get = async |path: &str| {
        gateway.send(&format!("GET {path} HTTP/1.1|Connection: close"), "").await.read_to_end().await
    };
    let refused = get("/mcp/p/work").await;
    assert_eq!(status(&refused), "401");
    assert_eq!(
        challenge(&refused),
        format!("Bearer resource_metadata=\"{METADATA_URL}\", scope=\"profile:work\"")
    );
    let metadata = get("/.well-known/oauth-protected-resource/mcp/p/work").await;
    let body: Value = serde_json::from_str(metadata.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(
        body,
        json!({
            "resource": "http://localhost/mcp/p/work", "authorization_servers": ["https://login.example"],
            "scopes_supported": ["profile:work"], "bearer_methods_supported": ["header"], "resource_name": "toolcrib",
        })
    );
    for (path, resource) in [("", ""), ("/mcp", "/mcp"), ("/mcp/s/git", "/mcp/s/git")] {
        let metadata = get(&format!("/.well-known/oauth-protected-resource{path}")).await;
        assert!(metadata.contains(&format!("\"resource\":\"http://localhost{resource}\"")), "{metadata}");
        assert!(!metadata.contains("scopes_supported"), "{metadata}");
    }
    assert_eq!(status(&get("/.well-known/oauth-protected-resource/api").await), "404");

    let without = TestGateway::with_callers(
        Crib::builder().build().unwrap(),
        callers("[callers.a]\ntoken = 'x'"),
        1000,
        1,
    );
    let head = "GET /.well-known/oauth-protected-resource HTTP/1.1|Connection: close";
    let response = without.send(head, "").await.read_to_end().await;
    assert_eq!((status(&response).as_str(), challenge(&response)), ("401", "Bearer realm=\"toolcrib\""));
}

#[tokio::test(start_paused = true)]
async fn token_is_accepted_only_where_audience_and_scope_allow() {
    let issuer = TestIssuer::new();
    let gateway = issuer.gateway("");
    let plain = issuer.token(60, &json!({}));
    assert_eq!(status(&initialize(&gateway, "/mcp", &plain).await), "200");
    let step_up = initialize(&gateway, "/mcp/p/work", &plain).await;
    assert_eq!(status(&step_up), "403");
    let expected = format!(
        "Bearer resource_metadata=\"{METADATA_URL}\", scope=\"profile:work\", error=\"insufficient_scope\", \
         error_description=\"the token lacks the scope `profile:work`\""
    );
    assert_eq!(challenge(&step_up), expected);
    let scoped = issuer.token(60, &json!({"scope": "openid profile:work"}));
    assert_eq!(status(&initialize(&gateway, "/mcp/p/work", &scoped).await), "200");
    let narrow = issuer.token(60, &json!({"aud": "http://localhost/mcp/p/work", "scope": "profile:work"}));
    assert_eq!(status(&initialize(&gateway, "/mcp/p/work", &narrow).await), "200");
    for _ in 0..2 {
        let other_resource = initialize(&gateway, "/mcp", &narrow).await;
        assert_eq!(status(&other_resource), "401", "verified now, and known");
        assert!(challenge(&other_resource).ends_with("\"the token was issued for another resource\""));
    }
    for aud in [json!([]), json!([1]), json!({}), json!("")] {
        let for_no_one = issuer.token(60, &json!({ "aud": aud }));
        assert_eq!(status(&initialize(&gateway, "/mcp", &for_no_one).await), "401", "{aud}");
    }
    let expired = initialize(&gateway, "/mcp", &issuer.token(0, &json!({}))).await;
    assert!(
        challenge(&expired).contains("error=\"invalid_token\", error_description=\"the token has expired\"")
    );
}

#[tokio::test(start_paused = true)]
async fn token_for_localhost_is_refused_from_another_machine() {
    let issuer = TestIssuer::new();
    let gateway = issuer.gateway("");
    let token = issuer.token(60, &json!({}));
    for _ in 0..2 {
        for (peer, expected) in [("127.0.0.1", "200"), ("::ffff:127.0.0.1", "200"), ("192.0.2.1", "401")] {
            let (mut ours, theirs) = tokio::io::duplex(1 << 20);
            let peer = ConnectionPeer::new(Entrypoint::Tcp, peer.parse().unwrap());
            gateway.tasks.spawn(serve_connection(theirs, gateway.state.clone(), peer, gateway.stop.clone()));
            let head = "POST /mcp HTTP/1.1|Host: localhost|Connection: close|Content-Type: application/json";
            let head = format!(
                "{head}|Accept: application/json, text/event-stream|Authorization: Bearer {token}|Content-Length: {}||",
                INITIALIZE.len()
            );
            ours.write_all((head.replace('|', "\r\n") + INITIALIZE).as_bytes()).await.unwrap();
            let response = Client(ours).read_to_end().await;
            assert_eq!(status(&response), expected, "{response}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn logins_of_one_caller_are_limited() {
    let issuer = TestIssuer::new();
    let gateway = issuer.gateway("");
    let log_in = async |client: usize, caller: &str| {
        let token = issuer.token(60, &json!({"client_id": client.to_string(), "sub": caller}));
        initialize(&gateway, "/mcp", &token).await
    };
    for client in 0..100 {
        assert_eq!(status(&log_in(client, "ada").await), "200", "{client}");
    }
    let refused = log_in(100, "ada").await;
    assert!(refused.contains("the caller is logged in at too many clients"), "{refused}");
    assert_eq!(status(&log_in(99, "ada").await), "200", "a client that is logged in");
    assert_eq!(status(&log_in(100, "bob").await), "200", "another caller");
}

#[tokio::test(start_paused = true)]
async fn stream_and_session_end_when_the_last_token_expires() {
    let issuer = TestIssuer::new();
    let gateway = issuer.gateway("");
    let first = issuer.token(100, &json!({"jti": 1}));
    let session = session_id(&initialize(&gateway, "/mcp", &first).await);
    let other_client = issuer.token(600, &json!({"client_id": "other"}));
    let other_session = session_id(&initialize(&gateway, "/mcp", &other_client).await);
    let open_stream = async |session: &str, token: &str| {
        let head = "GET /mcp HTTP/1.1|Connection: close|Accept: text/event-stream";
        let head = format!("{head}|Mcp-Session-Id: {session}|Authorization: Bearer {token}");
        let mut stream = gateway.send(&head, "").await;
        assert_eq!(status(&stream.read_head().await), "200");
        stream
    };
    let stream = open_stream(&session, &first).await;
    let opened = Instant::now();
    // The client renews its token, and the stream goes on.
    let renewed = issuer.token(200, &json!({"jti": 2}));
    assert_eq!(ping(&gateway, &session, &renewed).await, "200");
    let other_stream = open_stream(&other_session, &other_client).await;
    stream.read_to_end().await;
    let lasted = opened.elapsed().as_secs();
    assert!((198..=205).contains(&lasted), "{lasted}");
    assert_eq!(ping(&gateway, &other_session, &other_client).await, "200");
    assert!(authenticate(&gateway, &renewed).is_none() && authenticate(&gateway, &other_client).is_some());
    assert_eq!(ping(&gateway, &session, &other_client).await, "404", "it has ended");
    other_stream.read_to_end().await;
    assert!((598..=605).contains(&opened.elapsed().as_secs()));
}

#[tokio::test(start_paused = true)]
async fn reload_revokes_logins_whose_issuer_or_rights_changed() {
    let issuer = TestIssuer::new();
    let groups = "[groups.dev]\n[groups.ops]\n";
    let gateway = issuer.gateway(groups);
    let reload = async |config: &str| {
        gateway.state.callers.replace(callers(config), || {}).wait().await.unwrap();
    };
    let token = issuer.token(1000, &json!({"groups": ["dev", "unknown"]}));
    let session = session_id(&initialize(&gateway, "/mcp", &token).await);
    let access = authenticate(&gateway, &token).unwrap();
    assert_eq!((access.caller.as_str(), access.caller.groups()), ("corp:ada", &["dev".to_owned()][..]));
    assert!(!access.admin);

    reload(&issuer.config(&format!("{groups}[groups.more]\n"))).await;
    assert!(!access.revoked.is_cancelled(), "nothing changed for this caller");
    assert_eq!(ping(&gateway, &session, &token).await, "200");
    reload(&issuer.config("[groups.dev]\nadmin = true\n")).await;
    assert!(access.revoked.is_cancelled() && access.caller.is_revoked());
    assert_eq!(
        ping(&gateway, &session, &token).await,
        "404",
        "the session has ended, and the token is valid"
    );
    assert!(authenticate(&gateway, &token).unwrap().admin);
    reload(&issuer.config("groups = ['ops']\n[groups.dev]\n[groups.ops]\n")).await;
    let refused = initialize(&gateway, "/mcp", &token).await;
    assert!(
        status(&refused) == "403" && refused.contains("the caller is in none of the accepted groups"),
        "{refused}"
    );
    reload(&issuer.config("[groups.dev]\n[callers.'corp:ada']\nprofile = 'work'\n")).await;
    assert_eq!(
        status(&initialize(&gateway, "/mcp/p/work", &token).await),
        "200",
        "the config grants the profile"
    );
    let access = authenticate(&gateway, &token).unwrap();
    assert_eq!(access.caller.profile(), Some("work"));
    reload("[callers.a]\ntoken = 'x'").await;
    assert!(access.revoked.is_cancelled());
    assert_eq!(status(&initialize(&gateway, "/mcp", &token).await), "401");
}

#[tokio::test(start_paused = true)]
async fn token_names_only_groups_of_its_issuer() {
    let issuer = TestIssuer::new();
    let keys = issuer.folder.path().join("keys.json");
    let groups = format!(
        "[issuers.partner]\nissuer = 'https://partner.example'\njwks = '{}'\n\
         [groups.dev]\nissuers = ['corp']\n[groups.ops]\nissuers = ['partner']\nadmin = true\n",
        keys.display()
    );
    let token = issuer.token(1000, &json!({"groups": ["dev", "ops"]}));
    let access = authenticate_with(&issuer, &groups, &token).await;
    assert_eq!((access.caller.groups(), access.admin), (&["dev".to_owned()][..], false));
    let declared = format!("{groups}[callers.'corp:ada']\ngroups = ['ops']\n");
    let access = authenticate_with(&issuer, &declared, &token).await;
    assert!(access.admin, "the config itself may put a caller into any group");
}

async fn authenticate_with(issuer: &TestIssuer, config: &str, token: &str) -> Arc<AuthenticatedCaller> {
    let gateway = issuer.gateway(config);
    assert_eq!(status(&initialize(&gateway, "/mcp", token).await), "200");
    authenticate(&gateway, token).unwrap()
}

#[tokio::test(start_paused = true)]
async fn issuer_without_keys_is_not_the_fault_of_the_token() {
    let issuer = TestIssuer::new();
    let gateway = issuer.gateway("");
    std::fs::write(issuer.folder.path().join("keys.json"), "{}").unwrap();
    assert_eq!(
        status(&initialize(&gateway, "/mcp", &issuer.token(60, &json!({}))).await),
        "200",
        "known keys stay valid"
    );
    let unreadable = issuer.gateway("");
    let response = initialize(&unreadable, "/mcp", &issuer.token(60, &json!({}))).await;
    assert!(status(&response) == "503" && response.contains("it has no array `keys`"), "{response}");
}

#[tokio::test(start_paused = true)]
async fn login_at_one_replica_counts_at_another() {
    let issuer = TestIssuer::new();
    let first = issuer.gateway("[groups.dev]\nadmin = true\n");
    let second = issuer.gateway("[groups.dev]\nadmin = true\n");
    let token = issuer.token(1000, &json!({"groups": ["dev"], "azp": "editor"}));
    assert_eq!(status(&initialize(&first, "/mcp", &token).await), "200");
    let access = authenticate(&first, &token).unwrap();
    let assertion = first.state.callers.assert_caller(&access).unwrap();
    let found = second.state.callers.find_asserted(&assertion).unwrap();
    assert_eq!((&found.caller, found.admin, &found.credential), (&access.caller, true, &access.credential));
    // A longer token at one replica extends the login at the other, whose sessions go on.
    let longer = issuer.token(5000, &json!({"groups": ["dev"], "azp": "editor"}));
    assert_eq!(status(&initialize(&first, "/mcp", &longer).await), "200");
    let assertion = first.state.callers.assert_caller(&access).unwrap();
    second.state.callers.find_asserted(&assertion).unwrap();
    tokio::time::sleep(Duration::from_secs(2000)).await;
    assert!(!found.caller.is_revoked());
    tokio::time::sleep(Duration::from_secs(4000)).await;
    assert!(found.caller.is_revoked(), "the last token has expired");
    // Another replica has other issuers, or does not accept the group.
    let strict = TestGateway::with_callers(
        Crib::builder().build().unwrap(),
        callers(&issuer.config("groups = ['ops']\n[groups.ops]\n")),
        1000,
        10,
    );
    assert!(strict.state.callers.find_asserted(&assertion).is_none());
    assert!(TestGateway::new(1000, 10).state.callers.find_asserted(&assertion).is_none());
}
