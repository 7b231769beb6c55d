//! Secrets: where the values behind `${secret:NAME}` come from, and the purse in which one connection holds its own.
//! Nothing here stores a secret; that is for the embedder.

mod mask;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::spec::ServerSpec;
use crate::text::{NoSecret, Secret, Text};
pub(crate) use mask::Mask;

/// How long whoever keeps the secrets may take over those of one connection.
const PATIENCE: Duration = Duration::from_secs(15);

/// Whoever keeps the secrets.
#[derive(Clone)]
pub(crate) struct Source(pub(crate) Arc<Find>);

pub(crate) type Find = dyn Fn(&str) -> Result<Secret, NoSecret> + Send + Sync;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Source")
    }
}

/// The secrets that one connection needs, in hand for as long as it is being made.
#[derive(Debug, Default)]
pub(crate) struct Purse(BTreeMap<String, Secret>);

impl Purse {
    /// Asks for every secret that a server's spec names; else says which is missing. Nobody is asked for a server without
    /// any.
    pub(crate) async fn fill(
        spec: &ServerSpec,
        source: Option<&Source>,
        tasks: &TaskTracker,
    ) -> Result<Self, (String, NoSecret)> {
        let texts = spec.endpoint.texts();
        let names: Vec<String> = texts.flat_map(Text::secrets).map(str::to_owned).collect();
        let Some(first) = names.first().cloned() else { return Ok(Self::default()) };
        let Some(source) = source.cloned() else {
            return Err((first, NoSecret::Failed("nobody keeps secrets here".to_owned())));
        };
        let asked = tasks.spawn_blocking(move || {
            let mut values = BTreeMap::new();
            for name in names {
                match (source.0)(&name) {
                    Ok(value) => values.insert(name, value),
                    Err(none) => return Err((name, none)),
                };
            }
            Ok(Self(values))
        });
        match timeout(PATIENCE, asked).await {
            Ok(Ok(filled)) => filled,
            Ok(Err(_)) => Err((first, NoSecret::Failed("whoever keeps it failed".to_owned()))),
            Err(_) => {
                let why = format!("whoever keeps it said nothing for {} s", PATIENCE.as_secs());
                Err((first, NoSecret::Failed(why)))
            }
        }
    }

    /// One that was asked for.
    pub(crate) fn get(&self, name: &str) -> Result<Secret, NoSecret> {
        self.0.get(name).cloned().ok_or(NoSecret::NotFound)
    }

    /// Hides what is in it.
    pub(crate) fn mask(&self) -> Mask {
        Mask::of(self.0.values().map(Secret::expose))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::spec::CommandSpec;

    fn spec(written: &str) -> ServerSpec {
        let mut command = CommandSpec::new("x");
        command.env.insert("TOKEN".into(), Text::parse(written, Path::new("/")).unwrap());
        ServerSpec::command("a".parse().unwrap(), command)
    }

    async fn filled(
        written: &str,
        find: impl Fn(&str) -> Result<Secret, NoSecret> + Send + Sync + 'static,
    ) -> Result<Purse, (String, NoSecret)> {
        Purse::fill(&spec(written), Some(&Source(Arc::new(find))), &TaskTracker::new()).await
    }

    #[tokio::test]
    async fn a_server_without_secrets_asks_nobody() {
        filled("${env:X}", |_| panic!("asked")).await.unwrap();
        let (name, none) = Purse::fill(&spec("${secret:t}"), None, &TaskTracker::new()).await.unwrap_err();
        assert_eq!((name.as_str(), matches!(none, NoSecret::Failed(_))), ("t", true));
    }

    #[tokio::test]
    async fn the_one_that_is_missing_is_named() {
        let only_one = |name: &str| match name {
            "one" => Ok(Secret::new("1")),
            _ => Err(NoSecret::NotFound),
        };
        assert_eq!(filled("${secret:one}", only_one).await.unwrap().get("one").unwrap().expose(), "1");
        let missing = filled("${secret:one}${secret:two}", only_one).await.unwrap_err();
        assert_eq!(missing, ("two".to_owned(), NoSecret::NotFound));
        assert_eq!(missing.1.hint("two"), "toolcrib secret set two");
    }

    #[tokio::test]
    async fn one_who_fails_takes_nobody_along() {
        let (name, none) = filled("${secret:t}", |_| panic!("on purpose")).await.unwrap_err();
        assert_eq!((name.as_str(), none.of("t").contains("cannot be had")), ("t", true));
    }

    #[test]
    fn nothing_shows_a_value() {
        let purse = Purse(BTreeMap::from([("t".to_owned(), Secret::new("hunter2-hunter2"))]));
        let shown = format!("{purse:?} {:?} {:?}", Secret::new("hunter2-hunter2"), purse.mask());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
