//! Resource subscriptions in both eras, also across crashes.

use serde_json::json;
use tokio::sync::broadcast::Receiver;
use tokio::time::timeout;
use toolcrib::spec::BreakerSpec;
use toolcrib::{
    Call, Crib, ErrorKind, Lifecycle, Selector, ServerLimits, ServerNotification, ServerSpec, ServerState,
    Subscription,
};

use crate::notifying_server::NotifyingServer;
use crate::support::{SECOND, id, settle, status};

fn crib_of(server: &NotifyingServer) -> Crib {
    Crib::builder().server(ServerSpec::in_process(id("t"), server.clone())).build().unwrap()
}

fn one() -> Selector {
    Selector::OnServer(id("t"), "x:one".into())
}

/// Returns whether a notification for the subscription arrives.
async fn is_notified(notifications: &mut Receiver<ServerNotification>, subscription: &Subscription) -> bool {
    timeout(60 * SECOND, async { while !subscription.matches(&notifications.recv().await.unwrap()) {} })
        .await
        .is_ok()
}

#[tokio::test(start_paused = true)]
async fn subscriber_is_notified_until_dropped() {
    for stateless in [false, true] {
        let server = NotifyingServer::new(stateless);
        let crib = crib_of(&server);
        let mut notifications = crib.notifications();
        let first = crib.subscribe(&one()).await.unwrap();
        let second = crib.subscribe(&one()).await.unwrap();
        assert_eq!(first.uri(), "x:one");
        server.change();
        assert!(is_notified(&mut notifications, &first).await, "stateless: {stateless}");
        drop(first);
        settle().await;
        server.change();
        assert!(is_notified(&mut notifications, &second).await, "stateless: {stateless}");
        drop(second);
        settle().await;
        server.change();
        settle().await;
        assert!(notifications.try_recv().is_err(), "stateless: {stateless}");
        let asked = if stateless { 0 } else { 1 };
        assert_eq!(server.received_of("resources/subscribe").len(), asked);
        assert_eq!(server.received_of("resources/unsubscribe").len(), asked);
    }
}

#[tokio::test(start_paused = true)]
async fn subscription_survives_a_crash_and_notifies() {
    for stateless in [false, true] {
        let server = NotifyingServer::new(stateless);
        let crib = crib_of(&server);
        let mut notifications = crib.notifications();
        let subscription = crib.subscribe(&one()).await.unwrap();
        server.kill();
        assert!(is_notified(&mut notifications, &subscription).await, "stateless: {stateless}");
        assert_eq!(status(&crib, "t").generation, 2);
        server.change();
        assert!(is_notified(&mut notifications, &subscription).await, "stateless: {stateless}");
    }
}

#[tokio::test(start_paused = true)]
async fn refused_subscription_is_an_error_of_the_server() {
    let server = NotifyingServer::new(false);
    let crib = crib_of(&server);
    let error = crib.subscribe(&Selector::OnServer(id("t"), "x:two".into())).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Unknown, "no such thing"));
    assert_eq!(error.delivery(), toolcrib::Delivery::MaybeSent);
    assert!(error.server_error().is_some());
}

#[tokio::test(start_paused = true)]
async fn subscribed_server_stays_up_and_reload_does_not_wait() {
    let server = NotifyingServer::new(false);
    let crib = crib_of(&server);
    let subscription = crib.subscribe(&one()).await.unwrap();
    tokio::time::advance(3600 * SECOND).await;
    settle().await;
    assert_eq!(status(&crib, "t").generation, 1);
    let before = tokio::time::Instant::now();
    let changed = ServerSpec::in_process(id("t"), server.clone());
    crib.apply_roster(crate::support::roster([changed])).await.unwrap();
    let mut notifications = crib.notifications();
    server.change();
    assert!(is_notified(&mut notifications, &subscription).await);
    assert!(before.elapsed() < 5 * SECOND, "{:?}", before.elapsed());
    crib.shutdown(SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn stateless_server_is_listened_to_from_start() {
    let server = NotifyingServer::new(true);
    let crib = crib_of(&server);
    crib.list().await;
    settle().await;
    let listens = server.received_of("subscriptions/listen");
    assert_eq!(listens[0]["params"]["notifications"], json!({"resourcesListChanged": true}));
    assert_eq!(status(&crib, "t").in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn subscription_does_not_start_a_stopped_server() {
    let server = NotifyingServer::new(false);
    let crib = crib_of(&server);
    let mut notifications = crib.notifications();
    let subscription = crib.subscribe(&one()).await.unwrap();
    crib.stop(&id("t")).await.unwrap();
    tokio::time::advance(600 * SECOND).await;
    settle().await;
    assert_eq!(status(&crib, "t").state, ServerState::Asleep);
    // The subscription resumes when the server is started.
    crib.restart(&id("t")).await.unwrap();
    assert!(is_notified(&mut notifications, &subscription).await);
    server.change();
    assert!(is_notified(&mut notifications, &subscription).await);
}

#[tokio::test(start_paused = true)]
async fn subscription_to_tripped_server_does_not_block_calls() {
    let server = NotifyingServer::new(false);
    let lifecycle = Lifecycle {
        breaker: BreakerSpec { failures: std::num::NonZero::<u32>::MIN, cool_off: SECOND },
        ..Lifecycle::default()
    };
    let limits = ServerLimits { call_timeout: SECOND, ..ServerLimits::default() };
    let spec = ServerSpec::in_process(id("t"), server.clone()).lifecycle(lifecycle).limits(limits);
    let crib = Crib::builder().server(spec).build().unwrap();
    let hangs = Call::request("hang", Selector::OnServer(id("t"), "hang".into()), Default::default());
    assert_eq!(crib.call(hangs).await.unwrap_err().kind(), ErrorKind::TimedOut);
    settle().await;
    assert_eq!(status(&crib, "t").state, ServerState::Tripped);
    tokio::time::advance(2 * SECOND).await;
    let _subscription = crib.subscribe(&one()).await.unwrap();
    let reads = Call::request("resources/read", one(), Default::default());
    crib.call(reads).await.unwrap();
}
