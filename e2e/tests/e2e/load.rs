//! Load: many concurrent lists, starts and calls, and fairness between clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use e2e::chaos::callers::{CallOutcome, Caller};
use e2e::chaos::{TestBed, execution_log::Executions};
use serde_json::{Value, json};
use test_support::client::{Era, HttpClient};
use test_support::gateway::{GatewayProcess, Home};
use test_support::{count_starts, http, wait_until};
use tokio::task::JoinSet;
use toolcrib::ErrorKind;

fn test_bed(servers: usize, more: &str) -> TestBed {
    let bed = TestBed::new(env!("CARGO_BIN_EXE_crib"), env!("CARGO_BIN_EXE_fake-server"), servers);
    let config = bed.config(&std::collections::BTreeMap::new());
    // Lists wait for servers on a slow machine.
    let config = config.replacen("[limits]\n", "[limits]\nlisting-wait = \"20s\"\n", 1);
    bed.home.write_config(&format!("{config}{more}"));
    bed
}

fn status(address: SocketAddr) -> Vec<Value> {
    let answer = http::request(address, "GET", "/api/v1/status", &[], b"").message();
    answer["servers"].as_array().cloned().unwrap_or_default()
}

fn count_in_state(gateway: &GatewayProcess, state: &str) -> usize {
    status(gateway.address).iter().filter(|server| server["state"] == state).count()
}

#[test]
fn concurrent_lists_share_requests_to_servers() {
    let bed = test_bed(5, "");
    let gateway = bed.home.serve();
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
    let Executions { starts, lists: listed, .. } = bed.executions.read();
    assert_eq!(starts, 5, "each server was started once");
    // Servers whose lists have a TTL of zero are asked again, for many clients at a time.
    assert!((5..100).contains(&listed), "{listed} lists of 5 servers for 100 clients");
}

/// Whether connections move depends on the machine; each call gets its own answer in any case.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_several_threads_all_get_their_answers() {
    let bed = test_bed(3, "");
    let mut gateway = bed.home.serve_with(|command| {
        command.env("TOOLCRIB_THREADS", "3");
    });
    let mut calls = JoinSet::new();
    for number in 0..96 {
        let era = if number % 2 == 0 { Era::Stateless } else { Era::Session };
        let mut caller = Caller::new(gateway.address, era, number, 3);
        calls.spawn(async move {
            for call in 0..20 {
                assert!(caller.is_answering(call % 3).await, "caller {number}, call {call}");
            }
        });
    }
    while let Some(done) = calls.join_next().await {
        done.unwrap();
    }
    let starts = bed.executions.read().starts;
    assert!((3..=6).contains(&starts), "each of 3 servers was started once per era: {starts}");
    assert!(gateway.stop().success());
}

#[test]
fn servers_started_at_boot_all_become_ready() {
    let bed = test_bed(40, "");
    let config = bed.config(&std::collections::BTreeMap::new());
    bed.home.write_config(&config.replacen(
        "[defaults.lifecycle]",
        "[defaults.lifecycle]\nstart = \"at-boot\"",
        1,
    ));
    let mut gateway = bed.home.serve();
    wait_until("all are ready", || count_in_state(&gateway, "ready") == 40);
    assert_eq!(bed.executions.read().starts, 40);
    assert!(gateway.stop().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_the_queue_are_refused_as_overloaded() {
    let bed = test_bed(1, "[servers.s0.limits]\nin-flight = 2\ncall-timeout = \"20s\"\n");
    let gateway = bed.home.serve();
    let mut caller = Caller::new(gateway.address, Era::Stateless, 0, 1);
    assert!(caller.is_answering(0).await);
    let mut calls = JoinSet::new();
    for token in 0..400 {
        let mut caller = Caller::new(gateway.address, Era::Stateless, token, 1);
        calls.spawn(async move { caller.record(0, &token.to_string(), "late").await.0 });
    }
    let outcomes = calls.join_all().await;
    let answered = outcomes.iter().filter(|outcome| **outcome == CallOutcome::Answered).count();
    let refused =
        outcomes.iter().filter(|outcome| **outcome == CallOutcome::Failed(ErrorKind::Overloaded)).count();
    assert_eq!(answered + refused, 400, "{outcomes:?}");
    assert!(answered >= 2 + 32 && refused > 0, "{answered} answered, {refused} refused");
    let executed = bed.executions.read();
    assert_eq!(executed.tokens.len(), answered, "refused calls are not executed");
    assert!(caller.is_answering(0).await);
}

#[test]
fn client_with_one_call_is_served_before_a_client_with_many() {
    const BUSY_CALLS: usize = 30;
    let bed = test_bed(1, "[servers.s0.limits]\nin-flight = 2\ncall-timeout = \"20s\"\n");
    let gateway = bed.home.serve();
    let busy = HttpClient::new(gateway.address, "/mcp", Era::Session);
    let mut quiet = HttpClient::new(gateway.address, "/mcp", Era::Session);
    quiet.text("s0__echo", &json!({"text": "warm"}));
    let served = Arc::new(AtomicUsize::new(0));
    let busy = Arc::new(busy);
    let calls: Vec<_> = (0..BUSY_CALLS)
        .map(|id| {
            let busy = busy.clone();
            let served = served.clone();
            std::thread::spawn(move || {
                let params = json!({"name": "s0__sleep", "arguments": {"ms": 300}});
                let body =
                    json!({"jsonrpc": "2.0", "id": 100 + id, "method": "tools/call", "params": params});
                let answer = busy.post_raw("tools/call", Some("s0__sleep"), &body.to_string());
                served.fetch_add(1, Ordering::SeqCst);
                answer.code()
            })
        })
        .collect();
    wait_until("all calls wait", || status(gateway.address)[0]["leases"] == BUSY_CALLS);
    let before = served.load(Ordering::SeqCst);
    assert_eq!(quiet.text("s0__echo", &json!({"text": "hello"})), "hello");
    let meanwhile = served.load(Ordering::SeqCst) - before;
    assert!(meanwhile <= BUSY_CALLS / 3, "{meanwhile} of {BUSY_CALLS} were served first");
    assert!(calls.into_iter().all(|call| call.join().unwrap().is_none()));
}

#[test]
fn server_that_exits_at_start_is_ejected_after_its_budget() {
    let home = Home::new(env!("CARGO_BIN_EXE_crib"), "");
    let count = home.file("starts");
    let args = ["--exit-at-start", "6", "--count-file", count.to_str().unwrap()];
    let server = test_support::gateway::server_config(env!("CARGO_BIN_EXE_fake-server"), "failing", &args);
    home.write_config(&format!(
        "{server}era = \"legacy\"\n[servers.failing.lifecycle]\nrestarts = {{ at-most = 5, within = \"5m\" }}\n\
         backoff = {{ first = \"5ms\", most = \"20ms\" }}\n"
    ));
    let gateway = home.serve();
    let address = gateway.address;
    let caller = || {
        let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
        let params = json!({"name": "failing__echo", "arguments": {"text": "well"}});
        let mut is_ejected = || client.request("tools/call", &params).code() == Some(-31013);
        wait_until("it is ejected", &mut is_ejected);
        assert!((0..20).all(|_| is_ejected()));
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(caller))));
    assert_eq!(count_starts(&count), 1 + 5);
    assert_eq!(count_in_state(&gateway, "ejected"), 1);
    assert!(home.run(&["restart", "failing"]).status.success());
    let mut client = HttpClient::new(address, "/mcp", Era::Stateless);
    assert_eq!(client.text("failing__echo", &json!({"text": "well"})), "well");
}
