//! Slots and memory limits.

use super::*;
use crate::spec::MemoryLimits;
use crate::supervisor::memory_watch::MemoryVerdict;

/// Returns three servers that share two slots.
fn three_servers() -> [Fixture; 3] {
    let services = services_with_slots(2);
    [(); 3].map(|()| fixture_in(&services, FakeServer::new(), lifecycle()))
}

fn states<const N: usize>(fixtures: &[Fixture; N]) -> [ServerState; N] {
    fixtures.each_ref().map(Fixture::state)
}

/// Sends a memory verdict on the current generation.
fn send_verdict(fixture: &Fixture, used: u64, verdict: MemoryVerdict) {
    fixture.supervisor.apply_memory_verdict(fixture.status().generation, used, verdict);
}

#[tokio::test(start_paused = true)]
async fn longest_idle_server_is_evicted() {
    let fixtures = three_servers();
    fixtures[1].echo().await.unwrap();
    fixtures[0].echo().await.unwrap();
    fixtures[2].echo().await.unwrap();
    assert_eq!(states(&fixtures), [ServerState::Ready, ServerState::Asleep, ServerState::Ready]);
    fixtures[1].echo().await.unwrap();
    assert_eq!(states(&fixtures), [ServerState::Asleep, ServerState::Ready, ServerState::Ready]);
    assert_eq!(fixtures.each_ref().map(|fixture| fixture.status().restarts), [0, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn server_in_use_is_not_evicted() {
    let fixtures = three_servers();
    let held = fixtures[0].lease().await.unwrap();
    fixtures[1].echo().await.unwrap();
    fixtures[2].echo().await.unwrap();
    fixtures[1].echo().await.unwrap();
    assert_eq!(states(&fixtures), [ServerState::Ready, ServerState::Ready, ServerState::Asleep]);
    assert_eq!((fixtures[0].fake.starts(), fixtures[1].fake.starts()), (1, 2));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn kept_server_is_evicted_last() {
    let services = services_with_slots(2);
    let kept =
        fixture_in(&services, FakeServer::new(), Lifecycle { keep_alive: KeepAlive::Forever, ..lifecycle() });
    kept.echo().await.unwrap();
    let others = [(); 2].map(|()| fixture_in(&services, FakeServer::new(), lifecycle()));
    for fixture in &others {
        fixture.echo().await.unwrap();
    }
    assert_eq!((kept.state(), others[0].state()), (ServerState::Ready, ServerState::Asleep));
    let _held = others[1].lease().await.unwrap();
    others[0].echo().await.unwrap();
    assert_eq!(kept.state(), ServerState::Asleep);
}

#[tokio::test(start_paused = true)]
async fn start_waits_until_a_server_is_idle() {
    let fixtures = three_servers();
    let first = fixtures[0].lease().await.unwrap();
    let second = fixtures[1].lease().await.unwrap();
    let mut waiting = fixtures[2].calls(3, "echo");
    yield_often().await;
    assert_eq!((fixtures[2].state(), fixtures[2].fake.starts()), (ServerState::Starting, 0));
    drop(first);
    assert!(waiting.join_next().await.unwrap().unwrap().is_ok());
    assert_eq!(states(&fixtures), [ServerState::Asleep, ServerState::Ready, ServerState::Ready]);
    assert!(error_kinds(waiting).await.iter().all(Option::is_none));
    drop(second);
}

#[tokio::test(start_paused = true)]
async fn slot_timeout_fails_without_a_restart() {
    let fixtures = three_servers();
    let _held = (fixtures[0].lease().await.unwrap(), fixtures[1].lease().await.unwrap());
    let error = fixtures[2].echo().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CouldNotStart);
    assert!(error.to_string().contains("no free slot for `fake`: 2 servers are running"), "{error}");
    assert!(error.hint().to_string().contains("limits.servers-running"), "{}", error.hint());
    let status = fixtures[2].status();
    assert_eq!((status.state, status.restarts, fixtures[2].fake.starts()), (ServerState::Asleep, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn waiting_starts_get_slots_in_order() {
    let services = services_with_slots(1);
    let fixtures = [(); 4].map(|()| fixture_in(&services, FakeServer::new(), lifecycle()));
    let held = fixtures[0].lease().await.unwrap();
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut waiting = JoinSet::new();
    for (index, fixture) in fixtures.iter().cloned().enumerate().skip(1) {
        let order = order.clone();
        waiting.spawn(async move {
            fixture.echo().await.unwrap();
            order.lock().unwrap().push(index);
        });
        yield_often().await;
    }
    drop(held);
    waiting.join_all().await;
    assert_eq!(*order.lock().unwrap(), [1, 2, 3]);
}

#[tokio::test(start_paused = true)]
async fn resize_evicts_idle_servers_or_admits_more() {
    let fixtures = three_servers();
    fixtures[0].echo().await.unwrap();
    let held = fixtures[1].lease().await.unwrap();
    fixtures[0].services.slots.resize(1);
    fixtures[0].wait_for(ServerState::Asleep).await;
    assert_eq!(fixtures[1].state(), ServerState::Ready);
    fixtures[0].services.slots.resize(3);
    fixtures[0].echo().await.unwrap();
    fixtures[2].echo().await.unwrap();
    assert!(states(&fixtures).iter().all(|state| *state == ServerState::Ready));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn ejected_server_holds_no_slot() {
    let services = services_with_slots(1);
    let broken = fixture_in(&services, FakeServer::new().default_start(FakeStart::Exits), lifecycle());
    assert_eq!(error_kind(broken.echo().await), ErrorKind::CouldNotStart);
    broken.wait_for(ServerState::Ejected).await;
    let other = fixture_in(&services, FakeServer::new(), lifecycle());
    other.echo().await.unwrap();
    let starts = broken.fake.starts();
    assert_eq!(error_kind(broken.echo().await), ErrorKind::Ejected);
    assert_eq!((broken.fake.starts(), other.state()), (starts, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn soft_limit_stops_the_server_when_idle() {
    let fixture = fixture(FakeServer::new());
    let lease = fixture.lease().await.unwrap();
    send_verdict(&fixture, 600, MemoryVerdict::Recycle);
    yield_often().await;
    assert_eq!(fixture.state(), ServerState::Ready);
    drop(lease);
    fixture.wait_for(ServerState::Asleep).await;
    fixture.echo().await.unwrap();
    let status = fixture.status();
    assert_eq!((fixture.fake.starts(), status.restarts, status.state), (2, 0, ServerState::Ready));
}

#[tokio::test(start_paused = true)]
async fn recycled_at_boot_server_starts_again() {
    let fixture = fixture_with(FakeServer::new(), Lifecycle { start: StartPolicy::AtBoot, ..lifecycle() });
    fixture.wait_for(ServerState::Ready).await;
    send_verdict(&fixture, 600, MemoryVerdict::Recycle);
    yield_until(|| fixture.fake.starts() == 2 && fixture.state() == ServerState::Ready).await;
}

#[tokio::test(start_paused = true)]
async fn hard_limit_stops_the_server_with_a_reason() {
    let fixture = fixture(FakeServer::new());
    let calls = fixture.calls(2, "hang");
    fixture.wait_for_calls(2).await;
    send_verdict(&fixture, 3 << 30, MemoryVerdict::OverHardLimit { limit: 1 << 30 });
    for outcome in calls.join_all().await {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost);
        let expected =
            "`fake` was stopped: it used 3.0 GiB of memory, its limit is 1.0 GiB; the call may have run";
        assert_eq!(error.to_string(), expected);
        assert_eq!(error.hint(), "raise `servers.fake.lifecycle.memory.hard`");
    }
    fixture.wait_for(ServerState::Asleep).await;
    let status = fixture.status();
    assert_eq!(status.restarts, 1);
    assert!(status.last_error.unwrap().message.contains("used 3.0 GiB of memory"));
    fixture.echo().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn repeated_hard_limit_ejects_with_the_reason() {
    let fixture = fixture(FakeServer::new());
    for _ in 0..3 {
        fixture.echo().await.unwrap();
        send_verdict(&fixture, 2 << 20, MemoryVerdict::OverHardLimit { limit: 1 << 20 });
        yield_until(|| fixture.state() != ServerState::Ready).await;
    }
    fixture.wait_for(ServerState::Ejected).await;
    let error = fixture.echo().await.unwrap_err();
    assert!(error.to_string().contains("used 2.0 MiB of memory"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn verdict_on_an_old_generation_is_ignored() {
    let fixture = fixture(FakeServer::new());
    fixture.echo().await.unwrap();
    fixture.supervisor.apply_memory_verdict(
        fixture.status().generation - 1,
        9,
        MemoryVerdict::OverHardLimit { limit: 1 },
    );
    yield_often().await;
    assert_eq!((fixture.state(), fixture.status().restarts), (ServerState::Ready, 0));
}

#[tokio::test(start_paused = true)]
async fn memory_sample_has_usage_and_limits() {
    let limits = MemoryLimits { soft: Some(100), hard: Some(200) };
    let fixture = fixture_with(FakeServer::new(), Lifecycle { memory: limits, ..lifecycle() });
    fixture.echo().await.unwrap();
    yield_often().await;
    fixture.fake.set_memory(150);
    assert_eq!(fixture.status().memory, Some(150));
    let sample = fixture.supervisor.sample_memory().unwrap();
    assert_eq!((sample.generation, sample.usage.used), (1, 150));
    assert_eq!((sample.usage.soft_limit, sample.usage.hard_limit), (Some(100), Some(200)));
    assert!(sample.usage.idle_rank.is_some());
}
