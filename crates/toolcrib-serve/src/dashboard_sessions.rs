//! Logins of browsers to the dashboard: single-use codes, and the sessions that they open.
//!
//! A session has two secrets. One is a cookie, which scripts cannot read; the other is a key that the page sends in a header. A page of another
//! origin can send the cookie but not the key, and another program on this machine, which may get the cookie because
//! browsers do not separate cookies by port, has no key either.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::COOKIE;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use toolcrib::config::Sha256Digest;
use toolcrib::util::encoding;
use toolcrib::util::locks::IgnorePoison as _;

use crate::callers::AuthenticatedCaller;

/// Time in which a login code must be used.
pub const LOGIN_CODE_TTL: Duration = Duration::from_secs(120);
/// Codes that are valid at the same time; an older one is removed.
const MAX_CODES: usize = 16;
/// Time after its last request at which a session ends.
const SESSION_TTL: Duration = Duration::from_secs(12 * 60 * 60);
/// Sessions open at the same time; the one that was used least recently is closed.
const MAX_SESSIONS: usize = 64;
/// The header with the key of a session.
const SESSION_HEADER: &str = "toolcrib-session";

/// The login codes and sessions of the dashboard.
#[derive(Debug)]
pub struct DashboardSessions {
    /// Name of the cookie, which differs from that of other gateways on the same host.
    cookie_name: String,
    state: Mutex<SessionTable>,
}

#[derive(Debug, Default)]
struct SessionTable {
    /// Oldest first.
    codes: VecDeque<LoginCode>,
    /// Least recently used first.
    sessions: VecDeque<BrowserSession>,
}

#[derive(Debug)]
struct LoginCode {
    digest: Sha256Digest,
    expires: Instant,
}

#[derive(Debug)]
struct BrowserSession {
    secrets: SecretDigests,
    access: SessionAccess,
    last_used: Instant,
}

/// The digests of the cookie and the key of a session.
#[derive(Debug)]
struct SecretDigests {
    cookie: Sha256Digest,
    key: Sha256Digest,
}

impl SecretDigests {
    fn matches(&self, other: &Self) -> bool {
        let same_cookie = encoding::constant_time_eq(&self.cookie, &other.cookie);
        let same_key = encoding::constant_time_eq(&self.key, &other.key);
        same_cookie && same_key
    }
}

/// The access that a session has.
#[derive(Debug, Clone)]
pub(crate) enum SessionAccess {
    /// That of the local caller, whose entry a reload may replace.
    Local,
    /// That of a declared caller, until it is revoked.
    Caller(Arc<AuthenticatedCaller>),
}

/// The secrets of a new session.
#[derive(Debug)]
pub(crate) struct SessionSecrets {
    /// Value of the cookie header, without attributes.
    pub(crate) cookie: String,
    /// Value of [`SESSION_HEADER`].
    pub(crate) key: String,
}

impl Default for DashboardSessions {
    fn default() -> Self {
        let suffix = encoding::random_hex().unwrap_or_default();
        Self {
            cookie_name: format!("toolcrib_{}", suffix.get(..8).unwrap_or_default()),
            state: Mutex::default(),
        }
    }
}

impl DashboardSessions {
    /// Creates a code that opens one session of the local caller. Returns `None` without a source of random numbers.
    pub fn create_code(&self, now: Instant) -> Option<String> {
        let code = encoding::random_hex()?;
        let mut state = self.lock();
        state.codes.retain(|code| code.expires > now);
        if state.codes.len() >= MAX_CODES {
            state.codes.pop_front();
        }
        state.codes.push_back(LoginCode { digest: digest(&code), expires: now + LOGIN_CODE_TTL });
        Some(code)
    }

    /// Uses a code. Returns whether it was valid; it is not valid again.
    pub(crate) fn redeem_code(&self, code: &str, now: Instant) -> bool {
        let digest = digest(code);
        let mut state = self.lock();
        let found = state.codes.iter().position(|code| encoding::constant_time_eq(&code.digest, &digest));
        let code = found.and_then(|index| state.codes.remove(index));
        code.is_some_and(|code| code.expires > now)
    }

    /// Opens a session. Returns `None` without a source of random numbers.
    pub(crate) fn open(&self, access: SessionAccess, now: Instant) -> Option<SessionSecrets> {
        let cookie = encoding::random_hex()?;
        let key = encoding::random_hex()?;
        let mut state = self.lock();
        state.remove_ended(now);
        if state.sessions.len() >= MAX_SESSIONS {
            state.sessions.pop_front();
        }
        let secrets = SecretDigests { cookie: digest(&cookie), key: digest(&key) };
        state.sessions.push_back(BrowserSession { secrets, access, last_used: now });
        Some(SessionSecrets { cookie: format!("{}={cookie}", self.cookie_name), key })
    }

