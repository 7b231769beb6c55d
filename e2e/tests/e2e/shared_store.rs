//! Two gateways on one Valkey or Redis: shared limits, and what happens while the store is down.

#![expect(clippy::expect_used, reason = "tests panic on failure")]

use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home, server_config};
use test_support::http::{self, Stream};
use test_support::store_server::StoreServer;

fn home(store: &StoreServer) -> Home {
    let server = server_config(env!("CARGO_BIN_EXE_fake-server"), "fake", &[]);
    let store = format!("[store]\nurl = 'valkey://{}'\nkey = '{}'\n", store.address(), "k".repeat(32));
    let limits = "[policy.limits.\"fake.echo\"]\nquota = { calls = 2, per = '1h' }\n\
                  [policy.limits.\"fake.pid\"]\nquota = { calls = 9, per = '1h', on-store-failure = 'allow' }\n";
    Home::new(env!("CARGO_BIN_EXE_crib"), &format!("{server}{store}{limits}"))
}

fn client(gateway: &GatewayProcess) -> HttpClient {
    HttpClient::new(gateway.address, "/mcp", Era::Stateless)
}

/// Calls `echo`. Returns the code of the error, or null.
fn echo(client: &mut HttpClient) -> Value {
    let params = json!({"name": "fake__echo", "arguments": {"text": "x"}});
    client.request("tools/call", &params).message()["error"]["code"].clone()
}

fn store_state(gateway: &GatewayProcess) -> Value {
    http::request(gateway.address, "GET", "/api/v1/status", &[], b"").message()["store"]["state"].clone()
}

fn next_kind(events: &mut Stream) -> String {
    events.next_event().expect("the stream goes on")["kind"].as_str().expect("a kind").to_owned()
}

#[test]
fn gateways_share_limits_and_go_on_without_their_store() {
    let Some(mut store) = StoreServer::start(&[]) else { return };
    let homes = [home(&store), home(&store)];
    let gateways = [homes[0].serve(), homes[1].serve()];
    let mut first = client(&gateways[0]);
    let mut second = client(&gateways[1]);
    assert_eq!([echo(&mut first), echo(&mut second)], [Value::Null, Value::Null]);
    assert_eq!([echo(&mut first), echo(&mut second)], [-31011, -31011]);
    assert_eq!(store_state(&gateways[1]), "up");

    let query = "/api/v1/events?kind=store_down,store_up";
    let mut events = http::open(gateways[1].address, "GET", query, &[], b"");
    store.kill();
    assert_eq!(next_kind(&mut events), "store_down");
    assert_eq!(store_state(&gateways[1]), "down");
    assert_eq!(echo(&mut second), -31022, "its limit cannot be checked");
    second.text("fake__pid", &json!({}));
    let status = homes[1].run(&["status"]);
    assert!(String::from_utf8_lossy(&status.stderr).contains("has been down"), "{status:?}");
    let doctor = homes[1].run(&["doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("fail  store"), "{doctor:?}");

    store.restart();
    assert_eq!(next_kind(&mut events), "store_up");
    assert_eq!(echo(&mut second), Value::Null, "the new store has no usage");
}
