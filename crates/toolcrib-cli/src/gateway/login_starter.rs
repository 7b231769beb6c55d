//! Logins that clients of the gateway are asked for. The browser returns to a port of this machine.

use toolcrib::oauth::{
    Login, LoginFuture, LoginRequest, LoginStarter, Logins, OAuthError, OAuthErrorKind, PendingLogin,
};
use toolcrib::{Caller, ServerSpec};

use crate::redirect_listener::RedirectListener;

/// Starts logins for clients of the gateway.
#[derive(Debug)]
pub(super) struct LoopbackLogins {
    /// True if clients may be on other machines, whose browsers cannot return to this one.
    pub(super) is_exposed: bool,
}

impl LoginStarter for LoopbackLogins {
    fn start(
        &self,
        server: ServerSpec,
        caller: Caller,
        logins: Logins,
    ) -> LoginFuture<Result<PendingLogin, OAuthError>> {
        let is_elsewhere = self.is_exposed && !caller.is_local();
        Box::pin(async move {
            if is_elsewhere {
                let message = format!(
                    "the browser of the caller may be on another machine; run `toolcrib login {} --as {}` on this one",
                    server.id,
                    caller.as_str()
                );
                return Err(OAuthError::new(OAuthErrorKind::NotOffered, message));
            }
            start(&server, &logins).await
        })
    }
}

async fn start(server: &ServerSpec, logins: &Logins) -> Result<PendingLogin, OAuthError> {
    let no_port = |error: std::io::Error| {
        OAuthError::new(OAuthErrorKind::Settings, format!("no port for the browser to return to: {error}"))
    };
    let listener = RedirectListener::bind_for(logins, &server.id).await.map_err(no_port)?;
    let redirect_uri = listener.redirect_uri();
    let login = Login::start(LoginRequest { server, logins, redirect_uri: &redirect_uri }).await?;
    let url = login.url().to_owned();
    let finished = Box::pin(async move {
        let redirect = listener.redirect_of(&login).await.map_err(no_port)?;
        let finished = login.finish(&redirect.url).await;
        redirect.answer_finished(&finished).await;
        finished
    });
    Ok(PendingLogin { url, finished })
}
