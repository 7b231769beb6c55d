//! Deadline of one call, and the setting it comes from.

use std::time::Duration;

use tokio::time::Instant;

use super::pending::Activity;
use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::spec::{NamePattern, ServerId, ServerLimits, ToolsSpec};
use crate::util::format;

/// The time at which a request ends without a response, and how far progress can move it.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestDeadline {
    pub(super) until: Instant,
    /// Limit without progress.
    timeout: Duration,
    hard_limit: Instant,
}

impl RequestDeadline {
    /// Returns the same deadline at another time.
    pub(super) fn at(self, until: Instant) -> Self {
        Self { until, ..self }
    }

    /// Returns the deadline after `activity`, or `None` if it is not later than this one.
    pub(super) fn extend(self, activity: Option<Activity>) -> Option<Self> {
        let until = match activity {
            Some(Activity::Progress(at)) => self.hard_limit.min(at + self.timeout),
            Some(Activity::Question) => self.hard_limit,
            None => self.until,
        };
        (until > self.until).then_some(Self { until, ..self })
    }
}

/// Deadline of one call.
pub(crate) struct Deadline<'a> {
    began: Instant,
    /// Limit without progress.
    timeout: Duration,
    /// Hard limit.
    max: Duration,
    /// The pattern that sets the tool's own timeout, if any.
    tool_pattern: Option<&'a NamePattern>,
    /// True if the hard limit is the host's and not the server's.
    is_host_limit: bool,
}

impl<'a> Deadline<'a> {
    pub(crate) fn new(limits: &ServerLimits, tools: &'a ToolsSpec, tool: &str, began: Instant) -> Self {
        let tool_timeout = tools.find_call_timeout(tool);
        let timeout = tool_timeout.map_or(limits.call_timeout, |(_, limit)| limit);
        let host = limits.gateway_call_timeout_max.filter(|host| *host < limits.call_timeout_max);
        let max = host.unwrap_or(limits.call_timeout_max);
        Self {
            began,
            timeout,
            max,
            tool_pattern: tool_timeout.map(|(pattern, _)| pattern),
            is_host_limit: host.is_some(),
        }
    }

    fn hard_limit(&self) -> Instant {
        self.began + self.max
    }

    /// Returns the deadline without any activity.
    pub(crate) fn initial(&self) -> Instant {
        self.began + self.timeout.min(self.max)
    }

    /// Returns the deadline of a request of the call.
    pub(super) fn for_request(&self) -> RequestDeadline {
        RequestDeadline { until: self.initial(), timeout: self.timeout, hard_limit: self.hard_limit() }
    }

    /// Returns the error of a call that missed the deadline `until`; the hint names the setting.
    pub(super) fn timeout_error(&self, server: &ServerId, until: Instant) -> Error {
        let LimitSetting { limit, key } = self.limit_setting(server, until);
        let message = format!("`{server}` did not answer within {}", format::format_duration(limit));
        Error::new(ErrorKind::TimedOut, message).with_server(server).with_hint(Hint::RaiseLimit { key })
    }

    /// Returns the error of a call whose server was not ready in time.
    pub(crate) fn not_ready_error(&self, server: &ServerId) -> Error {
        let LimitSetting { limit, key } = self.limit_setting(server, self.initial());
        let message = format!("`{server}` was not ready within {}", format::format_duration(limit));
        let error = Error::new(ErrorKind::TimedOut, message).with_server(server);
        error.with_hint(Hint::RaiseLimit { key }).mark_not_sent()
    }

    fn limit_setting(&self, server: &ServerId, until: Instant) -> LimitSetting {
        let (limit, key) = match (until >= self.hard_limit(), self.tool_pattern) {
            (true, _) if self.is_host_limit => (self.max, "limits.call-timeout-max".to_owned()),
            (true, _) => (self.max, format!("servers.{server}.limits.call-timeout-max")),
            (false, Some(pattern)) => {
                (self.timeout, format!("servers.{server}.tools.call-timeout.\"{pattern}\""))
            }
            (false, None) => (self.timeout, format!("servers.{server}.limits.call-timeout")),
        };
        LimitSetting { limit, key }
    }
}

/// A time limit and the config key that sets it.
struct LimitSetting {
    limit: Duration,
    key: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(timeout: u64, max: u64, host: Option<u64>) -> ServerLimits {
        let host_max = host.map(Duration::from_secs);
        ServerLimits {
            call_timeout: Duration::from_secs(timeout),
            call_timeout_max: Duration::from_secs(max),
            gateway_call_timeout_max: host_max,
            ..ServerLimits::default()
        }
    }

    #[tokio::test]
    async fn most_specific_timeout_applies_and_the_error_names_it() {
        let slow = ToolsSpec {
            call_timeout: vec![
                ("slow_*".parse().unwrap(), 300 * SECOND),
                ("slow_b*".parse().unwrap(), 5 * SECOND),
            ],
            ..ToolsSpec::default()
        };
        let (server, began) = ("git".parse().unwrap(), Instant::now());
        for (limits, tool, seconds, key) in [
            (limits(60, 600, None), "log", 60, "servers.git.limits.call-timeout"),
            (limits(60, 600, None), "slow_a", 300, "servers.git.tools.call-timeout.\"slow_*\""),
            (limits(60, 600, None), "slow_bisect", 5, "servers.git.tools.call-timeout.\"slow_b*\""),
            (limits(60, 100, None), "slow_a", 100, "servers.git.limits.call-timeout-max"),
            (limits(60, 600, Some(30)), "log", 30, "limits.call-timeout-max"),
            (limits(60, 600, Some(3000)), "log", 60, "servers.git.limits.call-timeout"),
        ] {
            let deadline = Deadline::new(&limits, &slow, tool, began);
            assert_eq!(deadline.initial(), began + Duration::from_secs(seconds), "{tool}");
            let timeout_error = deadline.timeout_error(&server, deadline.initial());
            assert_eq!(timeout_error.hint(), format!("raise `{key}`"), "{tool}");
        }
    }

    #[tokio::test]
    async fn progress_extends_the_deadline_up_to_the_hard_limit() {
        let (limits, tools, began) = (limits(10, 25, None), ToolsSpec::default(), Instant::now());
        let deadline = Deadline::new(&limits, &tools, "x", began).for_request();
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        let extend = |until, activity| {
            RequestDeadline { until, ..deadline }.extend(activity).map(|extended| extended.until)
        };
        assert_eq!(deadline.until, at(10));
        assert_eq!(extend(at(10), None), None);
        assert_eq!(extend(at(10), Some(Activity::Progress(at(8)))), Some(at(18)));
        assert_eq!(extend(at(18), Some(Activity::Progress(at(17)))), Some(at(25)));
        assert_eq!(extend(at(25), Some(Activity::Progress(at(24)))), None);
        assert_eq!(extend(at(10), Some(Activity::Question)), Some(at(25)));
    }
}
