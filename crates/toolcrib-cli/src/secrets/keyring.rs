//! `Keyring`: secrets in the keyring of the desktop, by the Secret Service that GNOME, KDE and KeePassXC have. It never
//! opens a window: what is locked is said to be locked.

use std::path::Path;
use std::time::Duration;

use toolcrib::Secret;

use super::dbus::{Bus, Question, Silence};
use super::marshal::{Reader, Writer};

const SERVICE: &str = "org.freedesktop.secrets";
const ROOT: &str = "/org/freedesktop/secrets";
const OF_SERVICE: &str = "org.freedesktop.Secret.Service";
const OF_COLLECTION: &str = "org.freedesktop.Secret.Collection";
const OF_ITEM: &str = "org.freedesktop.Secret.Item";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";

/// The variable that says where the bus of the session is.
pub(super) const BUS: &str = "DBUS_SESSION_BUS_ADDRESS";

/// How long each answer may take.
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

impl From<Silence> for Shut {
    fn from(silence: Silence) -> Self {
        match silence {
            Silence::Nobody(why) => Self::Absent(why),
            Silence::Refused(name) if name.ends_with(".IsLocked") => Self::Locked,
            Silence::Refused(name) => Self::Broken(format!("the keyring says `{name}`")),
            Silence::TooLong => {
                Self::Broken(format!("the keyring said nothing for {} s", PATIENCE.as_secs()))
            }
            Silence::Broken(why) => Self::Broken(why),
        }
    }
}

/// A keyring that answers.
#[derive(Debug)]
pub(super) struct Keyring {
    bus: Bus,
    /// Under which secrets are handed over.
    session: String,
    /// Where new ones go.
    collection: String,
}

fn strange() -> Shut {
    Shut::Broken("the keyring says what cannot be understood".to_owned())
}

impl Keyring {
    /// The keyring of whoever is logged in.
    pub(super) fn open() -> Result<Self, Shut> {
        let address = address(|name| std::env::var(name).ok());
        let bus = Bus::connect(
            &address.ok_or_else(|| Shut::Absent("there is no session bus".to_owned()))?,
            PATIENCE,
        )?;
        let mut keyring = Self { bus, session: String::new(), collection: String::new() };
        let mut plain = Writer::default();
        plain.string("plain");
        plain.signature("s");
        plain.string("");
        let mut opened = keyring.ask(ROOT, OF_SERVICE, "OpenSession", "sv", &plain)?;
        let session = opened.signature().filter(|kind| kind == "s").and_then(|_| {
            opened.string()?;
            opened.string()
        });
        keyring.session = session.ok_or_else(strange)?;
        let mut alias = Writer::default();
        alias.string("default");
        let collection =
            keyring.ask(ROOT, OF_SERVICE, "ReadAlias", "s", &alias)?.string().ok_or_else(strange)?;
        if collection == "/" {
            return Err(Shut::Absent("the keyring has no default collection".to_owned()));
        }
        keyring.collection = collection;
        Ok(keyring)
    }

    fn ask(
        &mut self,
        path: &str,
        interface: &str,
        member: &str,
        signature: &str,
        body: &Writer,
    ) -> Result<Reader, Shut> {
        let question = Question { to: SERVICE, path, interface, member, signature };
        Ok(self.bus.ask(question, body)?)
    }

    fn property(&mut self, path: &str, interface: &str, name: &str) -> Result<(String, Reader), Shut> {
        let mut body = Writer::default();
        body.string(interface);
        body.string(name);
        let mut value = self.ask(path, PROPERTIES, "Get", "ss", &body)?;
        Ok((value.signature().ok_or_else(strange)?, value))
    }

    /// Goes on only if something is open, or opens without a window.
    fn unlocked(&mut self, path: &str, interface: &str) -> Result<(), Shut> {
        let (_, mut locked) = self.property(path, interface, "Locked")?;
        if !locked.flag().ok_or_else(strange)? {
            return Ok(());
        }
        let mut body = Writer::default();
        body.array(4, |writer| writer.string(path));
        let mut answer = self.ask(ROOT, OF_SERVICE, "Unlock", "ao", &body)?;
        let opened = answer.array(4, Reader::string).ok_or_else(strange)?;
        if opened.is_empty() { Err(Shut::Locked) } else { Ok(()) }
    }

