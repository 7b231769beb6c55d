//! Tests of the entries, among them a random test against a simple model.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::model::caller::Caller;
use crate::protocol::versions::Era;

const SECOND: Duration = Duration::from_secs(1);

/// Not seeded, so that equal requests always have equal hashes.
type FixedHasher = BuildHasherDefault<DefaultHasher>;

fn key(server: &str, tool: Option<&str>, caller: Option<&str>, request: &str) -> Arc<CacheKey> {
    let item = tool.map_or(CachedItem::Resources, |tool| CachedItem::Tool(tool.into()));
    let subject = CacheSubject { server: server.parse().unwrap(), item };
    let caller = caller.map(Caller::new);
    let unnamed = Caller::new("");
    let key = CacheKey::new(
        subject,
        request.into(),
        InstanceKey::Shared,
        unnamed,
        Bytes::new(),
        &FixedHasher::default(),
    );
    Arc::new(CacheKey { caller, ..key })
}

fn entry(text: &str, expires_at: Instant) -> CacheEntry {
    let result = format!(r#"{{"text":"{text}","ttlMs":1}}"#);
    let outcome = Outcome {
        answer: ResponsePayload::Result(result.into()),
        era: Era::Stateless,
        server: None,
        server_info: None,
    };
    let directive = CacheDirective::from_outcome(&outcome).unwrap();
    CacheEntry::new(&outcome, directive, expires_at)
}

fn text(entry: &CacheEntry) -> String {
    entry.outcome.to_value()["text"].as_str().unwrap().to_owned()
}

impl CacheEntries {
    /// Checks that the indexes agree.
    fn check(&self) {
        let bytes: usize = self.by_key.values().map(|stored| stored.bytes).sum();
        assert_eq!(self.bytes, bytes);
        assert!(self.bytes <= self.max_bytes, "{} of {}", self.bytes, self.max_bytes);
        let by_subject: usize = self.by_subject.values().map(BTreeSet::len).sum();
        assert_eq!([self.by_sequence.len(), self.by_expiry.len(), by_subject], [self.by_key.len(); 3]);
        assert!(self.by_subject.values().all(|sequences| !sequences.is_empty()));
    }
}

#[tokio::test]
async fn insert_above_limit_evicts_oldest_of_same_tool() {
    let mut entries = CacheEntries::new(1 << 20);
    let now = Instant::now();
    entries.insert(key("git", Some("other"), None, "0"), entry("other", now + SECOND), 3, now);
    for number in 0..5 {
        let request = number.to_string();
        entries.insert(key("git", Some("get"), None, &request), entry(&request, now + SECOND), 3, now);
        entries.check();
    }
    let is_cached = |request: &str| entries.get(&key("git", Some("get"), None, request), now).is_some();
    assert_eq!(["0", "1", "2", "3", "4"].map(is_cached), [false, false, true, true, true]);
    assert!(entries.get(&key("git", Some("other"), None, "0"), now).is_some());
    assert_eq!(entries.count(&"git".parse().unwrap()), 4);
    assert_eq!(entries.count(&"gi".parse().unwrap()), 0);
}

#[tokio::test]
async fn size_is_bounded_and_large_entries_are_not_stored() {
    let mut entries = CacheEntries::new(8 << 10);
    let now = Instant::now();
    for number in 0..100 {
        let request = number.to_string();
        entries.insert(key("git", Some(&request), None, ""), entry(&"x".repeat(500), now + SECOND), 64, now);
        entries.check();
    }
    assert!(entries.by_key.len() > 4, "{}", entries.by_key.len());
    let large = key("git", Some("large"), None, "");
    entries.insert(large.clone(), entry(&"x".repeat(4 << 10), now + SECOND), 64, now);
    assert!(entries.get(&large, now).is_none());
    entries.set_max_bytes(1 << 10);
    entries.check();
}

#[tokio::test]
async fn expired_entries_are_removed_without_a_lookup() {
    let mut entries = CacheEntries::new(1 << 20);
    let now = Instant::now();
    let short = key("git", Some("a"), None, "");
    let long = key("git", Some("b"), None, "");
    entries.insert(short.clone(), entry("a", now + SECOND), 64, now);
    entries.insert(long, entry("b", now + 3 * SECOND), 64, now);
    assert!(entries.get(&short, now + SECOND - Duration::from_nanos(1)).is_some());
    assert!(entries.get(&short, now + SECOND).is_none());
    entries.remove_expired(now + SECOND);
    assert_eq!(entries.by_key.len(), 1);
    entries.insert(short, entry("a", now + 4 * SECOND), 64, now + 3 * SECOND);
    assert_eq!(entries.by_key.len(), 1);
    entries.check();
}

#[tokio::test]
async fn resource_update_removes_it_and_its_parents() {
    let mut entries = CacheEntries::new(1 << 20);
    let now = Instant::now();
    let server = "git".parse().unwrap();
    for uri in ["file:///a", "file:///a/b", "file:///c"] {
        entries.insert(key("git", None, None, uri), entry(uri, now + SECOND), 64, now);
    }
    entries.insert(key("git", Some("get"), None, "file:///a"), entry("tool", now + SECOND), 64, now);
    entries.invalidate(&server, Some(&InstanceKey::Discovery), Invalidation::Resource("file:///a/b"));
    assert_eq!(entries.count(&server), 4, "the answers are of another instance");
    entries.invalidate(&server, Some(&InstanceKey::Shared), Invalidation::Resource("file:///a/b"));
    let mut remaining: Vec<String> = entries.by_key.values().map(|stored| text(&stored.entry)).collect();
    remaining.sort();
    assert_eq!(remaining, ["file:///c", "tool"]);
    entries.invalidate(&server, None, Invalidation::All);
    entries.check();
    assert_eq!(entries.count(&server), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Insert { key: Arc<CacheKey>, ttl: u64 },
    Get(Arc<CacheKey>),
    Invalidate { server: &'static str, instance: Option<InstanceKey>, uri: Option<&'static str> },
    Wait(u64),
}

fn instances() -> impl Strategy<Value = InstanceKey> {
    prop_oneof![
        Just(InstanceKey::Shared),
        Just(InstanceKey::Caller(Caller::new("a"))),
        (0u64..2).prop_map(|number| InstanceKey::Client { number, capabilities: Bytes::new() }),
    ]
}

fn keys() -> impl Strategy<Value = Arc<CacheKey>> {
    let callers = prop_oneof![Just(None), Just(Some("a")), Just(Some("b"))];
    let parts =
        (prop::sample::select(vec!["s", "s-2"]), prop::sample::select(vec![None, Some("t"), Some("u")]));
    let request = prop::sample::select(vec!["", "x", "x/y"]);
    (parts, callers, request, instances(), prop::sample::select(vec!["d1", "d2"])).prop_map(
        |((server, tool), caller, request, instance, definition)| {
            let definition = Bytes::from_static(definition.as_bytes());
            Arc::new(CacheKey {
                instance,
                definition,
                ..CacheKey::clone(&key(server, tool, caller, request))
            })
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let invalidate = (
        prop::sample::select(vec!["s", "s-2"]),
        prop::option::of(instances()),
        prop::sample::select(vec![None, Some("x/y")]),
    );
    prop_oneof![
        4 => (keys(), 1u64..20).prop_map(|(key, ttl)| Step::Insert { key, ttl }),
        6 => keys().prop_map(Step::Get),
        1 => invalidate.prop_map(|(server, instance, uri)| Step::Invalidate { server, instance, uri }),
        1 => (0u64..10).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn get_never_returns_stale_or_foreign_entries(steps in prop::collection::vec(steps(), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _guard = runtime.enter();
        let mut entries = CacheEntries::new(12 << 10);
        let mut now = Instant::now();
        // Everything that was ever inserted, the newest first.
        let mut model: Vec<(Arc<CacheKey>, String, Instant)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Insert { key, ttl } => {
                    let text = number.to_string();
                    let expires_at = now + Duration::from_secs(ttl);
                    entries.insert(key.clone(), entry(&text, expires_at), 3, now);
                    model.insert(0, (key, text, expires_at));
                }
                Step::Invalidate { server, instance, uri } => {
                    let server = server.parse().unwrap();
                    let invalidation = uri.map_or(Invalidation::All, Invalidation::Resource);
                    entries.invalidate(&server, instance.as_ref(), invalidation);
                    model.retain(|(key, ..)| {
                        key.subject.server != server
                            || instance.as_ref().is_some_and(|instance| key.instance != *instance)
                            || uri.is_some_and(|uri| key.subject.item != CachedItem::Resources || !uri.as_bytes().starts_with(&key.request))
                    });
                }
                Step::Get(key) => {
                    let newest = model.iter().find(|(inserted, ..)| *inserted == key);
                    if let Some(entry) = entries.get(&key, now) {
                        let (_, expected, expires_at) = newest.expect("an entry was inserted with this key");
                        prop_assert_eq!(&text(entry), expected);
                        prop_assert!(*expires_at > now);
                    }
                }
            }
            entries.check();
            prop_assert!(entries.by_subject.values().all(|sequences| sequences.len() <= 3));
        }
    }
}
