//! The era in which a server is started.

use super::*;

async fn start_for(fixture: &Fixture, era: Era) -> Vec<Era> {
    drop(fixture.supervisor.lease(era).await.unwrap());
    fixture.status().eras
}

#[tokio::test(start_paused = true)]
async fn server_of_both_eras_follows_the_client_that_wakes_it() {
    let fixture = fixture(FakeServer::new().default_start(FakeStart::Both));
    for era in [Era::Stateless, Era::Session, Era::Stateless] {
        assert_eq!(start_for(&fixture, era).await, [era]);
        // A client of the other era uses the running process.
        assert_eq!(start_for(&fixture, era.other()).await, [era]);
        fixture.supervisor.stop().await.unwrap();
    }
    assert_eq!(fixture.fake.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn server_that_starts_at_boot_is_started_in_a_session() {
    let lifecycle = Lifecycle { start: StartPolicy::AtBoot, ..lifecycle() };
    let fixture = fixture_with(FakeServer::new().default_start(FakeStart::Both), lifecycle);
    fixture.wait_for(ServerState::Ready).await;
    assert_eq!(fixture.status().eras, [Era::Session]);
    assert!(fixture.fake.received("server/discover").is_empty());
}

#[tokio::test(start_paused = true)]
async fn era_that_a_server_refused_is_not_tried_again() {
    for (start, client, refused) in [
        (FakeStart::Session, Era::Stateless, "server/discover"),
        (FakeStart::ExitsOnProbe, Era::Stateless, "server/discover"),
        (FakeStart::Stateless, Era::Session, "initialize"),
    ] {
        let fixture = fixture(FakeServer::new().default_start(start));
        for _ in 0..3 {
            assert_eq!(start_for(&fixture, client).await, [client.other()], "{start:?}");
            fixture.supervisor.stop().await.unwrap();
        }
        assert_eq!(fixture.fake.received(refused).len(), 1, "{start:?}");
        assert_eq!(fixture.status().restarts, 0, "{start:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn restart_forgets_an_era_in_which_the_server_crashed() {
    let fake = FakeServer::new().default_start(FakeStart::Both).next_starts(&[FakeStart::Exits]);
    let fixture = fixture(fake);
    for _ in 0..2 {
        assert_eq!(start_for(&fixture, Era::Stateless).await, [Era::Session]);
        fixture.supervisor.stop().await.unwrap();
    }
    fixture.supervisor.restart().await.unwrap();
    fixture.supervisor.stop().await.unwrap();
    assert_eq!(start_for(&fixture, Era::Stateless).await, [Era::Stateless]);
}
