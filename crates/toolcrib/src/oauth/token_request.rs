//! Requests to the token endpoint.

use std::time::{Duration, SystemTime};

use serde_json::Value;

use super::client::OAuthClient;
use super::error::{OAuthError, OAuthErrorKind};
use super::fetch::{Fetcher, Form};
use crate::secrets::Redactor;
use crate::spec::secret::Secret;

/// Longest time before its expiry from which a token is renewed.
const MARGIN: Duration = Duration::from_secs(30);
/// Maximum size of a token.
pub(super) const MAX_TOKEN_BYTES: usize = 64 << 10;

/// Tokens that an authorization server issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) access_token: Secret,
    pub(super) refresh_token: Option<Secret>,
    pub(super) expires_at: Option<SystemTime>,
    /// When the access token is renewed: half a minute before it expires, or a tenth of its life if that is shorter.
    pub(super) renew_at: Option<SystemTime>,
    /// Scopes that were granted, if the server says so.
    pub(super) scopes: Option<Vec<String>>,
}

/// A token endpoint, and the client that uses it.
pub(super) struct TokenEndpoint<'a> {
    pub(super) fetcher: &'a Fetcher,
    pub(super) url: &'a str,
    pub(super) client: &'a OAuthClient,
}

impl TokenEndpoint<'_> {
    /// Requests tokens. `now` is the time from which their validity counts.
    pub(super) async fn request(&self, form: Form, now: SystemTime) -> Result<Tokens, OAuthError> {
        let answer = self.send(form).await?;
        read_tokens(&answer, now).ok_or_else(|| {
            OAuthError::new(
                OAuthErrorKind::TokenRefused,
                "the authorization server's answer has no bearer token, or one that cannot be sent",
            )
        })
    }

    /// Sends a form and returns the answer, if it is a success.
    pub(super) async fn send(&self, form: Form) -> Result<Value, OAuthError> {
        let request = self.client.authenticate(form)?;
        // An authorization server may repeat what it was sent.
        let redactor = Redactor::new(request.form.secrets.iter().map(Secret::expose));
        let answer = self.fetcher.post_form(self.url, request.authorization, request.form).await?;
        let document = answer.json().unwrap_or_default();
        match answer.status.is_success() {
            true => Ok(document),
            false => Err(refusal(answer.status.as_u16(), &document, &redactor)),
        }
    }
}

fn refusal(status: u16, document: &Value, redactor: &Redactor) -> OAuthError {
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    let member = |name: &str| text(name).map(|text| shorten(&redactor.redact(text)));
    let code = member("error").unwrap_or_default();
    let kind = match code.as_str() {
        "invalid_grant" => OAuthErrorKind::InvalidGrant,
        // Some overloaded servers and proxies add a code of their own.
        _ if status >= 500 || status == 429 => OAuthErrorKind::Unreachable,
        _ => OAuthErrorKind::TokenRefused,
    };
    let description = member("error_description").map(|text| format!(": {text}")).unwrap_or_default();
    let shown_code = if code.is_empty() { String::new() } else { format!(" `{code}`") };
    let message = format!("the authorization server answered HTTP {status}{shown_code}{description}");
    OAuthError::new(kind, message).with_code(code)
}

/// Returns the beginning of a text from another party, as one line.
pub(super) fn shorten(text: &str) -> String {
    text.chars().take(200).map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn read_tokens(answer: &Value, now: SystemTime) -> Option<Tokens> {
    let text = |name: &str| answer.get(name).and_then(Value::as_str);
    if text("token_type").is_some_and(|kind| !kind.eq_ignore_ascii_case("bearer")) {
        return None;
    }
    let access_token = text("access_token").filter(|token| is_header_safe(token))?;
    let seconds =
        answer.get("expires_in").and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()));
    let life = seconds.map(Duration::from_secs);
    let renew_after = life.map(|life| life.saturating_sub(MARGIN.min(life / 10)));
    Some(Tokens {
        access_token: Secret::new(access_token),
        refresh_token: text("refresh_token").map(Secret::new),
        expires_at: life.and_then(|life| now.checked_add(life)),
        renew_at: renew_after.and_then(|after| now.checked_add(after)),
        scopes: text("scope").map(|scopes| scopes.split_ascii_whitespace().map(str::to_owned).collect()),
    })
}

/// Returns whether a token can be sent in a header.
pub(super) fn is_header_safe(token: &str) -> bool {
    (1..=MAX_TOKEN_BYTES).contains(&token.len()) && token.bytes().all(|byte| byte.is_ascii_graphic())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_bearer_tokens_are_accepted() {
        let now = SystemTime::UNIX_EPOCH;
        let answer = json!({"access_token": "t", "token_type": "bearer", "expires_in": "60", "scope": "a b"});
        let tokens = read_tokens(&answer, now).unwrap();
        assert_eq!(tokens.expires_at, Some(now + Duration::from_secs(60)));
        assert_eq!(tokens.renew_at, Some(now + Duration::from_secs(54)));
        assert_eq!(tokens.scopes.unwrap(), ["a", "b"]);
        for bad in [
            json!({"access_token": "t", "token_type": "DPoP"}),
            json!({"access_token": "a\nb"}),
            json!({"access_token": ""}),
            json!({"access_token": "x".repeat(MAX_TOKEN_BYTES + 1)}),
            json!({}),
            json!([]),
        ] {
            assert_eq!(read_tokens(&bad, now), None, "{bad}");
        }
        let endless = json!({"access_token": "t", "expires_in": u64::MAX});
        assert_eq!(read_tokens(&endless, now).unwrap().expires_at, None);
    }

    #[test]
    fn refusal_says_what_the_authorization_server_said() {
        let redactor = Redactor::new(["refresh-1"].into_iter());
        let answer = json!({"error": "invalid_grant", "error_description": "refresh-1 is revoked"});
        let error = refusal(400, &answer, &redactor);
        assert_eq!(error.kind(), OAuthErrorKind::InvalidGrant);
        assert_eq!(
            error.to_string(),
            "the authorization server answered HTTP 400 `invalid_grant`: [secret] is revoked"
        );
        assert_eq!(refusal(503, &Value::Null, &redactor).kind(), OAuthErrorKind::Unreachable);
        let busy = json!({"error": "temporarily_unavailable"});
        assert_eq!(refusal(503, &busy, &redactor).kind(), OAuthErrorKind::Unreachable);
        assert_eq!(refusal(400, &Value::Null, &redactor).kind(), OAuthErrorKind::TokenRefused);
        let forged = json!({"error": "x\nhint: run this"});
        assert!(!refusal(400, &forged, &redactor).to_string().contains('\n'), "a hint of another party");
    }
}
