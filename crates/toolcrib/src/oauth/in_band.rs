//! Logins that a client asks its person for while a call waits.

use std::future::Future;
use std::pin::Pin;

use super::error::OAuthError;
use super::stored_login::{LoginSummary, Logins};
use crate::model::caller::Caller;
use crate::spec::ServerSpec;

/// Starts logins for clients that can show a URL to a person. The program decides where the browser returns to.
///
/// Such a client is asked when a call fails because the server needs a login, and the call is made again after it. A caller
/// other than the local one is asked only for servers to which each caller has its own login. Nothing here opens a browser.
pub trait LoginStarter: Send + Sync {
    /// Starts a login to a server for a caller, to be stored in `logins`.
    fn start(
        &self,
        server: ServerSpec,
        caller: Caller,
        logins: Logins,
    ) -> LoginFuture<Result<PendingLogin, OAuthError>>;
}

/// The future of a login or of its start.
pub type LoginFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A login that waits for a person. Dropping it ends the login.
pub struct PendingLogin {
    /// The URL that the person opens.
    pub url: String,
    /// Waits for the browser and stores the tokens.
    pub finished: LoginFuture<Result<LoginSummary, OAuthError>>,
}

impl std::fmt::Debug for PendingLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingLogin").finish_non_exhaustive()
    }
}
