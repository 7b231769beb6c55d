//! Secrets in the desktop keyring, through the Secret Service API of GNOME, KDE and KeePassXC. Never opens a window: a
//! locked keyring is an error.

use std::path::Path;
use std::time::Duration;

use toolcrib::Secret;
use toolcrib::util::encoding;

use super::dbus::{Bus, DbusCall, DbusError};
use super::marshal::{DbusReader, DbusWriter};

const SERVICE: &str = "org.freedesktop.secrets";
const ROOT: &str = "/org/freedesktop/secrets";
const SERVICE_INTERFACE: &str = "org.freedesktop.Secret.Service";
const COLLECTION_INTERFACE: &str = "org.freedesktop.Secret.Collection";
const ITEM_INTERFACE: &str = "org.freedesktop.Secret.Item";
const PROPERTIES_INTERFACE: &str = "org.freedesktop.DBus.Properties";

/// Variable with the address of the session bus.
pub(super) const BUS_VARIABLE: &str = "DBUS_SESSION_BUS_ADDRESS";

/// Time limit of each reply.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Attribute of every secret that toolcrib stores.
const APPLICATION_ATTRIBUTE: (&str, &str) = ("application", "toolcrib");

/// Reason why the keyring cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KeyringError {
    /// There is no keyring.
    Absent(String),
    Locked,
    /// The keyring does not work.
    Broken(String),
}

impl From<DbusError> for KeyringError {
    fn from(error: DbusError) -> Self {
        match error {
            DbusError::Unavailable(reason) => Self::Absent(reason),
            DbusError::Refused(name) if name.ends_with(".IsLocked") => Self::Locked,
            DbusError::Refused(name) => Self::Broken(format!("the keyring replied with the error `{name}`")),
            DbusError::Timeout => {
                Self::Broken(format!("the keyring did not reply within {} s", TIMEOUT.as_secs()))
            }
            DbusError::Broken(reason) => Self::Broken(reason),
        }
    }
}

/// An open connection to the keyring.
#[derive(Debug)]
pub(super) struct Keyring {
    bus: Bus,
    /// Path of the Secret Service session.
    session: String,
    /// Path of the default collection, where new secrets go.
    collection: String,
}

fn malformed_reply() -> KeyringError {
    KeyringError::Broken("malformed reply from the keyring".to_owned())
}

impl Keyring {
    /// Connects to the keyring of the current user.
    pub(super) fn open() -> Result<Self, KeyringError> {
        let address = session_bus_address(|name| std::env::var(name).ok());
        let bus = Bus::connect(
            &address.ok_or_else(|| KeyringError::Absent("there is no session bus".to_owned()))?,
            TIMEOUT,
        )?;
        let mut keyring = Self { bus, session: String::new(), collection: String::new() };
        let mut plain = DbusWriter::default();
        plain.write_string("plain");
        plain.write_signature("s");
        plain.write_string("");
        let mut reply = keyring.call(ROOT, SERVICE_INTERFACE, "OpenSession", "sv", &plain)?;
        let session = reply.read_signature().filter(|signature| signature == "s").and_then(|_| {
            reply.read_string()?;
            reply.read_string()
        });
        keyring.session = session.ok_or_else(malformed_reply)?;
        let mut alias = DbusWriter::default();
        alias.write_string("default");
        let collection = keyring
            .call(ROOT, SERVICE_INTERFACE, "ReadAlias", "s", &alias)?
            .read_string()
            .ok_or_else(malformed_reply)?;
        if collection == "/" {
            return Err(KeyringError::Absent("the keyring has no default collection".to_owned()));
        }
        keyring.collection = collection;
        Ok(keyring)
    }

    fn call(
        &mut self,
        path: &str,
        interface: &str,
        member: &str,
        signature: &str,
        body: &DbusWriter,
    ) -> Result<DbusReader, KeyringError> {
        let call = DbusCall { destination: SERVICE, path, interface, member, signature };
        Ok(self.bus.call(call, body)?)
    }

    /// Returns the signature of a property and its value.
    fn get_property(
        &mut self,
        path: &str,
        interface: &str,
        name: &str,
    ) -> Result<(String, DbusReader), KeyringError> {
        let mut body = DbusWriter::default();
        body.write_string(interface);
        body.write_string(name);
        let mut value = self.call(path, PROPERTIES_INTERFACE, "Get", "ss", &body)?;
        Ok((value.read_signature().ok_or_else(malformed_reply)?, value))
    }

    /// Fails unless an item or collection is unlocked or can be unlocked without a prompt.
    fn ensure_unlocked(&mut self, path: &str, interface: &str) -> Result<(), KeyringError> {
        let (_, mut locked) = self.get_property(path, interface, "Locked")?;
        if !locked.read_bool().ok_or_else(malformed_reply)? {
            return Ok(());
        }
        let mut body = DbusWriter::default();
        body.write_array(4, |writer| writer.write_string(path));
        let mut reply = self.call(ROOT, SERVICE_INTERFACE, "Unlock", "ao", &body)?;
        let unlocked = reply.read_array(4, DbusReader::read_string).ok_or_else(malformed_reply)?;
        if unlocked.is_empty() { Err(KeyringError::Locked) } else { Ok(()) }
    }

