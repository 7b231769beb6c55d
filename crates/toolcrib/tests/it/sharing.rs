//! Instances of servers that are not shared.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::advance;
use toolcrib::model::event::ServerNotification;
use toolcrib::protocol::era::capabilities::ClientCapabilities;
use toolcrib::protocol::jsonrpc::ResponsePayload;
use toolcrib::protocol::versions::Era;
use toolcrib::{
    Call, CallUpdate, Caller, Client, ClientContext, Crib, ErrorKind, InstanceKey, KeepAlive, Lifecycle,
    ListKind, Project, ServerLimits, ServerSpec, ServerState, Sharing,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, id, on, roster, settle, spawn, spec, status, with};

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn shared(fake: &FakeServer, sharing: Sharing) -> ServerSpec {
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(MINUTE), ..Lifecycle::default() };
    spec("s", fake).sharing(sharing).lifecycle(lifecycle)
}

pub(crate) fn crib(fake: &FakeServer, sharing: Sharing) -> Crib {
    Crib::builder().server(shared(fake, sharing)).build().unwrap()
}

fn capped(fake: &FakeServer, instances: usize) -> Crib {
    let limits = ServerLimits { instances: NonZero::new(instances).unwrap(), ..ServerLimits::default() };
    Crib::builder().server(shared(fake, Sharing::PerClient).limits(limits)).build().unwrap()
}

pub(crate) fn client(key: u64, era: Era, capabilities: &'static str) -> Client {
    Client {
        key,
        era,
        capabilities: ClientCapabilities::parse(&capabilities.as_bytes().into()),
        ..Client::without_capabilities()
    }
}

pub(crate) fn call_as(key: u64, tool: &str) -> Call {
    on("s", tool).client(client(key, Era::Session, "{}"))
}

fn running(crib: &Crib) -> usize {
    let running = |state| matches!(state, ServerState::Ready);
    status(crib, "s").instances.iter().filter(|instance| running(instance.status.state)).count()
}

fn instance_count(crib: &Crib) -> usize {
    status(crib, "s").instances.len()
}

#[tokio::test(start_paused = true)]
async fn clients_have_their_own_instances() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerClient);
    for _ in 0..3 {
        for key in [1, 2] {
            crib.call(call_as(key, "echo")).await.unwrap();
        }
    }
    assert_eq!((fake.starts(), running(&crib)), (2, 2));
    let seen = status(&crib, "s");
    assert_eq!(
        (seen.state, seen.pid, seen.calls, seen.sharing),
        (ServerState::Ready, None, 6, Sharing::PerClient)
    );
    let mut keys: Vec<String> = seen.instances.iter().map(|instance| instance.key.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["client 1", "client 2"]);
}

