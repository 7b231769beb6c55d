use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::time::sleep;

use super::*;
use crate::config::Config;

const KEYS: &str = include_str!("../tests/vectors.json");

fn key_set() -> KeySet {
    KeySet::parse(KEYS.as_bytes()).unwrap()
}

/// An issuer that answers with what a test sets, and counts the requests.
#[derive(Default)]
struct FakeIssuer {
    failure: Mutex<Option<&'static str>>,
    fetches: AtomicUsize,
}

impl FakeIssuer {
    fn start(self: &Arc<Self>) -> IssuerKeys {
        let issuer = self.clone();
        let fetch: FetchKeys = Box::new(move || {
            let issuer = issuer.clone();
            Box::pin(async move {
                issuer.fetches.fetch_add(1, Ordering::Relaxed);
                let failure = *issuer.failure.lock().unwrap();
                failure.map_or_else(|| Ok(key_set()), |reason| Err(reason.to_owned()))
            })
        });
        IssuerKeys::start_with("corp".to_owned(), None, fetch, &TaskTracker::new())
    }

    fn fail(&self, reason: Option<&'static str>) {
        *self.failure.lock().unwrap() = reason;
    }

    fn fetches(&self) -> usize {
        self.fetches.load(Ordering::Relaxed)
    }
}

#[tokio::test(start_paused = true)]
async fn keys_stay_valid_while_the_issuer_is_down_for_an_hour() {
    let issuer = Arc::<FakeIssuer>::default();
    let keys = issuer.start();
    keys.fetch_again().await;
    assert!(keys.current().is_ok());
    issuer.fail(Some("connection refused"));
    for _ in 0..3600 {
        sleep(Duration::from_secs(1)).await;
        assert!(keys.current().is_ok());
    }
    assert!((20..120).contains(&issuer.fetches()), "{}", issuer.fetches());
    sleep(MAX_AGE).await;
    assert_eq!(keys.current(), Err(TokenError::KeysUnavailable("connection refused".to_owned())));
    issuer.fail(None);
    sleep(MAX_RETRY).await;
    assert!(keys.current().is_ok());
    let before = issuer.fetches();
    sleep(REFRESH_INTERVAL * 4).await;
    assert_eq!(issuer.fetches() - before, 4);
}

#[tokio::test(start_paused = true)]
async fn unknown_keys_are_fetched_at_most_once_per_interval() {
    let issuer = Arc::<FakeIssuer>::default();
    let keys = issuer.start();
    keys.fetch_again().await;
    assert_eq!(issuer.fetches(), 1);
    for _ in 0..1000 {
        keys.fetch_again().await;
    }
    assert_eq!(issuer.fetches(), 1);
    sleep(MIN_INTERVAL).await;
    for _ in 0..1000 {
        keys.fetch_again().await;
    }
    assert_eq!(issuer.fetches(), 2);
}

/// Serves one document to every request, or nothing if it is empty.
async fn serve(body: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let body = body.clone();
            tokio::spawn(async move {
                let mut request = [0; 4096];
                let _ = stream.read(&mut request).await;
                if body.is_empty() {
                    std::future::pending::<()>().await;
                }
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                let _ = stream.write_all(head.as_bytes()).await;
                let _ = stream.write_all(&body).await;
            });
        }
    });
    format!("http://{address}")
}

/// Returns the reason why the keys of an issuer at this URL are not available.
async fn fetch_error(url: &str, jwks: &str) -> String {
    let text = format!("[issuers.corp]\nissuer = '{url}'\n{jwks}");
    let config = Config::parse(std::path::Path::new("/x/config.toml"), &text);
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    let location = KeyLocation { issuer: url.to_owned(), keys: config.issuers[0].keys.clone() };
    location.fetch(&TaskTracker::new()).await.unwrap_err()
}

#[tokio::test]
async fn hostile_documents_are_refused_with_the_reason() {
    let large = serve(vec![b' '; 10 << 20]).await;
    assert!(fetch_error(&large, "").await.ends_with("its answer is larger than 256 KiB"));
    let many = serve(format!("{{\"keys\":[{}{{}}]}}", "{},".repeat(9_999)).into_bytes()).await;
    let reason = fetch_error(&many, &format!("jwks = '{many}/keys'")).await;
    assert!(reason.ends_with("it has 10000 keys, at most 100 are supported"), "{reason}");
    let other =
        serve(br#"{"issuer":"https://other.example","jwks_uri":"https://other.example/keys"}"#.to_vec())
            .await;
    let reason = fetch_error(&other, "").await;
    assert!(reason.ends_with("is that of another issuer, `https://other.example`"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn endpoint_that_does_not_answer_is_given_up() {
    let silent = serve(Vec::new()).await;
    let reason = fetch_error(&silent, &format!("jwks = '{silent}/keys'")).await;
    assert!(reason.ends_with("no answer within 15 s"), "{reason}");
}
