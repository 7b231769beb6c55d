//! Tests of the names of limits and of empty quotas.

use super::*;

fn calls(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).unwrap()
}

#[test]
fn limit_is_named_by_its_config_key() {
    let hour = Duration::from_secs(3600);
    let quota = UsageLimit::quota(calls(1000), hour);
    let rate = UsageLimit::rate(calls(1), Duration::from_millis(1500));
    assert_eq!(quota.config_key(LimitOwner::Caller("ci")), "callers.ci.quota");
    assert_eq!(quota.kind.to_string(), "1000 calls per 1h");
    assert_eq!(rate.kind.to_string(), "1 call per 1500ms");
    let narrow = rate.matching("git.push*".parse().unwrap());
    assert_eq!(narrow.config_key(LimitOwner::Everyone), "policy.limits.\"git.push*\".rate");
}

#[test]
fn quota_without_limits_is_empty() {
    assert!(UsageLimits::default().is_empty());
    let mut quota =
        UsageLimits { callers: HashMap::from([("ci".to_owned(), Vec::new())]), ..UsageLimits::default() };
    assert!(quota.is_empty());
    quota.result_bytes = Some(1);
    assert!(!quota.is_empty());
}