#[tokio::test(start_paused = true)]
async fn shared_server_has_one_process() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::Shared);
    for key in 0..20 {
        crib.call(call_as(key, "echo").caller(Caller::new(&key.to_string()))).await.unwrap();
    }
    assert_eq!((fake.starts(), instance_count(&crib)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn concurrent_first_calls_start_one_instance_per_client() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerClient);
    let mut calls = JoinSet::new();
    for n in 0..40 {
        spawn(&mut calls, &crib, call_as(n % 2, "echo"));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!(fake.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn callers_and_projects_have_their_own_instances() {
    let fake = FakeServer::new();
    let callers = crib(&fake, Sharing::PerCaller);
    for (key, caller) in [(1, "a"), (2, "a"), (3, "b")] {
        callers.call(call_as(key, "echo").caller(Caller::new(caller))).await.unwrap();
    }
    assert_eq!(fake.starts(), 2);
    let fake = FakeServer::new();
    let projects = crib(&fake, Sharing::PerProject);
    let at = |folder| Arc::new(ClientContext::default().project(Project::from_roots([folder])));
    for (key, folder) in [(1, "/a"), (2, "file:///a/"), (3, "/b")] {
        projects.call(call_as(key, "echo").client_context(at(folder))).await.unwrap();
    }
    // A client without a known project does not share.
    projects.call(call_as(4, "echo")).await.unwrap();
    projects.call(call_as(5, "echo")).await.unwrap();
    assert_eq!((fake.starts(), running(&projects)), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn client_is_asked_for_its_roots_once() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerProject);
    let context = Arc::new(ClientContext::default());
    let (sink, mut updates) = mpsc::channel(8);
    let call = |key, context: &Arc<ClientContext>, sink: &mpsc::Sender<CallUpdate>| {
        on("s", "echo")
            .client(client(key, Era::Session, r#"{"roots":{}}"#))
            .client_context(context.clone())
            .update_sink(Arc::new(sink.clone()))
    };
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asking = asked.clone();
    let mut answering = JoinSet::new();
    answering.spawn(async move {
        while let Some(CallUpdate::Request(ask)) = updates.recv().await {
            assert_eq!(ask.method, "roots/list");
            asking.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            ask.answer(ResponsePayload::Result(r#"{"roots":[{"uri":"file:///no/such/place"}]}"#.into()));
        }
    });
    for _ in 0..3 {
        crib.call(call(1, &context, &sink)).await.unwrap();
    }
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
    let other = Arc::new(ClientContext::default());
    crib.call(call(2, &other, &sink)).await.unwrap();
    assert_eq!((fake.starts(), instance_count(&crib)), (1, 1));
    assert_eq!(status(&crib, "s").instances[0].key.to_string(), "project /no/such/place");
    // A client whose roots changed is asked again.
    crib.roots_changed(1, &context);
    crib.call(call(1, &context, &sink)).await.unwrap();
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 3);
    answering.abort_all();
}

#[tokio::test(start_paused = true)]
async fn idle_instance_is_removed() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerClient);
    crib.call(call_as(1, "echo")).await.unwrap();
    settle().await;
    advance(MINUTE / 2).await;
    crib.call(call_as(2, "echo")).await.unwrap();
    settle().await;
    advance(MINUTE / 2 + SECOND).await;
    settle().await;
    assert_eq!((instance_count(&crib), fake.running_and_peak().0), (1, 1));
    advance(MINUTE).await;
    settle().await;
    let seen = status(&crib, "s");
    assert_eq!(
        (instance_count(&crib), fake.running_and_peak().0, seen.state, seen.calls),
        (0, 0, ServerState::Asleep, 2)
    );
    crib.call(call_as(1, "echo")).await.unwrap();
    assert_eq!(fake.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn longest_idle_instance_is_evicted() {
    let fake = FakeServer::new();
    let crib = capped(&fake, 2);
    for key in [1, 2, 1, 3] {
        crib.call(call_as(key, "echo")).await.unwrap();
        settle().await;
        advance(SECOND).await;
    }
    let mut keys: Vec<String> =
        status(&crib, "s").instances.iter().map(|instance| instance.key.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["client 1", "client 3"]);
    assert_eq!(fake.running_and_peak(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn call_fails_when_all_instances_are_busy() {
    let fake = FakeServer::new();
    let crib = capped(&fake, 2);
    let mut calls = JoinSet::new();
    for key in [1, 2] {
        spawn(&mut calls, &crib, call_as(key, "hold"));
    }
    settle().await;
    let error = crib.call(call_as(3, "echo")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverQuota);
    assert_eq!(error.to_string(), "all 2 instances of `s` are busy");
    assert!(error.hint().to_string().contains("servers.s.limits.instances"), "{}", error.hint());
    fake.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    settle().await;
    crib.call(call_as(3, "echo")).await.unwrap();
    assert_eq!(fake.running_and_peak(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn starting_instance_is_not_evicted() {
    let fake = FakeServer::new().default_start(FakeStart::SlowHandshake(5 * SECOND));
    let crib = capped(&fake, 1);
    crib.list().await;
    settle().await;
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, call_as(1, "echo"));
    settle().await;
    assert_eq!(crib.call(call_as(2, "echo")).await.unwrap_err().kind(), ErrorKind::OverQuota);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn instance_stops_when_its_client_disconnects() {
    let fake = FakeServer::new();
    let lifecycle = Lifecycle { keep_alive: KeepAlive::Forever, ..Lifecycle::default() };
    let spec = shared(&fake, Sharing::PerClient).lifecycle(lifecycle);
    let crib = Crib::builder().server(spec).build().unwrap();
    for key in [1, 2] {
        crib.call(call_as(key, "echo")).await.unwrap();
    }
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, call_as(1, "hold"));
    settle().await;
    crib.client_disconnected(1);
    settle().await;
    // Its calls are finished first.
    assert_eq!((instance_count(&crib), fake.running_and_peak().0), (1, 2));
    fake.set_hold_open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    settle().await;
    assert_eq!((instance_count(&crib), fake.running_and_peak().0), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn stop_and_restart_apply_to_all_instances() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerClient);
    for key in [1, 2, 3] {
        crib.call(call_as(key, "echo")).await.unwrap();
    }
    crib.restart(&id("s")).await.unwrap();
    assert_eq!((fake.starts(), fake.running_and_peak().0, running(&crib)), (6, 3, 3));
    crib.stop(&id("s")).await.unwrap();
    assert_eq!(fake.running_and_peak().0, 0);
    settle().await;
    assert_eq!((instance_count(&crib), status(&crib, "s").state), (0, ServerState::Asleep));
    crib.call(call_as(1, "echo")).await.unwrap();
    assert_eq!(fake.starts(), 7);
}

#[tokio::test(start_paused = true)]
async fn new_spec_drains_every_instance() {
    let old = FakeServer::new();
    let new = FakeServer::new();
    for sharing in [Sharing::PerClient, Sharing::Shared] {
        let crib = crib(&old, Sharing::PerClient);
        let mut calls = JoinSet::new();
        for key in [1, 2] {
            spawn(&mut calls, &crib, call_as(key, "hold"));
        }
        settle().await;
        let applying = crib.apply_roster(roster([shared(&new, sharing)]));
        let (changes, ()) = tokio::join!(applying, async {
            settle().await;
            assert_eq!(old.running_and_peak().0, 2);
            old.set_hold_open(true);
        });
        assert_eq!(changes.unwrap().changed, [id("s")]);
        assert!(calls.join_all().await.iter().all(Result::is_ok));
        crib.call(call_as(1, "echo")).await.unwrap();
        settle().await;
        assert_eq!((old.running_and_peak().0, new.running_and_peak().0), (0, 1));
        crib.shutdown(SECOND).await;
        old.set_hold_open(false);
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_stops_every_instance() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerClient);
    for key in 1..=5 {
        crib.call(call_as(key, "echo")).await.unwrap();
    }
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, call_as(1, "hang"));
    settle().await;
    crib.client_disconnected(1);
    crib.shutdown(SECOND).await;
    assert_eq!(fake.running_and_peak().0, 0);
    assert_eq!(calls.join_all().await.pop().unwrap().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn listing_uses_a_temporary_instance() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerClient);
    assert_eq!(crib.list().await.tools().len(), 9);
    settle().await;
    // The instance that was started for the listing is gone.
    assert_eq!((fake.starts(), fake.running_and_peak().0, instance_count(&crib)), (1, 0, 0));
    crib.call(Call::tool("s__echo").client(client(1, Era::Session, "{}"))).await.unwrap();
    assert_eq!(fake.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn each_instance_reports_its_own_list_change() {
    let fake = FakeServer::with_tools(&["say", "echo"]);
    let crib = crib(&fake, Sharing::PerClient);
    for key in [1, 2] {
        crib.call(call_as(key, "echo")).await.unwrap();
    }
    let page = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"say"},{"name":"fresh"}]}}"#;
    let _fake = fake.script("tools/list", &[page, page]);
    let says = |key| {
        let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        let lines = json!({ "lines": [changed, r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#] });
        with("s", "say", &lines).client(client(key, Era::Session, "{}"))
    };
    let mut catalog = crib.watch_catalog();
    let mut notifications = crib.notifications();
    crib.call(says(1)).await.unwrap();
    catalog.wait_for(|catalog| catalog.tools().iter().any(|tool| &*tool.own_name == "fresh")).await.unwrap();
    // The catalog has the change already, but the second client must still be notified.
    crib.call(says(2)).await.unwrap();
    let ServerNotification::ListChanged { instance, lists, .. } = notifications.recv().await.unwrap() else {
        panic!("another notification")
    };
    assert!(matches!(instance, InstanceKey::Client { number: 2, .. }), "{instance:?}");
    assert_eq!(*lists, [ListKind::Tools]);
}

#[tokio::test(start_paused = true)]
async fn server_gets_the_capabilities_of_its_client() {
    let fake = FakeServer::new();
    let crib = crib(&fake, Sharing::PerClient);
    let declared = [r#"{"roots":{"listChanged":true},"x":1.0}"#, "{}", r#"{"elicitation":{"url":{}}}"#];
    for (key, capabilities) in (1..).zip(declared) {
        let era = if key == 2 { Era::Stateless } else { Era::Session };
        crib.call(on("s", "echo").client(client(key, era, capabilities))).await.unwrap();
    }
    // A stateless client with other capabilities gets another instance.
    crib.call(on("s", "echo").client(client(2, Era::Stateless, r#"{"sampling":{}}"#))).await.unwrap();
    let received: Vec<Value> =
        fake.received("initialize").iter().map(|request| request["params"]["capabilities"].clone()).collect();
    let expected: Vec<Value> = [declared[0], declared[1], declared[2], r#"{"sampling":{}}"#]
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    assert_eq!(received, expected);
    crib.roots_changed(1, &ClientContext::default());
    settle().await;
    assert_eq!(fake.received("notifications/roots/list_changed").len(), 1);
}

#[test]
fn instance_keys_have_a_readable_form() {
    let shown = |key: InstanceKey| key.to_string();
    assert_eq!(shown(InstanceKey::Client { number: 7, capabilities: "{}".into() }), "client 7");
    let project = Project::from_roots(["/b", "/a"]).unwrap();
    let key = |caller| InstanceKey::Project { caller, project: project.clone() };
    assert_eq!(shown(key(Caller::local())), "project /a, /b");
    assert_eq!(shown(key(Caller::new("ci"))), "project /a, /b of ci");
    assert_eq!(shown(InstanceKey::Caller(Caller::new("ci"))), "caller ci");
}
