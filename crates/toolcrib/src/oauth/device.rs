//! `DeviceLogin`: the device authorization grant (RFC 8628), for a person whose browser runs on another machine.

use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep_until};

use super::attempt::LoginAttempt;
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::Form;
use super::login::LoginRequest;
use super::registration::{DEVICE_GRANT, LoginFlow};
use super::stored_login::LoginSummary;
use super::token_request::{TokenEndpoint, Tokens, shorten};
use crate::spec::secret::Secret;
use crate::util::clock;

/// Time between two requests for the token, unless the authorization server sets it. Also what `slow_down` adds.
const DEFAULT_INTERVAL: Duration = Duration::from_secs(5);
/// Longest time that a code is taken to be valid.
const MAX_LIFETIME: Duration = Duration::from_secs(3600);

/// A login that has been started. A person opens [`DeviceLogin::url`] on any machine and enters [`DeviceLogin::user_code`];
/// [`DeviceLogin::finish`] waits for that.
pub struct DeviceLogin {
    attempt: LoginAttempt,
    device_code: Secret,
    user_code: String,
    url: String,
    schedule: PollSchedule,
}

/// When the authorization server is asked for the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PollSchedule {
    interval: Duration,
    lifetime: Duration,
}

impl std::fmt::Debug for DeviceLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceLogin").field("server", self.attempt.server()).finish_non_exhaustive()
    }
}

impl DeviceLogin {
    /// Finds the authorization server, registers this client if necessary, and requests a code.
    ///
    /// # Errors
    /// Fails like [`Login::start`](super::Login::start), and if the authorization server does not offer device codes.
    ///
    /// # Cancel safety
    /// Cancel safe, but a client that was registered is not used again.
    pub async fn start(request: LoginRequest<'_>) -> Result<Self, OAuthError> {
        let attempt = LoginAttempt::start(request, LoginFlow::Device).await?;
        let url = attempt.issuer().device_endpoint.as_deref().unwrap_or_default();
        let endpoint = TokenEndpoint { url, ..attempt.token_endpoint() };
        let form = Form::default()
            .field("resource", &attempt.discovered.resource)
            .optional("scope", attempt.scope().as_deref());
        let answer = endpoint.send(form).await?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str).map(str::to_owned);
        let (Some(device_code), Some(user_code), Some(plain_url)) =
            (text("device_code"), text("user_code"), text("verification_uri"))
        else {
            let message = "the authorization server's answer has no device code";
            return Err(OAuthError::new(OAuthErrorKind::TokenRefused, message));
        };
        let url = text("verification_uri_complete").unwrap_or(plain_url);
        attempt.fetcher.check_url(&url)?;
        let schedule = PollSchedule::from_answer(&answer);
        let user_code = shorten(&user_code);
        Ok(Self { attempt, device_code: Secret::new(device_code), user_code, url, schedule })
    }

    /// Returns the URL to open in a browser.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the code that the person compares or enters there.
    pub fn user_code(&self) -> &str {
        &self.user_code
    }

    /// Waits until the person has logged in, and stores the tokens.
    ///
    /// # Errors
    /// Fails if the login is refused, if the code expires, or if the tokens cannot be stored.
    ///
    /// # Cancel safety
    /// Not cancel safe: tokens that were issued and not stored yet are lost.
    pub async fn finish(self) -> Result<LoginSummary, OAuthError> {
        let endpoint = self.attempt.token_endpoint();
        let request = || {
            let form = Form::default()
                .field("grant_type", DEVICE_GRANT)
                .secret("device_code", self.device_code.expose())
                .field("resource", &self.attempt.discovered.resource);
            endpoint.request(form, clock::wall_time())
        };
        let tokens = poll(self.schedule, request).await?;
        self.attempt.store(tokens).await
    }
}

impl PollSchedule {
    fn from_answer(answer: &Value) -> Self {
        let seconds = |name: &str| answer.get(name).and_then(Value::as_u64).map(Duration::from_secs);
        Self {
            interval: seconds("interval")
                .unwrap_or(DEFAULT_INTERVAL)
                .clamp(Duration::from_secs(1), MAX_LIFETIME),
            lifetime: seconds("expires_in").unwrap_or(MAX_LIFETIME).min(MAX_LIFETIME),
        }
    }
}

