//! OAuth towards remote servers: discovery, client registration, login in a browser, stored tokens and their renewal.
//!
//! [`Login`] is for a person with a browser: it starts with the URL of a server and ends with tokens in the secret store,
//! where every crib with the same store and state folder finds them. [`DeviceLogin`] is the same with a browser on another
//! machine. Grants without a person need no login; the
//! connection to the server requests their tokens itself.
//!
//! The rules of the protocol's revisions differ; `docs/logins.md` has a table. What a server's metadata contains decides, so
//! that no code here asks for the revision.

mod attempt;
pub(crate) mod bearer;
mod challenge;
mod client;
mod device;
mod discovery;
mod error;
mod fetch;
mod in_band;
mod login;
mod logout;
mod metadata;
mod pkce;
mod registration;
mod stored_login;
pub(crate) mod token_exchange;
mod token_request;

pub(crate) use challenge::Challenge;
pub use device::DeviceLogin;
#[cfg(feature = "config")]
pub(crate) use discovery::find_issuer;
pub use error::{OAuthError, OAuthErrorKind};
#[cfg(feature = "config")]
pub(crate) use fetch::Fetcher;
pub use in_band::{LoginFuture, LoginStarter, PendingLogin};
pub use login::{Login, LoginRequest};
pub use stored_login::{LoginState, LoginSummary, Logins};
