//! Requests with a bearer token that is loaded or renewed when needed.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::auth::{Auth, AuthDecision, AuthHeaders, AuthRejection};
use crate::oauth::Challenge;
use crate::oauth::bearer::{BearerTokens, ReadyToken};

/// Sends the token of a login, or one that was requested without a person.
#[derive(Debug)]
pub(super) struct BearerAuth(pub(super) Arc<BearerTokens>);

impl Auth for BearerAuth {
    fn headers<'a>(&'a self, base: &'a HeaderMap) -> AuthHeaders<'a> {
        match self.0.ready() {
            ReadyToken::Header(header) => AuthHeaders::Ready(Cow::Owned(with_token(base, header))),
            ReadyToken::NoLogin => AuthHeaders::Ready(Cow::Borrowed(base)),
            ReadyToken::NotReady => AuthHeaders::Pending(Box::pin(async move {
                let header = self.0.fetch().await?;
                Ok(header.map_or_else(|| base.clone(), |header| with_token(base, header)))
            })),
        }
    }

    fn rejected(&self, rejection: &AuthRejection<'_>) -> AuthDecision {
        let challenge = rejection.challenge.and_then(|value| Challenge::parse(value.to_str().ok()?));
        let is_insufficient = challenge.as_ref().is_some_and(Challenge::is_insufficient_scope);
        let is_about_the_token = rejection.status == hyper::StatusCode::UNAUTHORIZED || is_insufficient;
        let may_retry =
            is_about_the_token && self.0.refuse(rejection.sent.get(AUTHORIZATION), challenge.as_ref());
        if may_retry { AuthDecision::Retry } else { AuthDecision::Fail }
    }
}

fn with_token(base: &HeaderMap, header: HeaderValue) -> HeaderMap {
    let mut headers = base.clone();
    headers.insert(AUTHORIZATION, header);
    headers
}
