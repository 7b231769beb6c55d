//! The one place that reads the wall clock, for reports only; decisions take tokio's clock, which tests can pause.

use std::time::SystemTime;

/// What time it is for people.
#[expect(clippy::disallowed_methods, reason = "a report tells people when something happened")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}
