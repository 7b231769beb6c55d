//! Secrets in the keyring of the desktop, by the Secret Service that GNOME, KDE and KeePassXC have. No window is ever
//! opened: what is locked is said to be locked. Nobody waits longer than a few seconds.

use std::collections::HashMap;
use std::path::Path;
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime;
use tokio::time::timeout;
use toolcrib::Secret;
use zbus::Connection;
use zbus::connection::Builder;
use zbus::zvariant::{DynamicDeserialize, DynamicType, ObjectPath, OwnedObjectPath, OwnedValue, Value};

const SERVICE: &str = "org.freedesktop.secrets";
const ROOT: ObjectPath<'_> = ObjectPath::from_static_str_unchecked("/org/freedesktop/secrets");
const OF_SERVICE: &str = "org.freedesktop.Secret.Service";
const OF_COLLECTION: &str = "org.freedesktop.Secret.Collection";
const OF_ITEM: &str = "org.freedesktop.Secret.Item";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The variable that says where the bus of the session is.
pub(super) const BUS: &str = "DBUS_SESSION_BUS_ADDRESS";

/// How long it may take to be answered.
const PATIENCE: Duration = Duration::from_secs(3);

/// What every secret of ours is marked with.
const OURS: (&str, &str) = ("application", "toolcrib");

/// Why the keyring is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Shut {
    /// There is none.
    Absent(String),
    /// It is there and locked.
    Locked,
    /// It is there and does not work.
    Broken(String),
}

impl From<zbus::Error> for Shut {
    fn from(error: zbus::Error) -> Self {
        match error {
            zbus::Error::MethodError(name, ..) => refusal(&name),
            error => Self::Broken(error.to_string()),
        }
    }
}

/// Nobody has the name and nobody can be started for it, or the answer is no.
fn refusal(name: &str) -> Shut {
    let absent = ["ServiceUnknown", "NameHasNoOwner"].iter().any(|end| name.ends_with(end))
        || name.starts_with("org.freedesktop.DBus.Error.Spawn");
    match name {
        name if name.ends_with(".IsLocked") => Shut::Locked,
        name if absent => Shut::Absent(name.to_owned()),
        name => Shut::Broken(format!("the keyring says `{name}`")),
    }
}

/// The value of a secret, if there is one.
pub(super) fn find(name: &str) -> Result<Option<Secret>, Shut> {
    within(async |keyring| keyring.find(name).await)
}

/// Keeps a secret in place of the one that has its name.
pub(super) fn set(name: &str, value: &Secret) -> Result<(), Shut> {
    within(async |keyring| keyring.set(name, value).await)
}

/// Forgets a secret; whether there was one.
pub(super) fn remove(name: &str) -> Result<bool, Shut> {
    within(async |keyring| keyring.remove(name).await)
}

/// Every name.
pub(super) fn names() -> Result<Vec<String>, Shut> {
    within(async |keyring| keyring.names().await)
}

/// Asks the keyring of this session, on a thread of its own: whoever asks may be in the middle of something else.
fn within<T: Send>(asks: impl AsyncFnOnce(&Keyring) -> Result<T, Shut> + Send) -> Result<T, Shut> {
    let address = address(|name| std::env::var(name).ok());
    let address = address.ok_or_else(|| Shut::Absent("there is no session bus".to_owned()))?;
    let asked = async move || asks(&Keyring::open(&address).await?).await;
    let ask = || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Shut::Broken(error.to_string()))?;
        let too_long = |_| Shut::Broken(format!("the keyring said nothing for {} s", PATIENCE.as_secs()));
        runtime.block_on(async { timeout(PATIENCE, asked()).await.map_err(too_long) })?
    };
    let broken = |_| Shut::Broken("the keyring could not be asked".to_owned());
    thread::scope(|scope| scope.spawn(ask).join().map_err(broken))?
}

/// A keyring that answers.
#[derive(Debug)]
struct Keyring {
    bus: Connection,
    /// Under which secrets are handed over.
    session: OwnedObjectPath,
    /// Where new ones go.
    collection: OwnedObjectPath,
}

impl Keyring {
    async fn open(address: &str) -> Result<Self, Shut> {
        let absent = |error: zbus::Error| Shut::Absent(error.to_string());
        let bus = Builder::address(address).map_err(absent)?.build().await.map_err(absent)?;
        let plain = ("plain", Value::from(""));
        let (_, session): (OwnedValue, _) = ask(&bus, &ROOT, OF_SERVICE, "OpenSession", &plain).await?;
        let collection: OwnedObjectPath = ask(&bus, &ROOT, OF_SERVICE, "ReadAlias", &"default").await?;
        if collection.as_str() == "/" {
            return Err(Shut::Absent("the keyring has no default collection".to_owned()));
        }
        Ok(Self { bus, session, collection })
    }

