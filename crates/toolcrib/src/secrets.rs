//! Resolves the secrets of one connection. Secrets are stored by the embedder.

mod known_callers;
mod redactor;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::spec::ServerSpec;
use crate::spec::template::{Secret, SecretError, TemplateText};
pub use known_callers::KnownCallers;
pub(crate) use redactor::Redactor;

/// The time limit for resolving the secrets of one connection.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);

/// A place where secrets are kept, by name. Methods may block for seconds; the library calls them on a thread where that
/// is allowed. A function from a name to a value is a store that can only be read.
///
/// ```
/// use std::path::Path;
/// use toolcrib::{CommandSpec, Crib, Secret, SecretError, ServerSpec, TemplateText};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let vault = |name: &str| match name {
///     "github" => Ok(Secret::new("ghp_0123")),
///     _ => Err(SecretError::NotFound),
/// };
/// let token = TemplateText::parse("Bearer ${secret:github}", Path::new("/")).map_err(|bad| bad.to_string())?;
/// assert_eq!(token.expand(vault).as_deref(), Ok("Bearer ghp_0123"));
///
/// // `CommandSpec::env` sets a literal text; a reference is a `TemplateText`.
/// let mut command = CommandSpec::new("github-mcp-server").arg("stdio");
/// command.env.insert("AUTHORIZATION".to_owned(), token);
/// let crib = Crib::builder()
///     .server(ServerSpec::command("github".parse()?, command))
///     .secrets(vault)
///     .build()?;
/// # Ok(())
/// # }
/// ```
pub trait SecretStore: Send + Sync {
    /// Returns the value of a secret.
    ///
    /// # Errors
    /// Fails if the secret is not set, the store is locked, or it cannot be read.
    fn get(&self, name: &str) -> Result<Secret, SecretError>;

    /// Sets a secret, and replaces the value that it had.
    ///
    /// # Errors
    /// Fails if the store is read-only or cannot be written.
    fn put(&self, name: &str, value: &Secret) -> Result<(), SecretError> {
        let _ = (name, value);
        Err(SecretError::Failed(READ_ONLY.to_owned()))
    }

    /// Removes a secret and returns whether there was one.
    ///
    /// # Errors
    /// Fails if the store is read-only or cannot be written.
    fn delete(&self, name: &str) -> Result<bool, SecretError> {
        let _ = name;
        Err(SecretError::Failed(READ_ONLY.to_owned()))
    }
}

const READ_ONLY: &str = "this secret store is read-only";

impl<F: Fn(&str) -> Result<Secret, SecretError> + Send + Sync> SecretStore for F {
    fn get(&self, name: &str) -> Result<Secret, SecretError> {
        self(name)
    }
}

/// A shared handle to the embedder's secret store.
#[derive(Clone)]
pub(crate) struct SecretStoreHandle(pub(crate) Arc<dyn SecretStore>);

impl fmt::Debug for SecretStoreHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretStoreHandle")
    }
}

/// The secrets that one connection needs, held while it is being opened.
#[derive(Debug, Default)]
pub(crate) struct ResolvedSecrets(BTreeMap<String, Secret>);

impl ResolvedSecrets {
    /// Looks up every secret that a server's spec names. The error contains the name of the secret that failed.
    pub(crate) async fn resolve(
        spec: &ServerSpec,
        store: Option<&SecretStoreHandle>,
        tasks: &TaskTracker,
    ) -> Result<Self, (String, SecretError)> {
        let texts = spec.endpoint.templates();
        let names: Vec<String> = texts.flat_map(TemplateText::secrets).map(str::to_owned).collect();
        let Some(first) = names.first().cloned() else { return Ok(Self::default()) };
        let Some(store) = store.cloned() else {
            return Err((first, SecretError::Failed("no secret store is configured".to_owned())));
        };
        let lookup = tasks.spawn_blocking(move || {
            let mut values = BTreeMap::new();
            for name in names {
                match store.0.get(&name) {
                    Ok(value) => values.insert(name, value),
                    Err(error) => return Err((name, error)),
                };
            }
            Ok(Self(values))
        });
        match timeout(LOOKUP_TIMEOUT, lookup).await {
            Ok(Ok(resolved)) => resolved,
            Ok(Err(_)) => Err((first, SecretError::Failed("the secret store failed".to_owned()))),
            Err(_) => {
                let reason = format!("the secret store did not answer within {} s", LOOKUP_TIMEOUT.as_secs());
                Err((first, SecretError::Failed(reason)))
            }
        }
    }

    /// Returns a resolved secret.
    pub(crate) fn get(&self, name: &str) -> Result<Secret, SecretError> {
        self.0.get(name).cloned().ok_or(SecretError::NotFound)
    }

    /// Returns a redactor for the resolved secrets and for these values.
    pub(crate) fn redactor(&self, others: &[String]) -> Redactor {
        Redactor::new(self.0.values().map(Secret::expose).chain(others.iter().map(String::as_str)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::spec::CommandSpec;

    fn spec(written: &str) -> ServerSpec {
        let mut command = CommandSpec::new("x");
        command.env.insert("TOKEN".into(), TemplateText::parse(written, Path::new("/")).unwrap());
        ServerSpec::command("a".parse().unwrap(), command)
    }

    async fn resolved(
        written: &str,
        find: impl Fn(&str) -> Result<Secret, SecretError> + Send + Sync + 'static,
    ) -> Result<ResolvedSecrets, (String, SecretError)> {
        ResolvedSecrets::resolve(
            &spec(written),
            Some(&SecretStoreHandle(Arc::new(find))),
            &TaskTracker::new(),
        )
        .await
    }

    #[tokio::test]
    async fn server_without_secrets_calls_no_source() {
        resolved("${env:X}", |_| panic!("called")).await.unwrap();
        let (name, error) =
            ResolvedSecrets::resolve(&spec("${secret:t}"), None, &TaskTracker::new()).await.unwrap_err();
        assert_eq!((name.as_str(), matches!(error, SecretError::Failed(_))), ("t", true));
    }

    #[tokio::test]
    async fn missing_secret_is_named() {
        let only_one = |name: &str| match name {
            "one" => Ok(Secret::new("1")),
            _ => Err(SecretError::NotFound),
        };
        assert_eq!(resolved("${secret:one}", only_one).await.unwrap().get("one").unwrap().expose(), "1");
        let missing = resolved("${secret:one}${secret:two}", only_one).await.unwrap_err();
        assert_eq!(missing, ("two".to_owned(), SecretError::NotFound));
        assert_eq!(missing.1.hint("two"), "toolcrib secret set two");
    }

    #[tokio::test]
    async fn panicking_source_is_an_error() {
        let (name, error) = resolved("${secret:t}", |_| panic!("on purpose")).await.unwrap_err();
        assert_eq!((name.as_str(), error.message("t").contains("cannot read")), ("t", true));
    }

    #[test]
    fn debug_output_hides_values() {
        let secrets = ResolvedSecrets(BTreeMap::from([("t".to_owned(), Secret::new("hunter2-hunter2"))]));
        let shown = format!("{secrets:?} {:?} {:?}", Secret::new("hunter2-hunter2"), secrets.redactor(&[]));
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
