//! Servers that are not shared: an instance for each key, made, counted, capped, stopped and forgotten.

use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::advance;
use toolcrib::event::News;
use toolcrib::wire::dialect::party::Abilities;
use toolcrib::wire::message::Answer;
use toolcrib::wire::revision::Era;
use toolcrib::{
    Call, Caller, Client, Crib, ErrorKind, Guest, KeepAlive, Kind, Lifecycle, Limits, Project, ServerSpec,
    Sharing, SharingKey, StateName, Told,
};

use crate::fake::{Boot, Fake};
use crate::house::{SECOND, breath, id, on, roster, spawn, spec, status, with};

const MINUTE: Duration = Duration::from_secs(60);

pub(crate) fn shared(fake: &Fake, sharing: Sharing) -> ServerSpec {
    let lifecycle = Lifecycle { keep_alive: KeepAlive::For(MINUTE), ..Lifecycle::default() };
    spec("s", fake).sharing(sharing).lifecycle(lifecycle)
}

pub(crate) fn crib(fake: &Fake, sharing: Sharing) -> Crib {
    Crib::builder().server(shared(fake, sharing)).build().unwrap()
}

fn capped(fake: &Fake, instances: usize) -> Crib {
    let limits = Limits { instances: NonZero::new(instances).unwrap(), ..Limits::default() };
    Crib::builder().server(shared(fake, Sharing::PerClient).limits(limits)).build().unwrap()
}

pub(crate) fn client(key: u64, era: Era, abilities: &'static str) -> Client {
    Client { key, era, abilities: Abilities::read(&abilities.as_bytes().into()), log: None }
}

pub(crate) fn of(key: u64, tool: &str) -> Call {
    on("s", tool).of(client(key, Era::Session, "{}"))
}

fn running(crib: &Crib) -> usize {
    let running = |state| matches!(state, StateName::Ready);
    status(crib, "s").instances.iter().filter(|instance| running(instance.status.state)).count()
}

fn counted(crib: &Crib) -> usize {
    status(crib, "s").instances.len()
}

#[tokio::test(start_paused = true)]
async fn two_clients_have_two_instances_and_keep_them() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerClient);
    for _ in 0..3 {
        for key in [1, 2] {
            crib.call(of(key, "echo")).await.unwrap();
        }
    }
    assert_eq!((fake.starts(), running(&crib)), (2, 2));
    let seen = status(&crib, "s");
    assert_eq!(
        (seen.state, seen.pid, seen.calls, seen.sharing),
        (StateName::Ready, None, 6, Sharing::PerClient)
    );
    let mut keys: Vec<String> = seen.instances.iter().map(|instance| instance.key.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["client 1", "client 2"]);
}