    async fn property<T>(&self, path: &ObjectPath<'_>, interface: &str, name: &str) -> Result<T, Shut>
    where
        T: TryFrom<OwnedValue>,
    {
        let value: OwnedValue = ask(&self.bus, path, PROPERTIES, "Get", &(interface, name)).await?;
        value.try_into().map_err(|_| Shut::Broken(format!("the keyring's `{name}` is something else")))
    }

    /// Goes on only if something is open, or opens without a window.
    async fn unlocked(&self, path: &ObjectPath<'_>, interface: &str) -> Result<(), Shut> {
        if !self.property::<bool>(path, interface, "Locked").await? {
            return Ok(());
        }
        let (opened, _): (Vec<OwnedObjectPath>, OwnedObjectPath) =
            ask(&self.bus, &ROOT, OF_SERVICE, "Unlock", &vec![path]).await?;
        if opened.is_empty() { Err(Shut::Locked) } else { Ok(()) }
    }

    /// The items with these attributes.
    async fn items(&self, attributes: &[(&str, &str)]) -> Result<Vec<OwnedObjectPath>, Shut> {
        let attributes: HashMap<_, _> = attributes.iter().copied().collect();
        let (open, locked): (Vec<_>, Vec<_>) =
            ask(&self.bus, &ROOT, OF_SERVICE, "SearchItems", &attributes).await?;
        Ok(open.into_iter().chain(locked).collect())
    }

    async fn find(&self, name: &str) -> Result<Option<Secret>, Shut> {
        let Some(item) = self.items(&[OURS, ("name", name)]).await?.into_iter().next() else {
            // What a locked keyring holds cannot always be searched.
            return self.unlocked(&self.collection, OF_COLLECTION).await.map(|()| None);
        };
        self.unlocked(&item, OF_ITEM).await?;
        let (_, _, value, _): (OwnedObjectPath, Vec<u8>, Vec<u8>, String) =
            ask(&self.bus, &item, OF_ITEM, "GetSecret", &*self.session).await?;
        let value = String::from_utf8(value).map_err(|_| Shut::Broken(format!("`{name}` is no text")))?;
        Ok(Some(Secret::new(value)))
    }

    async fn set(&self, name: &str, value: &Secret) -> Result<(), Shut> {
        self.unlocked(&self.collection, OF_COLLECTION).await?;
        let attributes = HashMap::from([OURS, ("name", name)]);
        let properties = HashMap::from([
            ("org.freedesktop.Secret.Item.Label", Value::from(format!("toolcrib: {name}"))),
            ("org.freedesktop.Secret.Item.Attributes", Value::from(attributes)),
        ]);
        let secret = (&*self.session, &b""[..], value.expose().as_bytes(), "text/plain");
        let (item, _): (OwnedObjectPath, OwnedObjectPath) =
            ask(&self.bus, &self.collection, OF_COLLECTION, "CreateItem", &(properties, secret, true))
                .await?;
        // No item yet means that it wants to ask somebody first.
        if item.as_str() == "/" { Err(Shut::Locked) } else { Ok(()) }
    }

    async fn remove(&self, name: &str) -> Result<bool, Shut> {
        let items = self.items(&[OURS, ("name", name)]).await?;
        for item in &items {
            self.unlocked(item, OF_ITEM).await?;
            let prompt: OwnedObjectPath = ask(&self.bus, item, OF_ITEM, "Delete", &()).await?;
            if prompt.as_str() != "/" {
                return Err(Shut::Locked);
            }
        }
        Ok(!items.is_empty())
    }

    async fn names(&self) -> Result<Vec<String>, Shut> {
        let mut names = Vec::new();
        for item in self.items(&[OURS]).await? {
            let attributes: HashMap<String, String> = self.property(&item, OF_ITEM, "Attributes").await?;
            names.extend(attributes.into_iter().find(|(key, _)| key == "name").map(|(_, name)| name));
        }
        Ok(names)
    }
}

/// Asks something that is there, and reads the answer.
async fn ask<T>(
    bus: &Connection,
    path: &ObjectPath<'_>,
    interface: &str,
    member: &str,
    body: &(impl Serialize + DynamicType),
) -> Result<T, Shut>
where
    T: for<'d> DynamicDeserialize<'d>,
{
    let answer = bus.call_method(Some(SERVICE), path, Some(interface), member, body).await?;
    Ok(answer.body().deserialize()?)
}

/// Where the bus of the session is.
fn address(env: impl Fn(&str) -> Option<String>) -> Option<String> {
    let given = env(BUS).filter(|address| !address.is_empty());
    given.or_else(|| {
        let usual = Path::new(&env("XDG_RUNTIME_DIR")?).join("bus");
        usual.exists().then(|| format!("unix:path={}", crate::percent::encode(&usual.to_string_lossy())))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn opened(address: &str) -> Option<Result<(), Shut>> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let open = async { timeout(Duration::from_millis(200), Keyring::open(address)).await.ok() };
        runtime.block_on(open).map(|opened| opened.map(drop))
    }

    #[test]
    fn a_bus_that_is_not_there_is_said_to_be_absent_and_a_silent_one_is_given_up() {
        for nobody in ["unix:path=/nowhere/bus", "autolaunch:", "nonsense"] {
            let opened = opened(nobody);
            assert!(matches!(opened, Some(Err(Shut::Absent(_)))), "{nobody}: {opened:?}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let _silent = UnixListener::bind(&path).unwrap();
        assert_eq!(opened(&format!("unix:path={}", path.display())), None);
    }

    #[test]
    fn refusals_are_told_apart() {
        assert_eq!(refusal("org.freedesktop.Secret.Error.IsLocked"), Shut::Locked);
        for absent in
            ["org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.Spawn.ChildExited"]
        {
            assert_eq!(refusal(absent), Shut::Absent(absent.to_owned()));
        }
        assert!(matches!(refusal("org.freedesktop.DBus.Error.AccessDenied"), Shut::Broken(_)));
    }
}
