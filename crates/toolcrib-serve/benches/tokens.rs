//! The cost of tokens of issuers: verifying a new one, and recognizing one that was seen before.
//!
//! `cargo bench -p toolcrib-serve --bench tokens` prints the times; each is that of the fastest batch, so that other processes do not count.
//! For instructions per known token, run the program that it builds under
//! `valgrind --tool=callgrind --toggle-collect='*authenticate_known*'` and divide by the number of known tokens, as `scripts/token-cost` does.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark reads the clock, needs its key and prints"
)]

use std::hint::black_box;
use std::path::Path;
use std::time::{Instant, SystemTime};

use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use toolcrib::config::Config;
use toolcrib::util::encoding::to_base64_url;
use toolcrib_serve::{ActiveCallers, Callers};

const NEW_TOKENS: u32 = 2_000;
/// Tokens that are measured together.
const BATCH: u32 = 20;
const KNOWN_BATCH: u32 = 1_000;
const KNOWN_BATCHES: u32 = 100;
const BASE_URL: &str = "https://tools.example";

fn encode(bytes: &[u8]) -> String {
    to_base64_url(bytes).trim_end_matches('=').to_owned()
}

fn sign(pair: &EcdsaKeyPair, number: u32) -> String {
    let expires = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs() + 3600;
    let groups: Vec<String> = (0..10).map(|group| format!("group-{group}")).collect();
    let claims = json!({
        "iss": "https://login.example", "aud": format!("{BASE_URL}/mcp"), "sub": "ada", "exp": expires, "iat": expires - 3600,
        "jti": number, "scope": "openid email profile:work", "groups": groups, "client_id": "a-client", "name": "Ada Lovelace",
    });
    let header = encode(br#"{"alg":"ES256","kid":"k","typ":"at+jwt"}"#);
    let message = format!("{header}.{}", encode(claims.to_string().as_bytes()));
    let signature = pair.sign(&SystemRandom::new(), message.as_bytes()).expect("a signature");
    format!("{message}.{}", encode(signature.as_ref()))
}

fn authenticate(runtime: &Runtime, callers: &ActiveCallers, token: &str) {
    let found = runtime.block_on(callers.authenticate_issued(black_box(token), BASE_URL, "/mcp"));
    assert!(found.is_some_and(|found| found.is_ok()), "the token is not accepted");
}

#[inline(never)]
fn authenticate_known(runtime: &Runtime, callers: &ActiveCallers, token: &str) {
    for _ in 0..KNOWN_BATCH {
        authenticate(runtime, callers, token);
    }
}

fn main() {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random)
        .expect("a key");
    let point = pair.public_key().as_ref();
    let key = json!({"kty": "EC", "crv": "P-256", "kid": "k", "x": encode(&point[1..33]), "y": encode(&point[33..])});
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("keys.json");
    std::fs::write(&file, json!({"keys": [key]}).to_string()).expect("a file");
    let text = format!(
        "[issuers.corp]\nissuer = 'https://login.example'\njwks = '{}'\n[groups.group-1]\n",
        file.display()
    );
    let config = Config::parse(Path::new("/x/config.toml"), &text);
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let guard = runtime.enter();
    let callers = ActiveCallers::new(Callers::none().with_issuers(&config));
    drop(guard);
    let tokens: Vec<String> = (0..NEW_TOKENS).map(|number| sign(&pair, number)).collect();
    let new_times = tokens.chunks(BATCH as usize).map(|batch| {
        let started = Instant::now();
        for token in batch {
            authenticate(&runtime, &callers, token);
        }
        started.elapsed() / BATCH
    });
    println!("new token of {} bytes: {:?}", tokens[0].len(), new_times.min().unwrap_or_default());
    let known_times = (0..KNOWN_BATCHES).map(|_| {
        let started = Instant::now();
        authenticate_known(&runtime, &callers, &tokens[0]);
        started.elapsed() / KNOWN_BATCH
    });
    let fastest = known_times.min().unwrap_or_default();
    println!("known token: {fastest:?}, {} times", KNOWN_BATCHES * KNOWN_BATCH);
}