#[tokio::test(start_paused = true)]
async fn a_shared_server_is_one_process_for_everybody() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::Shared);
    for key in 0..20 {
        crib.call(of(key, "echo").by(Caller::named(&key.to_string()))).await.unwrap();
    }
    assert_eq!((fake.starts(), counted(&crib)), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn first_calls_of_one_client_start_one_instance() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerClient);
    let mut calls = JoinSet::new();
    for n in 0..40 {
        spawn(&mut calls, &crib, of(n % 2, "echo"));
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert_eq!(fake.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn callers_and_projects_have_instances_of_their_own() {
    let fake = Fake::new();
    let callers = crib(&fake, Sharing::PerCaller);
    for (key, caller) in [(1, "a"), (2, "a"), (3, "b")] {
        callers.call(of(key, "echo").by(Caller::named(caller))).await.unwrap();
    }
    assert_eq!(fake.starts(), 2);
    let fake = Fake::new();
    let projects = crib(&fake, Sharing::PerProject);
    let at = |folder| Arc::new(Guest::default().working_in(Project::of([folder])));
    for (key, folder) in [(1, "/a"), (2, "file:///a/"), (3, "/b")] {
        projects.call(of(key, "echo").from_guest(at(folder))).await.unwrap();
    }
    // Whoever does not say where it works shares with nobody.
    projects.call(of(4, "echo")).await.unwrap();
    projects.call(of(5, "echo")).await.unwrap();
    assert_eq!((fake.starts(), running(&projects)), (4, 4));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_can_be_asked_is_asked_once_where_it_works() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerProject);
    let guest = Arc::new(Guest::default());
    let (sink, mut told) = mpsc::channel(8);
    let call = |key, guest: &Arc<Guest>, sink: &mpsc::Sender<Told>| {
        on("s", "echo")
            .of(client(key, Era::Session, r#"{"roots":{}}"#))
            .from_guest(guest.clone())
            .listen(Arc::new(sink.clone()))
    };
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asking = asked.clone();
    let mut answering = JoinSet::new();
    answering.spawn(async move {
        while let Some(Told::Asked(ask)) = told.recv().await {
            assert_eq!(ask.method, "roots/list");
            asking.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            ask.answer(Answer::Result(r#"{"roots":[{"uri":"file:///no/such/place"}]}"#.into()));
        }
    });
    for _ in 0..3 {
        crib.call(call(1, &guest, &sink)).await.unwrap();
    }
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 1);
    let other = Arc::new(Guest::default());
    crib.call(call(2, &other, &sink)).await.unwrap();
    assert_eq!((fake.starts(), counted(&crib)), (1, 1));
    assert_eq!(status(&crib, "s").instances[0].key.to_string(), "project /no/such/place");
    // Somebody who says that it has moved is asked again.
    crib.client_moved(1, &guest);
    crib.call(call(1, &guest, &sink)).await.unwrap();
    assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 3);
    answering.abort_all();
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_has_gone_to_sleep_is_forgotten() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerClient);
    crib.call(of(1, "echo")).await.unwrap();
    breath().await;
    advance(MINUTE / 2).await;
    crib.call(of(2, "echo")).await.unwrap();
    breath().await;
    advance(MINUTE / 2 + SECOND).await;
    breath().await;
    assert_eq!((counted(&crib), fake.living().0), (1, 1));
    advance(MINUTE).await;
    breath().await;
    let seen = status(&crib, "s");
    assert_eq!((counted(&crib), fake.living().0, seen.state, seen.calls), (0, 0, StateName::Asleep, 2));
    crib.call(of(1, "echo")).await.unwrap();
    assert_eq!(fake.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_instance_that_was_idle_longest_makes_room() {
    let fake = Fake::new();
    let crib = capped(&fake, 2);
    for key in [1, 2, 1, 3] {
        crib.call(of(key, "echo")).await.unwrap();
        breath().await;
        advance(SECOND).await;
    }
    let mut keys: Vec<String> =
        status(&crib, "s").instances.iter().map(|instance| instance.key.to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["client 1", "client 3"]);
    assert_eq!(fake.living(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn where_all_are_busy_there_is_no_room_and_the_error_says_so() {
    let fake = Fake::new();
    let crib = capped(&fake, 2);
    let mut calls = JoinSet::new();
    for key in [1, 2] {
        spawn(&mut calls, &crib, of(key, "hold"));
    }
    breath().await;
    let error = crib.call(of(3, "echo")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OverQuota);
    assert_eq!(error.to_string(), "`s` has 2 instances, and all of them are busy");
    assert!(error.advice().contains("servers.s.limits.instances"), "{}", error.advice());
    fake.open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    breath().await;
    crib.call(of(3, "echo")).await.unwrap();
    assert_eq!(fake.living(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_starting_is_not_idle() {
    let fake = Fake::new().usually(Boot::Late(5 * SECOND));
    let crib = capped(&fake, 1);
    crib.list().await;
    breath().await;
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, of(1, "echo"));
    breath().await;
    assert_eq!(crib.call(of(2, "echo")).await.unwrap_err().kind(), ErrorKind::OverQuota);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn instances_end_with_the_client_they_are_for() {
    let fake = Fake::new();
    let lifecycle = Lifecycle { keep_alive: KeepAlive::Forever, ..Lifecycle::default() };
    let spec = shared(&fake, Sharing::PerClient).lifecycle(lifecycle);
    let crib = Crib::builder().server(spec).build().unwrap();
    for key in [1, 2] {
        crib.call(of(key, "echo")).await.unwrap();
    }
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, of(1, "hold"));
    breath().await;
    crib.part_with(1);
    breath().await;
    // What it works on is finished first.
    assert_eq!((counted(&crib), fake.living().0), (1, 2));
    fake.open(true);
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    breath().await;
    assert_eq!((counted(&crib), fake.living().0), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn stop_and_restart_are_for_all_instances() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerClient);
    for key in [1, 2, 3] {
        crib.call(of(key, "echo")).await.unwrap();
    }
    crib.restart(&id("s")).await.unwrap();
    assert_eq!((fake.starts(), fake.living().0, running(&crib)), (6, 3, 3));
    crib.stop(&id("s")).await.unwrap();
    assert_eq!(fake.living().0, 0);
    breath().await;
    assert_eq!((counted(&crib), status(&crib, "s").state), (0, StateName::Asleep));
    crib.call(of(1, "echo")).await.unwrap();
    assert_eq!(fake.starts(), 7);
}

#[tokio::test(start_paused = true)]
async fn another_spec_drains_every_instance_and_loses_no_call() {
    let (old, new) = (Fake::new(), Fake::new());
    for sharing in [Sharing::PerClient, Sharing::Shared] {
        let crib = crib(&old, Sharing::PerClient);
        let mut calls = JoinSet::new();
        for key in [1, 2] {
            spawn(&mut calls, &crib, of(key, "hold"));
        }
        breath().await;
        let applying = crib.apply(roster([shared(&new, sharing)]));
        let (changes, ()) = tokio::join!(applying, async {
            breath().await;
            assert_eq!(old.living().0, 2);
            old.open(true);
        });
        assert_eq!(changes.changed, [id("s")]);
        assert!(calls.join_all().await.iter().all(Result::is_ok));
        crib.call(of(1, "echo")).await.unwrap();
        breath().await;
        assert_eq!((old.living().0, new.living().0), (0, 1));
        crib.shutdown(SECOND).await;
        old.open(false);
    }
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_leaves_no_instance() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerClient);
    for key in 1..=5 {
        crib.call(of(key, "echo")).await.unwrap();
    }
    let mut calls = JoinSet::new();
    spawn(&mut calls, &crib, of(1, "hang"));
    breath().await;
    crib.part_with(1);
    crib.shutdown(SECOND).await;
    assert_eq!(fake.living().0, 0);
    assert_eq!(calls.join_all().await.pop().unwrap().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn what_is_on_offer_is_known_without_anybodys_instance() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerClient);
    assert_eq!(crib.list().await.tools().len(), 9);
    breath().await;
    // It was started to be listed, and is of no more use.
    assert_eq!((fake.starts(), fake.living().0, counted(&crib)), (1, 0, 0));
    crib.call(Call::tool("s__echo").of(client(1, Era::Session, "{}"))).await.unwrap();
    assert_eq!(fake.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_change_is_told_by_each_instance_it_happens_to() {
    let fake = Fake::offering(&["say", "echo"]);
    let crib = crib(&fake, Sharing::PerClient);
    for key in [1, 2] {
        crib.call(of(key, "echo")).await.unwrap();
    }
    let page = r#"{"jsonrpc":"2.0","id":$ID,"result":{"tools":[{"name":"say"},{"name":"fresh"}]}}"#;
    let _fake = fake.script("tools/list", &[page, page]);
    let says = |key| {
        let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
        let lines = json!({ "lines": [changed, r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#] });
        with("s", "say", &lines).of(client(key, Era::Session, "{}"))
    };
    let (mut catalog, mut news) = (crib.watch_catalog(), crib.news());
    crib.call(says(1)).await.unwrap();
    catalog.wait_for(|catalog| catalog.tools().iter().any(|tool| &*tool.own_name == "fresh")).await.unwrap();
    // What the server is known for is that already, and yet the second client has to be told.
    crib.call(says(2)).await.unwrap();
    let News::Relisted { instance, lists, .. } = news.recv().await.unwrap() else { panic!("something else") };
    assert!(matches!(instance, SharingKey::Client { number: 2, .. }), "{instance:?}");
    assert_eq!(*lists, [Kind::Tools]);
}

#[tokio::test(start_paused = true)]
async fn a_server_is_told_what_its_one_client_can() {
    let fake = Fake::new();
    let crib = crib(&fake, Sharing::PerClient);
    let declared = [r#"{"roots":{"listChanged":true},"x":1.0}"#, "{}", r#"{"elicitation":{"url":{}}}"#];
    for (key, abilities) in (1..).zip(declared) {
        let era = if key == 2 { Era::Stateless } else { Era::Session };
        crib.call(on("s", "echo").of(client(key, era, abilities))).await.unwrap();
    }
    // A stateless client that says something else about itself is another one.
    crib.call(on("s", "echo").of(client(2, Era::Stateless, r#"{"sampling":{}}"#))).await.unwrap();
    let told: Vec<Value> =
        fake.heard("initialize").iter().map(|hello| hello["params"]["capabilities"].clone()).collect();
    let wanted: Vec<Value> = [declared[0], declared[1], declared[2], r#"{"sampling":{}}"#]
        .iter()
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    assert_eq!(told, wanted);
    crib.client_moved(1, &Guest::default());
    breath().await;
    assert_eq!(fake.heard("notifications/roots/list_changed").len(), 1);
}

#[test]
fn keys_are_shown_in_words() {
    let shown = |key: SharingKey| key.to_string();
    assert_eq!(shown(SharingKey::Client { number: 7, declared: "{}".into() }), "client 7");
    assert_eq!(shown(SharingKey::Project(Project::of(["/b", "/a"]).unwrap())), "project /a, /b");
    assert_eq!(shown(SharingKey::Caller(Caller::named("ci"))), "caller ci");
}
