//! Tests of how sessions end: on request, when idle, when there are too many, and when another replica takes them over.

use toolcrib::Caller;
use toolcrib::store::{SigningKey, StoreKey, StoreKind};

use super::shared::RestoredSession;
use super::*;
use crate::client_memory::{ClientMemory, MemoryAccount};
use crate::service::{CatalogScope, McpService};
use crate::tests::delayed_store::DelayedStore;

fn service() -> McpService {
    McpService::new(toolcrib::Crib::builder().build().unwrap())
}

fn open(sessions: &Sessions, service: &McpService) -> NewSession {
    let client = SessionClientState::new(service, EndpointScope::local(), None, None);
    sessions.open(client, None, None).unwrap()
}

fn is_open(sessions: &Sessions, id: &str) -> bool {
    sessions.find(id, &EndpointScope::local()).is_some()
}

#[tokio::test]
async fn session_is_found_only_in_its_own_scope() {
    let sessions = Sessions::new(10);
    let service = service();
    let id = open(&sessions, &service).id;
    assert!(is_open(&sessions, &id));
    let own_scope = EndpointScope::local();
    let view = CatalogScope::One("git".parse().unwrap());
    let other_endpoint = EndpointScope { view, ..EndpointScope::local() };
    let other_caller = EndpointScope::trusted(Caller::new("other"));
    for scope in [other_endpoint, other_caller] {
        assert!(sessions.find(&id, &scope).is_none() && !sessions.end(&id, &scope));
    }
    assert!(sessions.end(&id, &own_scope));
    assert!(!is_open(&sessions, &id) && !sessions.end(&id, &own_scope));
}

#[tokio::test(start_paused = true)]
async fn longest_idle_session_is_replaced() {
    let sessions = Sessions::new(2);
    let service = service();
    let open = async || {
        tokio::time::advance(Duration::from_secs(1)).await;
        open(&sessions, &service).id
    };
    let first = open().await;
    let second = open().await;
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(is_open(&sessions, &first));
    let third = open().await;
    assert!(!is_open(&sessions, &second));
    assert!(is_open(&sessions, &first) && is_open(&sessions, &third));
}

#[tokio::test(start_paused = true)]
async fn sessions_of_one_caller_do_not_end_those_of_another() {
    let sessions = Sessions::new(6);
    let service = service();
    let scope = |name: &str| EndpointScope::trusted(Caller::new(name));
    let open = async |name: &str| {
        tokio::time::advance(Duration::from_secs(1)).await;
        let client = SessionClientState::new(&service, scope(name), None, None);
        sessions.open(client, None, None).map(|new| new.id)
    };
    let is_open = |name: &str, id: &str| sessions.find(id, &scope(name)).is_some();
    let ann = open("ann").await.unwrap();
    let mut ben = Vec::new();
    for _ in 0..20 {
        ben.push(open("ben").await.unwrap());
    }
    assert!(is_open("ann", &ann), "the session of a caller with fewer is kept");
    assert_eq!(ben.iter().filter(|id| is_open("ben", id)).count(), 3, "half of all");
    // Sessions in use are not ended, but they do not take the room of others either.
    let held: Vec<SessionRef> = ben.iter().filter_map(|id| sessions.find(id, &scope("ben"))).collect();
    assert_eq!((held.len(), open("ben").await), (3, None));
    assert!(open("ann").await.is_some() && open("carl").await.is_some() && open("dora").await.is_some());
    assert!(is_open("carl", &open("carl").await.unwrap()));
}

#[tokio::test(start_paused = true)]
async fn idle_sessions_expire_and_the_expiry_task_ends() {
    let sessions = Sessions::new(10);
    let service = service();
    let first = open(&sessions, &service);
    assert!(first.needs_expiry_task);
    let held = sessions.find(&first.id, &EndpointScope::local()).unwrap();
    let second = open(&sessions, &service);
    assert!(!second.needs_expiry_task);
    let ended = sessions.state().sessions[&second.id].ended.clone();
    let expiry = sessions.expire_idle();
    tokio::pin!(expiry);
    tokio::select! {
        () = &mut expiry => panic!("the first session is in use"),
        () = tokio::time::sleep(IDLE_TIMEOUT + MIN_SWEEP_INTERVAL) => {}
    }
    assert!(ended.is_cancelled() && !is_open(&sessions, &second.id), "it was idle");
    drop(held);
    expiry.await;
    assert!(!is_open(&sessions, &first.id));
    assert!(open(&sessions, &service).needs_expiry_task);
}

#[tokio::test]
async fn session_has_one_notification_stream_at_a_time() {
    let sessions = Sessions::new(10);
    let service = service();
    let id = open(&sessions, &service).id;
    let session = sessions.find(&id, &EndpointScope::local()).unwrap();
    let hold = session.hold_stream().unwrap();
    assert!(session.hold_stream().is_none());
    drop(hold);
    assert!(session.hold_stream().is_some());
}

#[tokio::test(start_paused = true)]
async fn session_is_idle_when_its_last_user_is_dropped() {
    let sessions = Sessions::new(10);
    let service = service();
    let id = open(&sessions, &service).id;
    let session = sessions.state().sessions[&id].clone();
    assert!(session.is_idle(), "a reference without a user does not count");
    let first = sessions.find(&id, &EndpointScope::local()).unwrap();
    let second = first.clone();
    let hold = second.hold_stream().unwrap();
    drop(first);
    drop(second);
    assert!(!session.is_idle(), "its stream is open");
    drop(hold);
    assert!(session.is_idle());
}

#[tokio::test]
async fn renewal_leaves_a_session_that_was_taken_over_to_its_owner() {
    let store: Arc<dyn Store> = Arc::new(DelayedStore::new());
    let service = service();
    let key = || SigningKey::from_bytes(&[7; 32]).unwrap();
    // Without the tasks of a gateway, so that no notice arrives.
    let [first, second] = ["http://a:1", "http://b:1"].map(|address| {
        let replica = Arc::new(Replica::new(address, key()).unwrap());
        Sessions::new(10).with_store(&store, Some(&replica))
    });
    let scope = EndpointScope::local();
    let client = SessionClientState::new(&service, scope.clone(), None, None);
    let id = first.open(client, None, None).unwrap().id;
    first.save(&id).await.unwrap();
    let owner = async || second.find_owner(&id, &scope).await.unwrap().unwrap().address;
    assert_eq!(owner().await.as_deref(), Some("http://a:1"));
    let total = Arc::new(ClientMemory::new(1 << 20));
    let memory = MemoryClaim::for_body(MemoryAccount { total, caller: scope.access.memory.clone() });
    let restored = second.restore(&service, &id, &scope, memory).await.unwrap();
    assert!(matches!(restored, RestoredSession::Open(_)) && first.contains(&id));
    let restored = second.find(&id, &scope).unwrap();
    assert!(restored.client.questions.last_number() >= 1 << 40, "questions of the first have other numbers");
    let in_progress = first.find(&id, &scope).unwrap();
    first.renew_records(Instant::now()).await.unwrap();
    assert_eq!(owner().await.as_deref(), Some("http://b:1"));
    assert!(!first.contains(&id) && second.contains(&id));
    assert!(first.handover.find_left(&id).is_some(), "answers for its requests in progress are passed on");
    drop(in_progress);
    assert!(first.handover.find_left(&id).is_none());
    // A record that the store has lost comes back.
    store.remove(StoreKey::new(StoreKind::Session, &id)).wait().await.unwrap();
    second.renew_records(Instant::now()).await.unwrap();
    assert_eq!(owner().await.as_deref(), Some("http://b:1"));
}