    /// Returns the paths of the items with these attributes.
    fn search_items(&mut self, attributes: &[(&str, &str)]) -> Result<Vec<String>, KeyringError> {
        let mut body = DbusWriter::default();
        body.write_string_map(attributes);
        let mut reply = self.call(ROOT, SERVICE_INTERFACE, "SearchItems", "a{ss}", &body)?;
        let unlocked = reply.read_array(4, DbusReader::read_string).ok_or_else(malformed_reply)?;
        let locked = reply.read_array(4, DbusReader::read_string).ok_or_else(malformed_reply)?;
        Ok(unlocked.into_iter().chain(locked).collect())
    }

    /// Returns the value of a secret, if there is one.
    pub(super) fn find(&mut self, name: &str) -> Result<Option<Secret>, KeyringError> {
        let Some(item) = self.search_items(&[APPLICATION_ATTRIBUTE, ("name", name)])?.into_iter().next()
        else {
            // A locked keyring cannot always be searched.
            let collection = self.collection.clone();
            return self.ensure_unlocked(&collection, COLLECTION_INTERFACE).map(|()| None);
        };
        self.ensure_unlocked(&item, ITEM_INTERFACE)?;
        let mut body = DbusWriter::default();
        body.write_string(&self.session);
        let mut reply = self.call(&item, ITEM_INTERFACE, "GetSecret", "o", &body)?;
        reply.align(8);
        reply.read_string().ok_or_else(malformed_reply)?;
        reply.read_bytes().ok_or_else(malformed_reply)?;
        let value = reply
            .read_bytes()
            .and_then(|value| std::str::from_utf8(value).ok())
            .ok_or_else(malformed_reply)?;
        Ok(Some(Secret::new(value)))
    }

    /// Stores a secret. Replaces one with the same name.
    pub(super) fn set(&mut self, name: &str, value: &Secret) -> Result<(), KeyringError> {
        let collection = self.collection.clone();
        self.ensure_unlocked(&collection, COLLECTION_INTERFACE)?;
        let mut body = DbusWriter::default();
        body.write_array(8, |writer| {
            writer.align(8);
            writer.write_string("org.freedesktop.Secret.Item.Label");
            writer.write_signature("s");
            writer.write_string(&format!("toolcrib: {name}"));
            writer.align(8);
            writer.write_string("org.freedesktop.Secret.Item.Attributes");
            writer.write_signature("a{ss}");
            writer.write_string_map(&[APPLICATION_ATTRIBUTE, ("name", name)]);
        });
        body.align(8);
        body.write_string(&self.session);
        body.write_bytes(b"");
        body.write_bytes(value.expose().as_bytes());
        body.write_string("text/plain");
        body.write_bool(true);
        let mut created =
            self.call(&collection, COLLECTION_INTERFACE, "CreateItem", "a{sv}(oayays)b", &body)?;
        // The path `/` means that the keyring wants to show a prompt first.
        if created.read_string().ok_or_else(malformed_reply)? == "/" {
            Err(KeyringError::Locked)
        } else {
            Ok(())
        }
    }

    /// Removes a secret and returns whether there was one.
    pub(super) fn remove(&mut self, name: &str) -> Result<bool, KeyringError> {
        let items = self.search_items(&[APPLICATION_ATTRIBUTE, ("name", name)])?;
        for item in &items {
            self.ensure_unlocked(item, ITEM_INTERFACE)?;
            let mut prompt = self.call(item, ITEM_INTERFACE, "Delete", "", &DbusWriter::default())?;
            if prompt.read_string().ok_or_else(malformed_reply)? != "/" {
                return Err(KeyringError::Locked);
            }
        }
        Ok(!items.is_empty())
    }

    /// Returns the names of all stored secrets.
    pub(super) fn names(&mut self) -> Result<Vec<String>, KeyringError> {
        let mut names = Vec::new();
        for item in self.search_items(&[APPLICATION_ATTRIBUTE])? {
            let (signature, mut value) = self.get_property(&item, ITEM_INTERFACE, "Attributes")?;
            let attributes =
                value.read_string_map().filter(|_| signature == "a{ss}").ok_or_else(malformed_reply)?;
            names.extend(attributes.into_iter().find(|(key, _)| key == "name").map(|(_, name)| name));
        }
        Ok(names)
    }
}

/// Returns the address of the session bus.
fn session_bus_address(env: impl Fn(&str) -> Option<String>) -> Option<String> {
    let configured = env(BUS_VARIABLE).filter(|address| !address.is_empty());
    configured.or_else(|| {
        let default_path = Path::new(&env("XDG_RUNTIME_DIR")?).join("bus");
        default_path
            .exists()
            .then(|| format!("unix:path={}", encoding::percent_encode(&default_path.to_string_lossy())))
    })
}