    /// Returns the access of the session whose cookie and key a request has.
    pub(crate) fn find(&self, headers: &HeaderMap, now: Instant) -> Option<SessionAccess> {
        let secrets = self.read_secrets(headers)?;
        let mut state = self.lock();
        state.remove_ended(now);
        let mut session = state.take(&secrets)?;
        session.last_used = now;
        let access = session.access.clone();
        state.sessions.push_back(session);
        Some(access)
    }

    /// Ends the session of a request, if it has one.
    pub(crate) fn close(&self, headers: &HeaderMap) {
        if let Some(secrets) = self.read_secrets(headers) {
            self.lock().take(&secrets);
        }
    }

    /// Returns the cookie header that removes the cookie, without attributes.
    pub(crate) fn removed_cookie(&self) -> String {
        format!("{}=", self.cookie_name)
    }

    /// Returns the digests of the cookie and the key that a request has.
    fn read_secrets(&self, headers: &HeaderMap) -> Option<SecretDigests> {
        let key = headers.get(SESSION_HEADER)?.to_str().ok()?;
        let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let mut pairs =
            cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let (_, cookie) = pairs.find(|(name, _)| *name == self.cookie_name)?;
        Some(SecretDigests { cookie: digest(cookie), key: digest(key) })
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.state.lock().ignore_poison()
    }
}

impl SessionTable {
    /// Removes sessions that were not used for too long, or whose caller has lost its access.
    fn remove_ended(&mut self, now: Instant) {
        self.sessions.retain(|session| {
            let is_revoked = match &session.access {
                SessionAccess::Local => false,
                SessionAccess::Caller(access) => access.revoked.is_cancelled(),
            };
            !is_revoked && now < session.last_used + SESSION_TTL
        });
    }

    fn take(&mut self, secrets: &SecretDigests) -> Option<BrowserSession> {
        let found = self.sessions.iter().position(|session| session.secrets.matches(secrets))?;
        self.sessions.remove(found)
    }
}

fn digest(secret: &str) -> Sha256Digest {
    Sha256::digest(secret.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(cookie: &str, key: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_str(&format!("other=1; {cookie}")).unwrap());
        headers.insert(SESSION_HEADER, HeaderValue::from_str(key).unwrap());
        headers
    }

    #[test]
    fn code_is_valid_once_and_for_a_short_time() {
        let sessions = DashboardSessions::default();
        let now = Instant::now();
        let code = sessions.create_code(now).unwrap();
        assert!(!sessions.redeem_code("", now) && !sessions.redeem_code(&code[1..], now));
        assert!(sessions.redeem_code(&code, now) && !sessions.redeem_code(&code, now));
        let late = sessions.create_code(now).unwrap();
        assert!(!sessions.redeem_code(&late, now + LOGIN_CODE_TTL));
        let first = sessions.create_code(now).unwrap();
        (0..MAX_CODES).for_each(|_| drop(sessions.create_code(now)));
        assert!(!sessions.redeem_code(&first, now), "the oldest code makes room");
    }

    #[test]
    fn session_needs_both_secrets_and_ends() {
        let sessions = DashboardSessions::default();
        let now = Instant::now();
        let own = sessions.open(SessionAccess::Local, now).unwrap();
        let other = sessions.open(SessionAccess::Local, now).unwrap();
        let is_open = |cookie: &str, key: &str, now| sessions.find(&headers(cookie, key), now).is_some();
        assert!(is_open(&own.cookie, &own.key, now));
        assert!(!is_open(&own.cookie, &other.key, now) && !is_open(&other.cookie, &own.key, now));
        assert!(!is_open(&own.cookie, "", now) && !is_open("", &own.key, now));
        let mut without_key = headers(&own.cookie, &own.key);
        without_key.remove(SESSION_HEADER);
        assert!(sessions.find(&without_key, now).is_none(), "a page of another origin cannot set the header");
        sessions.close(&headers(&own.cookie, &own.key));
        assert!(!is_open(&own.cookie, &own.key, now) && is_open(&other.cookie, &other.key, now));
        let busy = now + SESSION_TTL - Duration::from_secs(1);
        assert!(is_open(&other.cookie, &other.key, busy), "each request extends it");
        assert!(is_open(&other.cookie, &other.key, busy + Duration::from_secs(2)));
        assert!(!is_open(&other.cookie, &other.key, busy + Duration::from_secs(2) + SESSION_TTL));
    }

    #[test]
    fn session_ends_with_the_access_of_its_caller() {
        let sessions = DashboardSessions::default();
        let now = Instant::now();
        let access = Arc::new(AuthenticatedCaller::trusted(toolcrib::Caller::new("ops"), true));
        let secrets = sessions.open(SessionAccess::Caller(access.clone()), now).unwrap();
        let headers = headers(&secrets.cookie, &secrets.key);
        assert!(sessions.find(&headers, now).is_some());
        access.revoked.cancel();
        assert!(sessions.find(&headers, now).is_none());
    }
}