    /// The items with these attributes.
    fn items(&mut self, attributes: &[(&str, &str)]) -> Result<Vec<String>, Shut> {
        let mut body = Writer::default();
        body.strings(attributes);
        let mut found = self.ask(ROOT, OF_SERVICE, "SearchItems", "a{ss}", &body)?;
        let open = found.array(4, Reader::string).ok_or_else(strange)?;
        let locked = found.array(4, Reader::string).ok_or_else(strange)?;
        Ok(open.into_iter().chain(locked).collect())
    }

    /// The value of a secret, if there is one.
    pub(super) fn find(&mut self, name: &str) -> Result<Option<Secret>, Shut> {
        let Some(item) = self.items(&[OURS, ("name", name)])?.into_iter().next() else {
            // What a locked keyring holds cannot always be searched.
            let collection = self.collection.clone();
            return self.unlocked(&collection, OF_COLLECTION).map(|()| None);
        };
        self.unlocked(&item, OF_ITEM)?;
        let mut body = Writer::default();
        body.string(&self.session);
        let mut answer = self.ask(&item, OF_ITEM, "GetSecret", "o", &body)?;
        answer.align(8);
        answer.string().ok_or_else(strange)?;
        answer.data().ok_or_else(strange)?;
        let value = answer.data().and_then(|value| std::str::from_utf8(value).ok()).ok_or_else(strange)?;
        Ok(Some(Secret::new(value)))
    }

    /// Keeps a secret in place of the one that has its name.
    pub(super) fn set(&mut self, name: &str, value: &Secret) -> Result<(), Shut> {
        let collection = self.collection.clone();
        self.unlocked(&collection, OF_COLLECTION)?;
        let mut body = Writer::default();
        body.array(8, |writer| {
            writer.align(8);
            writer.string("org.freedesktop.Secret.Item.Label");
            writer.signature("s");
            writer.string(&format!("toolcrib: {name}"));
            writer.align(8);
            writer.string("org.freedesktop.Secret.Item.Attributes");
            writer.signature("a{ss}");
            writer.strings(&[OURS, ("name", name)]);
        });
        body.align(8);
        body.string(&self.session);
        body.data(b"");
        body.data(value.expose().as_bytes());
        body.string("text/plain");
        body.flag(true);
        let mut made = self.ask(&collection, OF_COLLECTION, "CreateItem", "a{sv}(oayays)b", &body)?;
        // No item yet means that it wants to ask somebody first.
        if made.string().ok_or_else(strange)? == "/" { Err(Shut::Locked) } else { Ok(()) }
    }

    /// Forgets a secret; whether there was one.
    pub(super) fn remove(&mut self, name: &str) -> Result<bool, Shut> {
        let items = self.items(&[OURS, ("name", name)])?;
        for item in &items {
            self.unlocked(item, OF_ITEM)?;
            let mut prompt = self.ask(item, OF_ITEM, "Delete", "", &Writer::default())?;
            if prompt.string().ok_or_else(strange)? != "/" {
                return Err(Shut::Locked);
            }
        }
        Ok(!items.is_empty())
    }

    /// Every name.
    pub(super) fn names(&mut self) -> Result<Vec<String>, Shut> {
        let mut names = Vec::new();
        for item in self.items(&[OURS])? {
            let (kind, mut value) = self.property(&item, OF_ITEM, "Attributes")?;
            let attributes = value.strings().filter(|_| kind == "a{ss}").ok_or_else(strange)?;
            names.extend(attributes.into_iter().find(|(key, _)| key == "name").map(|(_, name)| name));
        }
        Ok(names)
    }
}

/// Where the bus of the session is.
fn address(env: impl Fn(&str) -> Option<String>) -> Option<String> {
    let given = env(BUS).filter(|address| !address.is_empty());
    given.or_else(|| {
        let usual = Path::new(&env("XDG_RUNTIME_DIR")?).join("bus");
        usual.exists().then(|| format!("unix:path={}", crate::percent::encode(&usual.to_string_lossy())))
    })
}
