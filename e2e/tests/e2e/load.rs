//! Many at a time: lists, starts, calls at one server, and clients of whom one asks for far more than the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use e2e::chaos::callers::{Caller, End};
use e2e::chaos::{Ground, books::Done};
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{Gateway, Home};
use test_support::{http, starts, wait_until};
use tokio::task::JoinSet;
use toolcrib::ErrorKind;

fn ground(servers: usize, more: &str) -> Ground {
    let ground = Ground::new(env!("CARGO_BIN_EXE_crib"), env!("CARGO_BIN_EXE_fake-server"), servers);
    let config = ground.config(&std::collections::BTreeMap::new());
    ground.home.write_config(&format!("{config}{more}"));
    ground
}

fn status(address: SocketAddr) -> Vec<Value> {
    let answer = http::request(address, "GET", "/api/v1/status", &[], b"").message();
    answer["servers"].as_array().cloned().unwrap_or_default()
}

fn states(gateway: &Gateway, state: &str) -> usize {
    status(gateway.address).iter().filter(|server| server["state"] == state).count()
}

#[test]
fn a_hundred_lists_at_once_ask_each_server_once() {
    let ground = ground(5, "");
    let gateway = ground.home.serve();
    let lists = |count: usize| {
        let address = gateway.address;
        let listing: Vec<_> = (0..count)
            .map(|_| {
                std::thread::spawn(move || HttpClient::new(address, "/mcp", Era::Stateless).tools().len())
            })
            .collect();
        listing.into_iter().map(|list| list.join().unwrap()).collect::<Vec<_>>()
    };
    let first = lists(100);
    assert!(first.iter().all(|count| *count == first[0] && *count > 0), "{first:?}");
    let Done { starts, lists: asked, .. } = ground.books.read();
    assert_eq!((starts, asked), (5, 5), "each was started and asked once");
    lists(100);
    assert_eq!(ground.books.read().lists, 5, "what is known is not asked again");
}

#[test]
fn many_servers_that_start_with_the_gateway_all_come_up_and_it_answers_meanwhile() {
    let ground = ground(40, "");
    let config = ground.config(&std::collections::BTreeMap::new());
    ground.home.write_config(&config.replacen(
        "[defaults.lifecycle]",
        "[defaults.lifecycle]\nstart = \"at-boot\"",
        1,
    ));
    let mut gateway = ground.home.serve();
    wait_until("all are ready", || states(&gateway, "ready") == 40);
    assert_eq!(ground.books.read().starts, 40);
    assert!(gateway.stop().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_very_many_calls_at_one_server_some_wait_and_the_others_are_refused_at_once() {
    let ground = ground(1, "[servers.s0.limits]\nin-flight = 2\ncall-timeout = \"20s\"\n");
    let gateway = ground.home.serve();
    let mut caller = Caller::new(gateway.address, Era::Stateless, 0, 1);
    assert!(caller.is_well(0).await);
    let mut calls = JoinSet::new();
    for token in 0..400 {
        let mut caller = Caller::new(gateway.address, Era::Stateless, token, 1);
        calls.spawn(async move { caller.stamp(0, &token.to_string(), "late").await.0 });
    }
    let ends = calls.join_all().await;
    let answered = ends.iter().filter(|end| **end == End::Answered).count();
    let refused = ends.iter().filter(|end| **end == End::Failed(ErrorKind::Overloaded)).count();
    assert_eq!(answered + refused, 400, "{ends:?}");
    assert!(answered >= 2 + 32 && refused > 0, "{answered} answered, {refused} refused");
    let done = ground.books.read();
    assert_eq!(done.tokens.len(), answered, "who was refused was not executed");
    assert!(caller.is_well(0).await);
}

#[test]
fn a_quiet_client_is_served_long_before_everything_that_a_noisy_one_asked_for() {
    const NOISY: usize = 30;
    let ground = ground(1, "[servers.s0.limits]\nin-flight = 2\ncall-timeout = \"20s\"\n");
    let gateway = ground.home.serve();
    let noisy = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let mut quiet = HttpClient::new(gateway.address, "/mcp", Era::Session);
    quiet.text("s0__echo", &json!({"text": "warm"}));
    let served = Arc::new(AtomicUsize::new(0));
    let noisy = Arc::new(noisy);
    let calls: Vec<_> = (0..NOISY)
        .map(|id| {
            let (noisy, served) = (noisy.clone(), served.clone());
            std::thread::spawn(move || {
                let params = json!({"name": "s0__sleep", "arguments": {"ms": 300}});
                let body =
                    json!({"jsonrpc": "2.0", "id": 100 + id, "method": "tools/call", "params": params});
                let answer = noisy.raw("tools/call", Some("s0__sleep"), &body.to_string());
                served.fetch_add(1, Ordering::SeqCst);
                answer.code()
            })
        })
        .collect();
    wait_until("the noisy one waits", || status(gateway.address)[0]["leases"] == NOISY);
    let before = served.load(Ordering::SeqCst);
    assert_eq!(quiet.text("s0__echo", &json!({"text": "me too"})), "me too");
    let meanwhile = served.load(Ordering::SeqCst) - before;
    assert!(meanwhile <= NOISY / 3, "{meanwhile} of {NOISY} came first");
    assert!(calls.into_iter().all(|call| call.join().unwrap().is_none()));
}

#[test]
fn a_server_that_dies_at_once_is_started_within_its_budget_and_then_left_alone() {
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), "");
    let count = home.file("starts");
    let args = ["--exit-at-start", "6", "--count-file", count.to_str().unwrap()];
    let server = test_support::gateway::server(env!("CARGO_BIN_EXE_fake-server"), "dying", &args);
    home.write_config(&format!(
        "{server}era = \"legacy\"\n[servers.dying.lifecycle]\nrestarts = {{ at-most = 5, within = \"5m\" }}\n\
         backoff = {{ first = \"5ms\", most = \"20ms\" }}\n"
    ));
    let gateway = home.serve();
    let address = gateway.address;
    let caller = || {
        let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
        let params = json!({"name": "dying__echo", "arguments": {"text": "well"}});
        let mut is_given_up = || client.request("tools/call", &params).code() == Some(-31013);
        wait_until("it is given up", &mut is_given_up);
        assert!((0..20).all(|_| is_given_up()));
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(caller))));
    assert_eq!(starts(&count), 1 + 5);
    assert_eq!(states(&gateway, "ejected"), 1);
    assert!(home.run(&["restart", "dying"]).status.success());
    let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
    assert_eq!(client.text("dying__echo", &json!({"text": "well"})), "well");
}
