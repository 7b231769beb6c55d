//! Tests of signed states and of the records in the store.

use super::*;
use crate::model::failure_class::Delivery;
use crate::store::{DelayedStore, MemoryStore};

fn key(byte: u8) -> Option<SigningKey> {
    Some(SigningKey::from_bytes(&[byte; 32]).unwrap())
}

fn suspended_calls(store: Arc<dyn Store>, key: Option<SigningKey>) -> Arc<SuspendedCalls> {
    Arc::new(SuspendedCalls::new(store, key, TaskTracker::new()))
}

fn call() -> Call {
    Call::tool("push").caller(Caller::new("ci"))
}

/// A call whose server never answers.
fn running_call() -> RunningCall {
    let (_, updates) = mpsc::channel(1);
    RunningCall { work: Box::pin(std::future::pending()), updates }
}

/// Suspends a call with one question and returns its state.
async fn suspend(suspended: &Arc<SuspendedCalls>) -> String {
    let (request, _answer) = ServerRequest::new("elicitation/create".to_owned(), None);
    let outcome = suspended.suspend(running_call(), vec![request], call()).await.unwrap();
    let result: Value = serde_json::from_slice(outcome.raw()).unwrap();
    result[input::REQUEST_STATE].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn state_is_recognized_after_a_restart_with_the_same_key() {
    let state = suspend(&suspended_calls(Arc::new(MemoryStore::default()), key(1))).await;
    let restarted = suspended_calls(Arc::new(MemoryStore::default()), key(1));
    assert!(restarted.has_signed(&state, &call()));
    let outcome = restarted.resume_suspended(&state, call()).await.unwrap();
    assert_eq!(*outcome.raw(), input::invalid_state_error());
    assert!(!restarted.has_signed(&state, &call().caller(Caller::new("other"))));
    assert!(!suspended_calls(Arc::new(MemoryStore::default()), key(2)).has_signed(&state, &call()));
    assert!(!suspended_calls(Arc::new(MemoryStore::default()), None).has_signed(&state, &call()));
}

#[tokio::test(start_paused = true)]
async fn suspended_call_is_taken_once_and_only_by_the_same_call() {
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::default()), Arc::new(DelayedStore::new())];
    for store in stores {
        let suspended = suspended_calls(store, key(1));
        let state = suspend(&suspended).await;
        let other = Call::tool("pull").caller(Caller::new("ci"));
        assert!(suspended.take(&state, &other).await.unwrap().is_none());
        let same = call();
        let (first, second) = tokio::join!(suspended.take(&state, &same), suspended.take(&state, &same));
        assert_eq!([first, second].into_iter().filter_map(Result::unwrap).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn call_without_a_record_in_the_store_is_not_resumed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let suspended = suspended_calls(store.clone(), key(1));
    let state = suspend(&suspended).await;
    let records = store.list(StoreKind::SuspendedCall, "").wait().await.unwrap();
    let record: Value = serde_json::from_slice(&records[0].value).unwrap();
    assert_eq!((records.len(), record["caller"].as_str()), (1, Some("ci")));
    assert!(store.remove(record_key(&records[0].name)).wait().await.unwrap());
    assert!(suspended.take(&state, &call()).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn closing_removes_the_records() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let suspended = suspended_calls(store.clone(), key(1));
    let state = suspend(&suspended).await;
    suspended.close().await;
    assert!(store.list(StoreKind::SuspendedCall, "").wait().await.unwrap().is_empty());
    assert!(suspended.take(&state, &call()).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn call_is_refused_while_the_store_fails() {
    let store = Arc::new(DelayedStore::new());
    let suspended = suspended_calls(store.clone(), key(1));
    let state = suspend(&suspended).await;
    store.set_failing(true);
    let (request, _answer) = ServerRequest::new("elicitation/create".to_owned(), None);
    let error = suspended.suspend(running_call(), vec![request], call()).await.unwrap_err();
    assert_eq!((error.kind(), error.delivery()), (ErrorKind::StoreUnavailable, Delivery::MaybeSent));
    assert_eq!(suspended.lock().calls.len(), 1);
    let error = suspended.resume_suspended(&state, call()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreUnavailable);
    store.set_failing(false);
    assert!(suspended.take(&state, &call()).await.unwrap().is_some(), "the call can still be resumed");
}
