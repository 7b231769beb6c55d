//! How long clients wait for servers that were never listed.

use std::collections::BTreeMap;
use std::time::Duration;

/// Default of [`FirstListingSettings::wait`]. Some client libraries end a request after 5 s, and some agents `initialize` and
/// the first list together after 10 s.
const DEFAULT_WAIT: Duration = Duration::from_secs(8);
/// The wait of patient clients, and of the command line.
const PATIENT_WAIT: Duration = Duration::from_secs(20);
/// Client programs that wait for any time and list once, by the name that they send.
const PATIENT_CLIENTS: [&str; 1] = ["ai-sdk-mcp-client"];
/// When other servers have answered, a server is waited for until none has for this time.
const QUIET_TIME: Duration = Duration::from_millis(1500);

/// How long clients wait for servers that were never listed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstListingSettings {
    /// The time that a client waits in all: half of it in `initialize`, and half in its first list. With zero, nothing waits,
    /// and a gateway lists nothing before it is asked.
    pub wait: Duration,
    /// The same for client programs, by name.
    pub clients: BTreeMap<String, Duration>,
}

impl Default for FirstListingSettings {
    fn default() -> Self {
        Self::new(DEFAULT_WAIT)
    }
}

/// How long one request waits for servers that were never listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstListingWait {
    /// The time limit of the request.
    pub request: Duration,
    /// The time from the start of a server's discovery until it is no longer waited for.
    pub server: Duration,
    /// The same while other servers have answered: then only until none has answered for [`FirstListingWait::quiet`].
    pub server_among_others: Duration,
    /// The time without an answer of any server that ends the wait then.
    pub quiet: Duration,
}

impl FirstListingWait {
    /// A wait for every server, of at most this time.
    pub const fn at_most(time: Duration) -> Self {
        Self { request: time, server: time, server_among_others: time, quiet: Duration::ZERO }
    }

    /// The wait of the command line.
    pub const PATIENT: Self = Self::at_most(PATIENT_WAIT);
}

impl FirstListingSettings {
    /// Creates settings with one wait for all clients.
    pub fn new(wait: Duration) -> Self {
        Self { wait, clients: BTreeMap::new() }
    }

    /// Returns the wait of one request of a client program.
    pub fn for_client(&self, name: Option<&str>) -> FirstListingWait {
        let own = name.and_then(|name| self.clients.get(name)).copied();
        let is_patient = name.is_some_and(|name| PATIENT_CLIENTS.contains(&name));
        let patient = (is_patient && !self.wait.is_zero()).then(|| self.wait.max(PATIENT_WAIT));
        let server = own.or(patient).unwrap_or(self.wait);
        FirstListingWait { request: server / 2, server, ..self.in_one_request() }
    }

    /// Returns the wait of a program that asks for one list, and for nothing before.
    pub(crate) fn in_one_request(&self) -> FirstListingWait {
        FirstListingWait {
            request: self.wait,
            server: self.wait,
            server_among_others: self.wait.saturating_sub(QUIET_TIME),
            quiet: QUIET_TIME,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn wait_depends_on_the_client() {
        let mut settings = FirstListingSettings::default();
        settings.clients.insert("my-agent".to_owned(), 60 * SECOND);
        settings.clients.insert("ai-sdk-mcp-client".to_owned(), 2 * SECOND);
        let requests = |settings: &FirstListingSettings, name| settings.for_client(name).request;
        assert_eq!(requests(&settings, None), 4 * SECOND);
        assert_eq!(requests(&settings, Some("mcp")), 4 * SECOND);
        assert_eq!(requests(&settings, Some("my-agent")), 30 * SECOND);
        assert_eq!(requests(&settings, Some("ai-sdk-mcp-client")), SECOND, "the config comes first");
        assert_eq!(requests(&FirstListingSettings::default(), Some("ai-sdk-mcp-client")), 10 * SECOND);
        let none = FirstListingSettings::new(Duration::ZERO);
        assert_eq!(requests(&none, Some("ai-sdk-mcp-client")), Duration::ZERO);
    }
}
