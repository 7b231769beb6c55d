//! Starting, staying while leased, and going to sleep.

use super::*;
use crate::event::News;

#[tokio::test(start_paused = true)]
async fn nothing_starts_before_somebody_asks() {
    let house = house(Fake::new());
    sleep(3600 * SECOND).await;
    assert_eq!((house.fake.starts(), house.state()), (0, StateName::Asleep));
    house.echo().await.unwrap();
    assert_eq!((house.fake.starts(), house.state()), (1, StateName::Ready));
}

#[tokio::test(start_paused = true)]
async fn an_eager_server_starts_by_itself_and_again_after_a_crash() {
    let house = house_with(Fake::new(), Lifecycle { start: Start::AtBoot, ..care() });
    house.until(StateName::Ready).await;
    assert_eq!(house.fake.starts(), 1);
    house.crash().await;
    house.until(StateName::Ready).await;
    assert_eq!(house.fake.starts(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_eager_server_that_is_kept_forever_is_held_without_any_lease() {
    let house =
        house_with(Fake::new(), Lifecycle { start: Start::AtBoot, keep_alive: KeepAlive::Forever, ..care() });
    house.until(StateName::Ready).await;
    sleep(30 * 24 * 3600 * SECOND).await;
    assert_eq!((house.fake.starts(), house.state()), (1, StateName::Ready));
}

#[tokio::test(start_paused = true)]
async fn sixty_four_first_callers_start_exactly_one() {
    let house = house(Fake::new().usually(Boot::Late(SECOND)));
    let calls = house.calls(64, "echo");
    assert!(kinds(calls).await.iter().all(Option::is_none));
    assert_eq!((house.fake.starts(), house.fake.called().len()), (1, 64));
}

#[tokio::test(start_paused = true)]
async fn it_stays_while_leased_and_goes_by_its_own_timer_afterwards() {
    let house = house(Fake::new());
    let lease = house.lease().await.unwrap();
    sleep(3600 * SECOND).await;
    assert_eq!((house.state(), house.status().leases), (StateName::Ready, 1));
    drop(lease);
    sleep(59 * SECOND).await;
    assert_eq!((house.state(), house.status().leases), (StateName::Ready, 0));
    sleep(2 * SECOND).await;
    assert_eq!((house.state(), house.fake.living().0), (StateName::Asleep, 0));
}

#[tokio::test(start_paused = true)]
async fn it_stays_while_a_call_takes_longer_than_the_keep_alive() {
    let house = house_with(Fake::new(), Lifecycle { keep_alive: KeepAlive::For(SECOND), ..care() });
    house.call("slow", json!({"ms": 50_000})).await.unwrap();
    assert_eq!(house.fake.starts(), 1);
    sleep(2 * SECOND).await;
    assert_eq!(house.fake.living().0, 0);
}

#[tokio::test(start_paused = true)]
async fn no_keep_alive_stops_it_with_the_last_lease() {
    let house = house_with(Fake::new(), Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..care() });
    let (one, other) = (house.lease().await.unwrap(), house.lease().await.unwrap());
    drop(one);
    breath().await;
    assert_eq!(house.state(), StateName::Ready);
    let before = Instant::now();
    drop(other);
    house.until(StateName::Asleep).await;
    assert!(before.elapsed() < SECOND);
    assert_eq!((house.fake.starts(), house.fake.living().0), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_server_without_keep_alive_still_serves_the_caller_that_woke_it() {
    let house = house_with(Fake::new(), Lifecycle { keep_alive: KeepAlive::For(Duration::ZERO), ..care() });
    for _ in 0..5 {
        house.echo().await.unwrap();
    }
    assert_eq!(house.fake.called().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn forever_means_forever() {
    let house = house_with(Fake::new(), Lifecycle { keep_alive: KeepAlive::Forever, ..care() });
    house.echo().await.unwrap();
    sleep(365 * 24 * 3600 * SECOND).await;
    assert_eq!((house.state(), house.fake.starts()), (StateName::Ready, 1));
}

#[tokio::test(start_paused = true)]
async fn a_lease_within_the_keep_alive_calls_the_stop_off() {
    let house = house(Fake::new());
    for _ in 0..10 {
        house.echo().await.unwrap();
        sleep(45 * SECOND).await;
    }
    assert_eq!((house.fake.starts(), house.state()), (1, StateName::Ready));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_races_the_end_of_the_keep_alive_is_served() {
    let house = house(Fake::new());
    for early in 0..40 {
        house.echo().await.unwrap();
        sleep(60 * SECOND - Duration::from_micros(20) + Duration::from_micros(early)).await;
        house.echo().await.unwrap();
    }
    assert_eq!(house.status().restarts, 0);
    assert_eq!(house.fake.living().1, 1);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_during_the_start_holds_nothing() {
    let house = house(Fake::new().usually(Boot::Late(5 * SECOND)));
    let given_up = timeout(SECOND, house.lease()).await;
    assert!(given_up.is_err());
    house.until(StateName::Ready).await;
    breath().await;
    assert_eq!((house.status().leases, house.fake.starts()), (0, 1));
    sleep(61 * SECOND).await;
    assert_eq!(house.state(), StateName::Asleep);
}

#[tokio::test(start_paused = true)]
async fn status_counts_what_happens() {
    let house = house(Fake::new());
    house.echo().await.unwrap();
    house.call("fail", NOTHING).await.unwrap();
    let calls = house.calls(3, "hold");
    house.called(5).await;
    let status = house.status();
    assert_eq!((status.leases, status.in_flight, status.generation), (3, 3, 1));
    assert_eq!((status.calls, status.errors, status.tools), (2, 1, Some(9)));
    assert!(status.uptime.is_some() && status.p50.is_some() && status.server_info.is_some());
    house.fake.open(true);
    kinds(calls).await;
    breath().await;
    let status = house.status();
    assert_eq!((status.leases, status.in_flight, status.calls, status.errors), (0, 0, 5, 1));
}

#[tokio::test(start_paused = true)]
async fn events_tell_a_life() {
    let house = house(Fake::new());
    let mut events = house.around.events.subscribe();
    house.echo().await.unwrap();
    house.crash().await;
    house.echo().await.unwrap();
    house.supervisor.stop().await.unwrap();
    let told: Vec<String> =
        std::iter::from_fn(|| events.try_recv().ok()).map(|event| format!("{event:?}")).collect();
    let told: Vec<&str> = told.iter().map(|event| event.split_whitespace().next().unwrap()).collect();
    assert_eq!(told, ["Started", "Changed", "Crashed", "Started", "Stopped"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_cannot_be_read_anew_stays_as_it_was() {
    let answer = |result: &str| format!(r#"{{"jsonrpc":"2.0","id":$ID,"result":{result}}}"#);
    let hello = answer(r#"{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{}}}"#);
    let tools = |name: &str| answer(&format!(r#"{{"tools":[{{"name":"{name}"}}]}}"#));
    let prompts = answer(r#"{"prompts":[{"name":"p"}]}"#);
    let failure = r#"{"jsonrpc":"2.0","id":$ID,"error":{"code":-32603,"message":"not now"}}"#;
    let house = house(
        Fake::new()
            .script("initialize", &[&hello])
            .script("tools/list", &[&tools("say"), &tools("new")])
            .script("prompts/list", &[&prompts, failure]),
    );
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    house.call("say", json!({"lines": [changed, answer("{}")]})).await.unwrap();
    let mut snapshot = house.supervisor.0.snapshot.clone();
    let is_new = |listing: &Listing| listing.tools.iter().any(|tool| &*tool.name == "new");
    let seen = snapshot.wait_for(|now| now.known.as_ref().is_some_and(|known| is_new(&known.listing)));
    let listing = seen.await.unwrap().known.clone().unwrap().listing;
    assert_eq!(listing.prompts.iter().map(|prompt| &*prompt.name).collect::<Vec<_>>(), ["p"]);
}

#[tokio::test(start_paused = true)]
async fn what_outlives_its_call_is_told_by_its_name() {
    let house = house(Fake::new());
    let mut news = house.around.news.subscribe();
    let line = |method: &str, params: serde_json::Value| {
        json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()
    };
    let lines = [
        line("notifications/elicitation/complete", json!({"elicitationId": "e"})),
        line("notifications/tasks/status", json!({"taskId": "t", "status": "working"})),
        r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#.to_owned(),
    ];
    house.call("say", json!({ "lines": lines })).await.unwrap();
    for expected in ["e", "t"] {
        let News::Noted { name, .. } = news.recv().await.unwrap() else { panic!("something else") };
        assert_eq!(&*name, expected);
    }
}