/// Requests the tokens until the person has logged in, as often as the authorization server allows.
async fn poll<F: Future<Output = Result<Tokens, OAuthError>>>(
    schedule: PollSchedule,
    mut request: impl FnMut() -> F,
) -> Result<Tokens, OAuthError> {
    let PollSchedule { mut interval, lifetime } = schedule;
    let expires = Instant::now() + lifetime;
    loop {
        sleep_until(expires.min(Instant::now() + interval)).await;
        if Instant::now() >= expires {
            return Err(code_expired());
        }
        let error = match request().await {
            Ok(tokens) => return Ok(tokens),
            Err(error) => error,
        };
        match error.code() {
            "authorization_pending" => {}
            "slow_down" => interval += DEFAULT_INTERVAL,
            "expired_token" => return Err(code_expired()),
            "access_denied" => {
                return Err(OAuthError::new(OAuthErrorKind::Denied, "the login was refused"));
            }
            // An authorization server that cannot be reached may be overloaded.
            _ if error.kind() == OAuthErrorKind::Unreachable => interval *= 2,
            _ => return Err(error),
        }
    }
}

fn code_expired() -> OAuthError {
    OAuthError::new(OAuthErrorKind::CodeExpired, "no one logged in while the code was valid")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use serde_json::json;

    use super::*;

    /// Polls with these answers and returns the end, and the seconds at which requests were made.
    async fn run(lifetime: u64, answers: &[&str]) -> (Result<Tokens, OAuthError>, Vec<u64>) {
        let schedule = PollSchedule { interval: DEFAULT_INTERVAL, lifetime: Duration::from_secs(lifetime) };
        let began = Instant::now();
        let mut answers: VecDeque<&str> = answers.iter().copied().collect();
        let mut times = Vec::new();
        let end = poll(schedule, || {
            times.push(began.elapsed().as_secs());
            let answer = answers.pop_front().unwrap();
            std::future::ready(match answer {
                "tokens" => Ok(Tokens {
                    access_token: Secret::new("t"),
                    refresh_token: None,
                    expires_at: None,
                    renew_at: None,
                    scopes: None,
                }),
                "unreachable" => Err(OAuthError::new(OAuthErrorKind::Unreachable, "")),
                code => {
                    Err(OAuthError::new(OAuthErrorKind::TokenRefused, "refused").with_code(code.to_owned()))
                }
            })
        });
        (end.await, times)
    }

    #[tokio::test(start_paused = true)]
    async fn poll_waits_as_long_as_the_server_asks_for() {
        let answers =
            ["authorization_pending", "slow_down", "authorization_pending", "unreachable", "tokens"];
        let (end, times) = run(600, &answers).await;
        assert!(end.is_ok());
        assert_eq!(times, [5, 10, 20, 30, 50]);
    }

    #[tokio::test(start_paused = true)]
    async fn poll_ends_with_the_reason() {
        for (answers, lifetime, expected) in [
            (&["access_denied"][..], 600, OAuthErrorKind::Denied),
            (&["authorization_pending", "expired_token"], 600, OAuthErrorKind::CodeExpired),
            (&["authorization_pending", "authorization_pending"], 12, OAuthErrorKind::CodeExpired),
            (&["invalid_client"], 600, OAuthErrorKind::TokenRefused),
        ] {
            let began = Instant::now();
            let (end, times) = run(lifetime, answers).await;
            assert_eq!(end.unwrap_err().kind(), expected);
            assert_eq!(times.len(), answers.len());
            assert!(began.elapsed() <= Duration::from_secs(lifetime));
        }
    }

    #[test]
    fn schedule_has_bounds() {
        let schedule = |answer: Value| PollSchedule::from_answer(&answer);
        let default = PollSchedule { interval: DEFAULT_INTERVAL, lifetime: MAX_LIFETIME };
        assert_eq!(schedule(json!({})), default);
        assert_eq!(schedule(json!({"interval": "x", "expires_in": u64::MAX})), default);
        assert_eq!(schedule(json!({"interval": 0})).interval, Duration::from_secs(1));
    }
}
