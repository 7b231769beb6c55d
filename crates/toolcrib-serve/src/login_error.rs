//! `LoginError`: why the caller of a request is not known, and the response to it where issuers are declared.

use hyper::header::{HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use toolcrib::identity::TokenError;

use crate::body::ResponseBody;
use crate::callers::IssuedCallers;
use crate::resource::{ChallengeError, ResourceUrl};
use crate::response::error_response;

/// The reason why the caller of a request is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LoginError {
    /// The request has no token.
    Missing,
    /// The token is neither that of a declared caller nor one of an issuer.
    UnknownToken,
    /// The token of an issuer is not accepted.
    Refused(TokenError),
}

impl LoginError {
    /// Returns the response, which tells a client where it can get a token.
    pub(crate) fn response(&self, issued: &IssuedCallers, resource: &ResourceUrl) -> Response<ResponseBody> {
        let message = match self {
            Self::Missing => "log in with the authorization server that the resource metadata names, \
                              or send `Authorization: Bearer TOKEN`"
                .to_owned(),
            Self::UnknownToken => "unknown token".to_owned(),
            Self::Refused(reason) => reason.to_string(),
        };
        let error = ChallengeError { code: "invalid_token", description: &message };
        match self {
            Self::Refused(
                TokenError::KeysUnavailable(_) | TokenError::TooManyLogins | TokenError::TooManyClients,
            ) => {
                let mut response = error_response(StatusCode::SERVICE_UNAVAILABLE, &message);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
                response
            }
            // Another token of the same caller would not help.
            Self::Refused(TokenError::NotInGroups) => error_response(StatusCode::FORBIDDEN, &message),
            Self::Missing | Self::UnknownToken | Self::Refused(_) => {
                let error = Some(error).filter(|_| *self != Self::Missing);
                let challenge = resource.challenge(&issued.requested_scopes(resource), error);
                with_challenge(StatusCode::UNAUTHORIZED, &message, challenge)
            }
        }
    }
}

/// Returns the response to a request whose token lacks the scope of its endpoint.
pub(crate) fn insufficient_scope(issued: &IssuedCallers, resource: &ResourceUrl) -> Response<ResponseBody> {
    let scope = resource.required_scope().unwrap_or_default();
    let message = format!("the token lacks the scope `{scope}`");
    let error = ChallengeError { code: "insufficient_scope", description: &message };
    let challenge = resource.challenge(&issued.requested_scopes(resource), Some(error));
    with_challenge(StatusCode::FORBIDDEN, &message, challenge)
}

fn with_challenge(status: StatusCode, message: &str, challenge: HeaderValue) -> Response<ResponseBody> {
    let mut response = error_response(status, message);
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}
