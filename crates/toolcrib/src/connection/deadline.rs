//! `Deadline`: how long one call may take, and which limit of whom that is. Pure.

use std::time::Duration;

use tokio::time::Instant;

use super::pending::Heard;
use crate::error::{Error, ErrorKind};
use crate::spec::{Limits, Pattern, ServerId, ToolsSpec};
use crate::spelling;

/// How long one call may take.
pub(crate) struct Deadline<'a> {
    began: Instant,
    /// Without a sign of progress.
    usual: Duration,
    /// However much progress it reports.
    most: Duration,
    /// The tool's own limit, if it has one.
    of_tool: Option<&'a Pattern>,
    /// The host allows less than the server.
    of_host: bool,
}

impl<'a> Deadline<'a> {
    /// For a call of this tool that began then.
    pub(crate) fn of(limits: &Limits, tools: &'a ToolsSpec, tool: &str, began: Instant) -> Self {
        let of_tool = tools.call_timeout(tool);
        let usual = of_tool.map_or(limits.call_timeout, |(_, limit)| limit);
        let host = limits.host_max.filter(|host| *host < limits.call_timeout_max);
        let most = host.unwrap_or(limits.call_timeout_max);
        Self { began, usual, most, of_tool: of_tool.map(|(pattern, _)| pattern), of_host: host.is_some() }
    }

    fn last(&self) -> Instant {
        self.began + self.most
    }

    /// When it is over, if nothing is heard.
    pub(crate) fn first(&self) -> Instant {
        self.began + self.usual.min(self.most)
    }

    /// How much longer than `until` it may take after what was heard; `None` if it is over.
    pub(super) fn later(&self, until: Instant, heard: Option<Heard>) -> Option<Instant> {
        let later = match heard {
            Some(Heard::Progress(at)) => self.last().min(at + self.usual),
            Some(Heard::Question) => self.last(),
            None => until,
        };
        Some(later).filter(|later| *later > until)
    }

    /// Which limit it was, and where that is set.
    pub(super) fn missed(&self, server: &ServerId, until: Instant) -> Error {
        let (limit, key) = match (until >= self.last(), self.of_tool) {
            (true, _) if self.of_host => (self.most, "limits.call-timeout-max".to_owned()),
            (true, _) => (self.most, format!("servers.{server}.limits.call-timeout-max")),
            (false, Some(pattern)) => {
                (self.usual, format!("servers.{server}.tools.call-timeout.\"{pattern}\""))
            }
            (false, None) => (self.usual, format!("servers.{server}.limits.call-timeout")),
        };
        let message = format!("`{server}` did not answer within {}", spelling::time(limit));
        Error::new(ErrorKind::TimedOut, message).at(server).hint(format!("raise `{key}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(usual: u64, most: u64, host: Option<u64>) -> Limits {
        let host_max = host.map(Duration::from_secs);
        Limits {
            call_timeout: Duration::from_secs(usual),
            call_timeout_max: Duration::from_secs(most),
            host_max,
            ..Limits::default()
        }
    }

    #[tokio::test]
    async fn the_nearest_limit_holds_never_more_than_the_most_and_the_error_names_it() {
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
            let deadline = Deadline::of(&limits, &slow, tool, began);
            assert_eq!(deadline.first(), began + Duration::from_secs(seconds), "{tool}");
            let missed = deadline.missed(&server, deadline.first());
            assert_eq!(missed.advice(), format!("raise `{key}`"), "{tool}");
        }
    }

    #[tokio::test]
    async fn progress_extends_it_up_to_the_most() {
        let (limits, tools, began) = (limits(10, 25, None), ToolsSpec::default(), Instant::now());
        let deadline = Deadline::of(&limits, &tools, "x", began);
        let at = |seconds: u64| began + Duration::from_secs(seconds);
        assert_eq!(deadline.later(at(10), None), None);
        assert_eq!(deadline.later(at(10), Some(Heard::Progress(at(8)))), Some(at(18)));
        assert_eq!(deadline.later(at(18), Some(Heard::Progress(at(17)))), Some(at(25)));
        assert_eq!(deadline.later(at(25), Some(Heard::Progress(at(24)))), None);
        assert_eq!(deadline.later(at(10), Some(Heard::Question)), Some(at(25)));
    }
}
