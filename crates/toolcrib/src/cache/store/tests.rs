//! A store against the plainest model of it: whatever happens, nothing is given to anybody that was kept for another.

use std::hash::{BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::call::Caller;
use crate::wire::revision::Era;

const SECOND: Duration = Duration::from_secs(1);

/// The same for every key.
type Hashes = BuildHasherDefault<DefaultHasher>;

fn key(server: &str, tool: Option<&str>, caller: Option<&str>, asked: &str) -> Arc<Key> {
    let what = tool.map_or(What::Resources, |tool| What::Tool(tool.into()));
    let subject = Subject { server: server.parse().unwrap(), what };
    let caller = caller.map(Caller::named);
    let nobody = Caller::named("");
    let key = Key::new(subject, asked.into(), SharingKey::Shared, nobody, Bytes::new(), &Hashes::default());
    Arc::new(Key { caller, ..key })
}

fn kept(text: &str, until: Instant) -> Kept {
    let result = format!(r#"{{"text":"{text}","ttlMs":1}}"#);
    let outcome = Outcome { answer: Answer::Result(result.into()), era: Era::Stateless, server: None };
    let lasting = Lasting::of(&outcome).unwrap();
    Kept::new(&outcome, lasting, until)
}

fn text(kept: &Kept) -> String {
    kept.outcome.to_value()["text"].as_str().unwrap().to_owned()
}

impl Store {
    /// What must hold at any time.
    fn check(&self) {
        let bytes: usize = self.filed.values().map(|filed| filed.bytes).sum();
        assert_eq!(self.bytes, bytes);
        assert!(self.bytes <= self.most, "{} of {}", self.bytes, self.most);
        let by_subject: usize = self.by_subject.values().map(BTreeSet::len).sum();
        assert_eq!([self.by_age.len(), self.by_end.len(), by_subject], [self.filed.len(); 3]);
        assert!(self.by_subject.values().all(|numbers| !numbers.is_empty()));
    }
}

#[tokio::test]
async fn the_oldest_of_a_tool_goes_when_there_are_too_many_and_other_tools_keep_theirs() {
    let (mut store, now) = (Store::new(1 << 20), Instant::now());
    store.put(key("git", Some("other"), None, "0"), kept("other", now + SECOND), 3, now);
    for number in 0..5 {
        let asked = number.to_string();
        store.put(key("git", Some("get"), None, &asked), kept(&asked, now + SECOND), 3, now);
        store.check();
    }
    let there = |asked: &str| store.get(&key("git", Some("get"), None, asked), now).is_some();
    assert_eq!(["0", "1", "2", "3", "4"].map(there), [false, false, true, true, true]);
    assert!(store.get(&key("git", Some("other"), None, "0"), now).is_some());
    assert_eq!(store.count(&"git".parse().unwrap()), 4);
    assert_eq!(store.count(&"gi".parse().unwrap()), 0);
}

#[tokio::test]
async fn bytes_are_bounded_and_what_is_too_large_is_not_kept() {
    let (mut store, now) = (Store::new(8 << 10), Instant::now());
    for number in 0..100 {
        let asked = number.to_string();
        store.put(key("git", Some(&asked), None, ""), kept(&"x".repeat(500), now + SECOND), 64, now);
        store.check();
    }
    assert!(store.filed.len() > 4, "{}", store.filed.len());
    let large = key("git", Some("large"), None, "");
    store.put(large.clone(), kept(&"x".repeat(4 << 10), now + SECOND), 64, now);
    assert!(store.get(&large, now).is_none());
    store.resize(1 << 10);
    store.check();
}

#[tokio::test]
async fn what_has_expired_is_gone_without_anybody_asking_for_it() {
    let (mut store, now) = (Store::new(1 << 20), Instant::now());
    let (short, long) = (key("git", Some("a"), None, ""), key("git", Some("b"), None, ""));
    store.put(short.clone(), kept("a", now + SECOND), 64, now);
    store.put(long, kept("b", now + 3 * SECOND), 64, now);
    assert!(store.get(&short, now + SECOND - Duration::from_nanos(1)).is_some());
    assert!(store.get(&short, now + SECOND).is_none());
    store.sweep(now + SECOND);
    assert_eq!(store.filed.len(), 1);
    store.put(short, kept("a", now + 4 * SECOND), 64, now + 3 * SECOND);
    assert_eq!(store.filed.len(), 1);
    store.check();
}

#[tokio::test]
async fn a_change_of_a_resource_takes_it_and_what_it_is_a_part_of() {
    let (mut store, now) = (Store::new(1 << 20), Instant::now());
    let server = "git".parse().unwrap();
    for uri in ["file:///a", "file:///a/b", "file:///c"] {
        store.put(key("git", None, None, uri), kept(uri, now + SECOND), 64, now);
    }
    store.put(key("git", Some("get"), None, "file:///a"), kept("tool", now + SECOND), 64, now);
    store.forget(&server, Some(&SharingKey::Nobody), Stale::Resource("file:///a/b"));
    assert_eq!(store.count(&server), 4, "another instance's");
    store.forget(&server, Some(&SharingKey::Shared), Stale::Resource("file:///a/b"));
    let left: Vec<String> = store.filed.values().map(|filed| text(&filed.kept)).collect();
    assert!(left.len() == 2 && left.contains(&"tool".to_owned()) && left.contains(&"file:///c".to_owned()));
    store.forget(&server, None, Stale::All);
    store.check();
    assert_eq!(store.count(&server), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Put { key: Arc<Key>, ttl: u64 },
    Get(Arc<Key>),
    Forget { server: &'static str, instance: Option<SharingKey>, uri: Option<&'static str> },
    Wait(u64),
}

fn instances() -> impl Strategy<Value = SharingKey> {
    prop_oneof![
        Just(SharingKey::Shared),
        Just(SharingKey::Caller(Caller::named("a"))),
        (0u64..2).prop_map(|number| SharingKey::Client { number, declared: Bytes::new() }),
    ]
}

fn keys() -> impl Strategy<Value = Arc<Key>> {
    let callers = prop_oneof![Just(None), Just(Some("a")), Just(Some("b"))];
    let parts =
        (prop::sample::select(vec!["s", "s-2"]), prop::sample::select(vec![None, Some("t"), Some("u")]));
    let asked = prop::sample::select(vec!["", "x", "x/y"]);
    (parts, callers, asked, instances(), prop::sample::select(vec!["d1", "d2"])).prop_map(
        |((server, tool), caller, asked, instance, definition)| {
            let definition = Bytes::from_static(definition.as_bytes());
            Arc::new(Key { instance, definition, ..Key::clone(&key(server, tool, caller, asked)) })
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let forget = (
        prop::sample::select(vec!["s", "s-2"]),
        prop::option::of(instances()),
        prop::sample::select(vec![None, Some("x/y")]),
    );
    prop_oneof![
        4 => (keys(), 1u64..20).prop_map(|(key, ttl)| Step::Put { key, ttl }),
        6 => keys().prop_map(Step::Get),
        1 => forget.prop_map(|(server, instance, uri)| Step::Forget { server, instance, uri }),
        1 => (0u64..10).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn nothing_is_given_that_was_kept_under_another_key_or_has_gone_stale(steps in prop::collection::vec(steps(), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (_guard, mut store) = (runtime.enter(), Store::new(12 << 10));
        let mut now = Instant::now();
        // Everything that was ever kept, the newest first.
        let mut model: Vec<(Arc<Key>, String, Instant)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Put { key, ttl } => {
                    let (text, until) = (number.to_string(), now + Duration::from_secs(ttl));
                    store.put(key.clone(), kept(&text, until), 3, now);
                    model.insert(0, (key, text, until));
                }
                Step::Forget { server, instance, uri } => {
                    let (server, stale) = (server.parse().unwrap(), uri.map_or(Stale::All, Stale::Resource));
                    store.forget(&server, instance.as_ref(), stale);
                    model.retain(|(key, ..)| {
                        key.subject.server != server
                            || instance.as_ref().is_some_and(|instance| key.instance != *instance)
                            || uri.is_some_and(|uri| key.subject.what != What::Resources || !uri.as_bytes().starts_with(&key.asked))
                    });
                }
                Step::Get(key) => {
                    let newest = model.iter().find(|(kept, ..)| *kept == key);
                    if let Some(given) = store.get(&key, now) {
                        let (_, expected, until) = newest.expect("it was kept under this very key");
                        prop_assert_eq!(&text(given), expected);
                        prop_assert!(*until > now);
                    }
                }
            }
            store.check();
            prop_assert!(store.by_subject.values().all(|numbers| numbers.len() <= 3));
        }
    }
}
