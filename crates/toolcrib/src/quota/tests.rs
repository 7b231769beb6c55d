//! What limits are called.

use super::*;

fn calls(most: u32) -> NonZeroU32 {
    NonZeroU32::new(most).unwrap()
}

#[test]
fn a_limit_is_called_by_the_key_that_sets_it() {
    let hour = Duration::from_secs(3600);
    let (quota, rate) = (Limit::quota(calls(1000), hour), Limit::rate(calls(1), Duration::from_millis(1500)));
    assert_eq!(quota.name(Owner::Caller("ci")), "callers.ci.quota");
    assert_eq!(quota.share.to_string(), "1000 calls per 1h");
    assert_eq!(rate.share.to_string(), "1 call per 1500ms");
    let narrow = rate.of("git.push*".parse().unwrap());
    assert_eq!(narrow.name(Owner::Everyone), "policy.limits.\"git.push*\".rate");
}

#[test]
fn a_quota_without_limits_is_none() {
    assert!(Quota::default().is_empty());
    let mut quota = Quota { callers: HashMap::from([("ci".to_owned(), Vec::new())]), ..Quota::default() };
    assert!(quota.is_empty());
    quota.results = Some(1);
    assert!(!quota.is_empty());
}
