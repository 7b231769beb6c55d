//! Resources that change: who wants to hear of them does, in both eras, through crashes, and nobody else is bothered.

use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;
use toolcrib::spec::BreakerSpec;
use toolcrib::{Call, Crib, ErrorKind, Lifecycle, Limits, News, ServerSpec, StateName, Subscription, Wanted};

use crate::house::{SECOND, breath, id, status};
use crate::telling::Telling;

fn crib_of(server: &Telling) -> Crib {
    Crib::builder().server(ServerSpec::in_process(id("t"), server.clone())).build().unwrap()
}

fn one() -> Wanted {
    Wanted::On(id("t"), "x:one".into())
}

/// The next news about what is subscribed to.
async fn told(news: &mut Receiver<News>, subscription: &Subscription) -> bool {
    timeout(60 * SECOND, async { while !subscription.concerns(&news.recv().await.unwrap()) {} }).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn a_subscriber_hears_of_changes_until_it_leaves() {
    for stateless in [false, true] {
        let server = Telling::new(stateless);
        let crib = crib_of(&server);
        let mut news = crib.news();
        let first = crib.subscribe(&one()).await.unwrap();
        let second = crib.subscribe(&one()).await.unwrap();
        assert_eq!(first.uri(), "x:one");
        server.change();
        assert!(told(&mut news, &first).await, "stateless: {stateless}");
        drop(first);
        breath().await;
        server.change();
        assert!(told(&mut news, &second).await, "stateless: {stateless}");
        drop(second);
        breath().await;
        server.change();
        breath().await;
        assert!(news.try_recv().is_err(), "stateless: {stateless}");
        let asked = if stateless { 0 } else { 1 };
        assert_eq!(server.heard_of("resources/subscribe").len(), asked);
        assert_eq!(server.heard_of("resources/unsubscribe").len(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn a_subscription_outlives_a_crash_and_tells_that_something_may_have_changed() {
    for stateless in [false, true] {
        let server = Telling::new(stateless);
        let crib = crib_of(&server);
        let mut news = crib.news();
        let subscription = crib.subscribe(&one()).await.unwrap();
        server.kill();
        assert!(told(&mut news, &subscription).await, "stateless: {stateless}");
        assert_eq!(status(&crib, "t").generation, 2);
        server.change();
        assert!(told(&mut news, &subscription).await, "stateless: {stateless}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_server_does_not_let_one_subscribe_to_is_its_own_error() {
    let server = Telling::new(false);
    let crib = crib_of(&server);
    let error = crib.subscribe(&Wanted::On(id("t"), "x:two".into())).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unknown, "no such thing"));
}

#[tokio::test(start_paused = true)]
async fn a_subscribed_server_stays_awake_and_a_reload_does_not_wait_for_it() {
    let server = Telling::new(false);
    let crib = crib_of(&server);
    let subscription = crib.subscribe(&one()).await.unwrap();
    tokio::time::advance(3600 * SECOND).await;
    breath().await;
    assert_eq!(status(&crib, "t").generation, 1);
    let before = tokio::time::Instant::now();
    let changed = ServerSpec::in_process(id("t"), server.clone());
    crib.apply(crate::house::roster([changed])).await;
    let mut news = crib.news();
    server.change();
    assert!(told(&mut news, &subscription).await);
    assert!(before.elapsed() < 5 * SECOND, "{:?}", before.elapsed());
    crib.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_stateless_server_is_listened_to_from_the_beginning() {
    let server = Telling::new(true);
    let crib = crib_of(&server);
    crib.list().await;
    breath().await;
    let listening = server.heard_of("subscriptions/listen");
    assert_eq!(listening[0]["params"]["notifications"], json!({"resourcesListChanged": true}));
    assert_eq!(status(&crib, "t").in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_stopped_is_not_woken_by_a_subscription() {
    let server = Telling::new(false);
    let crib = crib_of(&server);
    let mut news = crib.news();
    let subscription = crib.subscribe(&one()).await.unwrap();
    crib.stop(&id("t")).await.unwrap();
    tokio::time::advance(600 * SECOND).await;
    breath().await;
    assert_eq!(status(&crib, "t").state, StateName::Asleep);
    // Whoever wakes it wakes the subscription too.
    crib.restart(&id("t")).await.unwrap();
    assert!(told(&mut news, &subscription).await);
    server.change();
    assert!(told(&mut news, &subscription).await);
}

#[tokio::test(start_paused = true)]
async fn a_subscription_to_a_tripped_server_does_not_keep_others_from_it() {
    let server = Telling::new(false);
    let lifecycle = Lifecycle {
        breaker: BreakerSpec { failures: std::num::NonZero::<u32>::MIN, cool_off: SECOND },
        ..Lifecycle::default()
    };
    let limits = Limits { call_timeout: SECOND, ..Limits::default() };
    let spec = ServerSpec::in_process(id("t"), server.clone()).lifecycle(lifecycle).limits(limits);
    let crib = Crib::builder().server(spec).build().unwrap();
    let hangs = Call::request("hang", Wanted::On(id("t"), "hang".into()), Default::default());
    assert_eq!(crib.call(hangs).await.unwrap_err().kind(), ErrorKind::TimedOut);
    breath().await;
    assert_eq!(status(&crib, "t").state, StateName::Tripped);
    tokio::time::advance(2 * SECOND).await;
    let _subscription = crib.subscribe(&one()).await.unwrap();
    let reads = Call::request("resources/read", one(), Default::default());
    crib.call(reads).await.unwrap();
}
