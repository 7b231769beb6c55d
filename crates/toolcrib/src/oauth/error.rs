//! `OAuthError`: why there is no token.

use std::fmt;

/// The reason why a login failed or a token was not issued.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuthError {
    kind: OAuthErrorKind,
    message: String,
    /// The error code of the authorization server; empty if it sent none.
    code: String,
}

/// The step that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OAuthErrorKind {
    /// The server does not ask for a login.
    NotRequired,
    /// The metadata of the server or of its authorization server is missing, inconsistent or not allowed.
    InvalidMetadata,
    /// The authorization server does not offer this way to log in.
    NotOffered,
    /// The authorization server did not register this client.
    Registration,
    /// The redirect does not belong to this login, or has no code.
    InvalidRedirect,
    /// The redirect has another `state`.
    WrongState,
    /// The redirect comes from another authorization server.
    WrongIssuer,
    /// The person or the authorization server refused the login.
    Denied,
    /// No one logged in while the code was valid.
    CodeExpired,
    /// The authorization server no longer accepts the code or the refresh token.
    InvalidGrant,
    /// The authorization server refused the request for a token.
    TokenRefused,
    /// The authorization server did not answer in time, or not at all.
    Unreachable,
    /// The login is needed, or has ended.
    LoginNeeded,
    /// The login cannot be read from or written to the secret store.
    Store,
    /// The settings in `auth` cannot be used.
    Settings,
}

impl OAuthErrorKind {
    /// Returns the name for scripts.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotRequired => "login_not_required",
            Self::InvalidMetadata => "invalid_metadata",
            Self::NotOffered => "not_offered",
            Self::Registration => "registration_failed",
            Self::InvalidRedirect => "invalid_redirect",
            Self::WrongState => "wrong_state",
            Self::WrongIssuer => "wrong_issuer",
            Self::Denied => "login_denied",
            Self::CodeExpired => "code_expired",
            Self::InvalidGrant => "invalid_grant",
            Self::TokenRefused => "token_refused",
            Self::Unreachable => "unreachable",
            Self::LoginNeeded => "login_needed",
            Self::Store => "login_store",
            Self::Settings => "invalid_auth",
        }
    }
}

impl OAuthError {
    /// Creates an error. The message must contain no token and no code.
    pub fn new(kind: OAuthErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), code: String::new() }
    }

    /// Adds the error code of the authorization server.
    pub(super) fn with_code(self, code: String) -> Self {
        Self { code, ..self }
    }

    /// Returns the error code of the authorization server, or an empty text.
    pub(super) fn code(&self) -> &str {
        &self.code
    }

    /// Returns whether the authorization server, which answered a refresh with this error, no longer accepts the login: the
    /// refresh token, or the client that it was issued to. An answer without a code may be that of a proxy on the way.
    pub(super) fn ends_login(&self) -> bool {
        let is_refusal = matches!(self.kind, OAuthErrorKind::InvalidGrant | OAuthErrorKind::TokenRefused);
        is_refusal && !self.code.is_empty()
    }

    #[cfg(feature = "config")]
    pub(crate) fn invalid_metadata(message: impl Into<String>) -> Self {
        Self::new(OAuthErrorKind::InvalidMetadata, message)
    }

    /// Returns the step that failed.
    pub fn kind(&self) -> OAuthErrorKind {
        self.kind
    }
}

impl fmt::Display for OAuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for OAuthError {}
