//! Accounts: all limits or none, and no more callers than there have to be.

use std::num::NonZeroU32;

use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn calls(most: u32) -> NonZeroU32 {
    NonZeroU32::new(most).unwrap()
}

fn target(server: &str, name: &str) -> Target {
    Target { server: server.parse().unwrap(), name: name.into() }
}

fn quota(limits: &[(&str, u32)]) -> Quota {
    let limit = |(what, most): &(&str, u32)| Limit::quota(calls(*most), HOUR).of(what.parse().unwrap());
    Quota { everyone: limits.iter().map(limit).collect(), ..Quota::default() }
}

#[test]
fn callers_who_have_used_nothing_lately_are_forgotten() {
    let (mut accounts, quota, now) = (Accounts::default(), quota(&[("*", 5)]), Instant::now());
    let target = target("a", "b");
    for number in 0..2 * MANY {
        let caller = Caller::named(&format!("caller-{number}"));
        accounts.reserve(&quota, &caller, &target, None, now).unwrap();
    }
    assert_eq!(accounts.by_caller.len(), 2 * MANY, "all of them have used something");
    for number in 0..10 * MANY {
        let caller = Caller::named(&format!("later-{number}"));
        let sent = accounts.reserve(&quota, &caller, &target, None, now + HOUR).unwrap();
        accounts.give_back(&caller, &target, sent);
    }
    assert!(accounts.by_caller.len() <= 5 * MANY, "{}", accounts.by_caller.len());
    // Without limits there is nothing to remember.
    let mut none = Accounts::default();
    none.reserve(&Quota::default(), &Caller::local(), &target, None, now).unwrap();
    assert!(none.by_caller.is_empty());
}

proptest! {
    #[test]
    fn a_call_is_taken_from_every_limit_that_is_about_it_or_from_none(
        steps in prop::collection::vec((0..2usize, 0..2usize, 0..3usize, prop::bool::weighted(0.2)), 1..80),
    ) {
        let quota = quota(&[("*", 20), ("a.*", 8), ("a.x", 3), ("*.x", 5)]);
        let (mut accounts, now) = (Accounts::default(), Instant::now());
        let mut made: Vec<(usize, Target)> = Vec::new();
        for (who, server, name, given_back) in steps {
            let caller = Caller::named(["one", "two"][who]);
            let target = target(["a", "b"][server], ["x", "y", "z"][name]);
            let full = |limit: &&Limit| {
                let of_it = made.iter().filter(|(by, to)| *by == who && limit.what.matches(&to.server, &to.name));
                of_it.count() >= limit.share.measure().0.get() as usize
            };
            let about = |limit: &&Limit| limit.what.matches(&target.server, &target.name);
            let expected: Vec<&Limit> = quota.everyone.iter().filter(about).filter(full).collect();
            match accounts.reserve(&quota, &caller, &target, None, now) {
                Ok(sent) => {
                    prop_assert!(expected.is_empty());
                    match given_back {
                        true => accounts.give_back(&caller, &target, sent),
                        false => made.push((who, target)),
                    }
                }
                Err(refusal) => prop_assert!(expected.contains(&&refusal.limit)),
            }
        }
        for standing in accounts.standings(&quota, now) {
            let limit = quota.everyone.iter().find(|limit| limit.name(Owner::Everyone) == standing.name).unwrap();
            let who = usize::from(standing.caller.as_str() == "two");
            let used = made.iter().filter(|(by, to)| *by == who && limit.what.matches(&to.server, &to.name)).count();
            prop_assert_eq!(standing.left as usize, limit.share.measure().0.get() as usize - used);
        }
    }
}
