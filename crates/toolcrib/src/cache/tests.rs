//! What is given to whom, and who waits for whom.

use bytes::Bytes;
use proptest::prelude::*;
use std::hash::{BuildHasherDefault, DefaultHasher};

use super::*;
use crate::call::Caller;
use crate::wire::message::Answer;
use crate::wire::revision::Era;

const KEEPING: Keeping = Keeping { entries: 64, at_most: Duration::from_secs(3600) };

fn server() -> ServerId {
    "git".parse().unwrap()
}

/// The same for every key.
type Hashes = BuildHasherDefault<DefaultHasher>;

fn key(caller: &str, asked: &str) -> Key {
    let subject = Subject { server: server(), what: What::Tool("get".into()) };
    let definition = Bytes::from_static(b"{}");
    Key::new(subject, asked.into(), SharingKey::Shared, Caller::named(caller), definition, &Hashes::default())
}

fn said(text: &str, rest: &str) -> Outcome {
    let result = format!(r#"{{"text":"{text}"{rest}}}"#);
    Outcome { answer: Answer::Result(result.into()), era: Era::Stateless, server: Some(server()) }
}

/// Asks as the one who is to ask.
fn ask(cache: &Arc<Cache>, key: &Key, outcome: &Outcome, now: Instant) {
    let Found::Nothing(flight) = cache.find(key.clone(), now) else { panic!("something is known") };
    flight.leaves();
    flight.land(outcome, &KEEPING, now);
}

fn known(cache: &Arc<Cache>, key: &Key, now: Instant) -> Option<String> {
    match cache.find(key.clone(), now) {
        Found::Known(outcome) => Some(outcome.to_value()["text"].as_str().unwrap().to_owned()),
        Found::Flying(..) | Found::Nothing(_) => None,
    }
}

#[tokio::test]
async fn a_private_answer_is_its_callers_and_a_public_one_is_everybodys() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    ask(&cache, &key("a", "1"), &said("mine", r#","ttlMs":1000"#), now);
    assert_eq!(known(&cache, &key("a", "1"), now).as_deref(), Some("mine"));
    assert_eq!(known(&cache, &key("b", "1"), now), None);
    ask(&cache, &key("a", "2"), &said("ours", r#","ttlMs":1000,"cacheScope":"public""#), now);
    assert_eq!(known(&cache, &key("b", "2"), now).as_deref(), Some("ours"));
    assert_eq!(known(&cache, &key("b", "3"), now), None);
}

#[tokio::test]
async fn the_time_of_an_answer_runs_from_when_it_came_and_never_longer_than_it_may() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    let century = said("old", r#","ttlMs":3155760000000"#);
    ask(&cache, &key("a", "1"), &century, now);
    let Found::Known(given) = cache.find(key("a", "1"), now + Duration::from_secs(3590)) else { panic!() };
    assert_eq!(given.to_value()["ttlMs"], 10_000, "what is left of the most it may be");
    assert_eq!(known(&cache, &key("a", "1"), now + Duration::from_secs(3600)), None);
}

#[tokio::test]
async fn what_was_asked_before_a_change_is_not_kept_after_it() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    let Found::Nothing(flight) = cache.find(key("a", "1"), now) else { panic!() };
    flight.leaves();
    assert!(matches!(cache.find(key("a", "1"), now), Found::Flying(..)));
    cache.forget(&server(), None, Stale::All);
    let Found::Nothing(second) = cache.find(key("a", "1"), now) else {
        panic!("whoever comes after the change does not wait for what was asked before")
    };
    second.leaves();
    flight.land(&said("before", r#","ttlMs":1000"#), &KEEPING, now);
    assert!(matches!(cache.find(key("a", "1"), now), Found::Flying(..)), "the second is still under way");
    second.land(&said("after", r#","ttlMs":1000"#), &KEEPING, now);
    assert_eq!(known(&cache, &key("a", "1"), now).as_deref(), Some("after"));
}

#[tokio::test]
async fn who_waits_takes_over_from_who_leaves() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    let Found::Nothing(leader) = cache.find(key("a", "1"), now) else { panic!() };
    let Found::Flying(mut waiting, _) = cache.find(key("a", "1"), now) else { panic!() };
    drop(leader);
    assert!(matches!(
        *waiting.wait_for(|landed| !matches!(landed, Landed::NotYet)).await.unwrap(),
        Landed::Abandoned
    ));
    assert!(matches!(cache.find(key("a", "1"), now), Found::Nothing(_)));
}

#[tokio::test]
async fn nobody_waits_for_an_answer_that_is_known_not_to_last() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    ask(&cache, &key("a", "1"), &said("passing", ""), now);
    let flights: Vec<Found> = (0..3).map(|_| cache.find(key("a", "1"), now)).collect();
    assert!(flights.iter().all(|found| matches!(found, Found::Nothing(_))), "each asks for itself");
    drop(flights);
    ask(&cache, &key("a", "1"), &said("lasting", r#","ttlMs":1000"#), now);
    let later = now + Duration::from_secs(2);
    let Found::Nothing(_flight) = cache.find(key("a", "1"), later) else { panic!() };
    assert!(matches!(cache.find(key("a", "1"), later), Found::Flying(..)), "it lasts now");
}

#[tokio::test]
async fn what_never_lasts_is_not_looked_for_but_once_in_a_while() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    let subject = key("a", "1").subject;
    assert!(!cache.passes(&subject), "nothing was seen of it yet");
    ask(&cache, &key("a", "1"), &said("passing", ""), now);
    let looked = (0..LOOK_AGAIN).filter(|_| !cache.passes(&subject)).count();
    assert_eq!(looked, 1);
    ask(&cache, &key("a", "1"), &said("lasting", r#","ttlMs":1000"#), now);
    ask(&cache, &key("a", "2"), &said("passing", ""), now);
    assert!(!cache.passes(&subject), "what is known of it is given, whatever else it says");
}

#[tokio::test]
async fn a_tool_that_failed_says_nothing_about_how_long_its_results_last() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    ask(&cache, &key("a", "1"), &said("no", r#","ttlMs":1000,"isError":true"#), now);
    let Found::Nothing(_flight) = cache.find(key("a", "1"), now) else { panic!("a failure was kept") };
    assert!(matches!(cache.find(key("a", "1"), now), Found::Flying(..)));
}

#[tokio::test]
async fn hits_misses_and_what_is_kept_are_counted() {
    let (cache, now) = (Arc::<Cache>::default(), Instant::now());
    ask(&cache, &key("a", "1"), &said("x", r#","ttlMs":1000"#), now);
    assert!(known(&cache, &key("a", "1"), now).is_some() && known(&cache, &key("a", "1"), now).is_some());
    let Tally { entries, hits, misses, .. } = cache.tally(&server(), now);
    assert_eq!((entries, hits, misses), (1, 2, 1));
    assert_eq!(
        cache.tally(&server(), now + Duration::from_secs(1)).entries,
        0,
        "what has expired is not there"
    );
}

/// What one of two callers asks of one of two generations, and when the server says it.
#[derive(Debug, Clone)]
enum Step {
    Ask { caller: usize, asked: u8, public: bool, restarts_meanwhile: bool },
    Restart,
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..2, 0u8..3, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
            |(caller, asked, public, restarts_meanwhile)| Step::Ask { caller, asked, public, restarts_meanwhile }
        ),
        1 => Just(Step::Restart),
        1 => (0u64..2).prop_map(Step::Wait),
    ]
}

proptest! {
    #[test]
    fn never_across_callers_or_generations_or_arguments(steps in prop::collection::vec(steps(), 1..100)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (_guard, cache) = (runtime.enter(), Arc::<Cache>::default());
        let (mut now, mut generation) = (Instant::now(), 0);
        for step in steps {
            match step {
                Step::Wait(seconds) => now += Duration::from_secs(seconds),
                Step::Restart => {
                    generation += 1;
                    cache.forget(&server(), None, Stale::All);
                }
                Step::Ask { caller, asked, public, restarts_meanwhile } => {
                    let (caller, asked) = (["a", "b"][caller], asked.to_string());
                    match cache.find(key(caller, &asked), now) {
                        Found::Known(outcome) => {
                            let told = outcome.to_value()["text"].as_str().unwrap().to_owned();
                            let parts: Vec<&str> = told.split(' ').collect();
                            prop_assert_eq!(parts[0], generation.to_string());
                            prop_assert_eq!(parts[1], &asked);
                            prop_assert!(parts[2] == caller || parts[3] == "true", "{} to {}", told, caller);
                        }
                        Found::Nothing(flight) => {
                            flight.leaves();
                            let scope = if public { "public" } else { "private" };
                            let text = format!("{generation} {asked} {caller} {public}");
                            if restarts_meanwhile {
                                generation += 1;
                                cache.forget(&server(), None, Stale::All);
                            }
                            let outcome = said(&text, &format!(r#","ttlMs":1500,"cacheScope":"{scope}""#));
                            flight.land(&outcome, &KEEPING, now);
                        }
                        Found::Flying(..) => prop_assert!(false, "nobody is under way"),
                    }
                }
            }
        }
    }
}
