//! Tests of what only a store in memory does.

use super::*;

#[test]
fn pins_in_files_behave_like_values() {
    let folder = tempfile::tempdir().unwrap();
    let store = MemoryStore::default().with_pins_dir(folder.path().join("pins"));
    let pin = |name| StoreKey::new(StoreKind::Pin, name);
    let ready = |reply| match reply {
        StoreReply::Ready(reply) => reply,
        StoreReply::Pending(_) => panic!("the reply is pending"),
    };
    assert_eq!(ready(store.get(pin("git"))).unwrap(), None);
    assert!(matches!(store.list(StoreKind::Pin, ""), StoreReply::Ready(Ok(list)) if list.is_empty()));
    let absent = |value: &'static str| store.put_if_absent(pin("git"), value.into(), None);
    assert!(matches!(
        (absent("1"), absent("2")),
        (StoreReply::Ready(Ok(true)), StoreReply::Ready(Ok(false)))
    ));
    assert!(matches!(store.put(pin("time"), "3".into(), None), StoreReply::Ready(Ok(()))));
    let replace = |expected: &'static str| store.replace(pin("git"), &expected.into(), "1".into(), None);
    assert!(matches!(
        (replace("1"), replace("2")),
        (StoreReply::Ready(Ok(true)), StoreReply::Ready(Ok(false)))
    ));
    assert_eq!(std::fs::read(folder.path().join("pins/git.json")).unwrap(), b"1");
    let StoreReply::Ready(Ok(listed)) = store.list(StoreKind::Pin, "") else { panic!("the list failed") };
    assert_eq!(listed.iter().map(|value| value.name.as_str()).collect::<Vec<_>>(), ["git", "time"]);
    assert_eq!(ready(store.take(pin("git"))).unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(ready(store.get(pin("git"))).unwrap(), None);
    std::fs::create_dir(folder.path().join("pins/git.json")).unwrap();
    assert!(ready(store.get(pin("git"))).unwrap_err().to_string().contains("git.json"));
}

#[tokio::test]
async fn memory_store_is_always_ready() {
    let store = MemoryStore::default();
    assert!(!store.is_shared());
    assert!(matches!(store.get(StoreKey::new(StoreKind::Session, "a")), StoreReply::Ready(Ok(None))));
    let caller = Caller::new("ci");
    let request = LimitRequest {
        caller: &caller,
        counters: CounterList::default(),
        max_wait: None,
        now: Instant::now(),
    };
    assert!(matches!(store.reserve(&request), StoreReply::Ready(Ok(_))));
}
