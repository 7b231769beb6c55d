//! A change of the servers is in force everywhere once its future was polled, also if that is dropped then.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use toolcrib::{Call, Caller, Crib, ErrorKind, Policy, Rules, SchemaFormat, Settings};

use crate::fake::FakeServer;
use crate::support::{crib, id, kind, names, roster, spec};

/// Polls a future once and drops it.
fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// A change of the servers, made by one poll.
type Change = fn(&Crib, &FakeServer);

const ADDITIONS: [(&str, Change); 4] = [
    ("add", |crib, fake| drop(poll_once(crib.add(spec("time", fake))))),
    ("replace", |crib, fake| drop(poll_once(crib.replace(spec("time", fake))))),
    ("apply_roster", |crib, fake| {
        let servers = roster([spec("git", &FakeServer::with_tools(&["log"])), spec("time", fake)]);
        drop(poll_once(crib.apply_roster(servers)));
    }),
    ("apply", |crib, fake| {
        let settings = Settings::new(roster([spec("time", fake)]));
        let rules = Rules::default().denying(["time.hold".parse().unwrap()]);
        drop(poll_once(crib.apply(settings.policy(Policy::for_everyone(rules)))));
    }),
];

/// A crib with one listed server.
async fn listed_crib() -> Crib {
    let crib = crib(&[("git", &FakeServer::with_tools(&["log"]))]);
    assert_eq!(names(&crib.list().await), ["git__log"]);
    crib
}

fn time_server() -> FakeServer {
    FakeServer::with_tools(&["now", "hold"])
}

#[tokio::test(start_paused = true)]
async fn added_server_is_called_after_one_poll() {
    for (name, change) in ADDITIONS {
        let crib = listed_crib().await;
        change(&crib, &time_server());
        crib.call(Call::tool("time__now")).await.expect(name);
        let other = listed_crib().await;
        change(&other, &time_server());
        other.call(Call::tool("now")).await.expect(name);
    }
}

#[tokio::test(start_paused = true)]
async fn added_server_is_listed_after_one_poll() {
    for (name, change) in ADDITIONS {
        let crib = listed_crib().await;
        change(&crib, &time_server());
        assert!(names(&crib.list().await).contains(&"time__now".to_owned()), "{name}");
        let crib = listed_crib().await;
        change(&crib, &time_server());
        let catalog = crib.list_server(&id("time")).await.expect(name);
        assert!(names(&catalog).contains(&"time__now".to_owned()), "{name}");
        let crib = listed_crib().await;
        change(&crib, &time_server());
        let schemas = crib.schemas(SchemaFormat::OpenAi, &Caller::local()).await;
        assert!(schemas.iter().any(|schema| schema.to_string().contains("time__now")), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn added_server_is_discovered_after_one_poll() {
    for (name, change) in ADDITIONS {
        let crib = listed_crib().await;
        change(&crib, &time_server());
        let found = crib.discover().await;
        let time = found.iter().find(|found| found.server == id("time")).expect(name);
        let tools = time.tools.as_ref().expect(name);
        assert_eq!(tools.first().map(|tool| &*tool.own_name), Some("now"), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn rules_are_in_force_together_with_the_servers() {
    let crib = listed_crib().await;
    let (_, apply) = ADDITIONS[3];
    apply(&crib, &time_server());
    assert_eq!(names(&crib.list().await), ["time__now"]);
    assert_eq!(kind(crib.call(Call::tool("time__hold")).await), ErrorKind::Denied);
}

#[tokio::test(start_paused = true)]
async fn removed_server_is_gone_after_one_poll() {
    type Removal = (&'static str, fn(&Crib));
    let removals: [Removal; 2] = [
        ("remove", |crib| drop(poll_once(crib.remove(&id("git"))))),
        ("apply", |crib| drop(poll_once(crib.apply(Settings::new(roster([])))))),
    ];
    for (name, remove) in removals {
        let crib = listed_crib().await;
        remove(&crib);
        assert!(crib.catalog().tools().is_empty(), "{name}");
        assert_eq!(kind(crib.call(Call::tool("git__log")).await), ErrorKind::Unknown, "{name}");
        assert_eq!(names(&crib.list().await), [""; 0], "{name}");
        assert_eq!(crib.schemas(SchemaFormat::OpenAi, &Caller::local()).await.len(), 0, "{name}");
        assert_eq!(crib.discover().await.len(), 0, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn replaced_server_shows_its_new_names_after_one_poll() {
    let crib = listed_crib().await;
    let mut renamed = crib.spec(&id("git")).unwrap();
    renamed.tools.rename.insert("log".to_owned(), "history".to_owned());
    drop(poll_once(crib.replace(renamed)));
    assert_eq!(names(&crib.catalog()), ["git__history"]);
    crib.call(Call::tool("git__history")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn watchers_see_every_change_in_order() {
    let crib = listed_crib().await;
    let mut catalog = crib.watch_catalog();
    let mut revision = catalog.borrow_and_update().revision();
    for number in 0..20 {
        let name = format!("s{number}");
        drop(poll_once(crib.add(spec(&name, &time_server()))));
        assert!(catalog.has_changed().unwrap(), "{number}");
        let current = catalog.borrow_and_update().revision();
        assert!(current > revision, "{number}");
        revision = current;
        drop(poll_once(crib.remove(&id(&name))));
        tokio::task::yield_now().await;
    }
    assert_eq!(names(&crib.list().await), ["git__log"]);
}
