//! Reads `store`.

use std::num::NonZeroU32;
use std::time::Duration;

use super::Origin;
use super::keys::{ConfigKey, ValueKind, key};
use super::reader::TableReader;
use crate::spec::template::TemplateText;

/// Default of `store.prefix`.
const DEFAULT_PREFIX: &str = "toolcrib";
/// Default of `store.connect-timeout`.
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Default of `store.timeout`.
const DEFAULT_TIMEOUT: Duration = Duration::from_millis(500);

/// Keys of the section.
pub(super) const KEYS: &[ConfigKey] = &[
    key(
        "url",
        ValueKind::Text,
        "",
        "Servers: `valkey://USER:PASSWORD@HOST:PORT/DATABASE`, `valkeys://` for TLS, `valkey+unix:///PATH`, `valkey-sentinel://HOST,HOST/PRIMARY`, `valkey-cluster://HOST,HOST`, or the same with `redis`; without it, state is kept in memory and files",
    ),
    key(
        "key",
        ValueKind::Text,
        "",
        "Key of at least 32 bytes that signs the states which clients return, the same for all gateways, such as `${secret:toolcrib-key}`; by default a file in the state folder",
    ),
    key(
        "address",
        ValueKind::Text,
        "",
        "URL at which the other gateways reach this one, such as `http://${env:POD_IP}:7717`; requests for its sessions are forwarded to it. By default the address that it listens on, if other machines can reach that",
    ),
    key("prefix", ValueKind::Text, "toolcrib", "What all keys in the store start with"),
    key(
        "limit-lease",
        ValueKind::Integer,
        "1",
        "Calls that are reserved at once for each caller and limit; above 1, most calls need no round trip to the store, and limits are less exact",
    ),
    key("connect-timeout", ValueKind::Duration, "1s", "Longest time for connecting to the store"),
    key("timeout", ValueKind::Duration, "500ms", "Longest time for one operation of the store"),
];

/// The state that several gateways share.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StoreSpec {
    /// URL of the servers; without it, the state is kept in memory and files.
    pub url: Option<TemplateText>,
    /// The key that signs states which clients return; without it, a key in the state folder.
    pub key: Option<TemplateText>,
    /// The URL at which other gateways reach this one; without it, the address that it listens on.
    pub address: Option<TemplateText>,
    /// The text that all keys start with.
    pub prefix: String,
    /// Calls of a limit that a gateway reserves at once for each caller.
    pub limit_lease: NonZeroU32,
    /// The longest time that connecting takes.
    pub connect_timeout: Duration,
    /// The longest time that an operation takes.
    pub timeout: Duration,
    /// Place where the section is.
    pub origin: Option<Origin>,
}

impl Default for StoreSpec {
    fn default() -> Self {
        Self {
            url: None,
            key: None,
            address: None,
            prefix: DEFAULT_PREFIX.to_owned(),
            limit_lease: NonZeroU32::MIN,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            timeout: DEFAULT_TIMEOUT,
            origin: None,
        }
    }
}

impl StoreSpec {
    /// Returns whether both are equal, wherever they are written.
    pub fn is_same(&self, other: &Self) -> bool {
        *self == Self { origin: self.origin.clone(), ..other.clone() }
    }
}

/// Reads the section.
pub(super) fn read(mut reader: TableReader<'_>) -> StoreSpec {
    let defaults = StoreSpec::default();
    let offset = reader.key_offset();
    let origin = reader.source().origin(offset);
    let url = read_template(&mut reader, "url");
    let prefix = reader.string("prefix");
    if let Some(prefix) = prefix.filter(|prefix| !is_prefix(prefix)) {
        let message = format!("`store.prefix` cannot be `{prefix}`");
        reader.error_at_value("prefix", message, "use letters, digits, `-`, `_` and `:`");
    }
    let spec = StoreSpec {
        key: read_template(&mut reader, "key"),
        address: read_template(&mut reader, "address"),
        prefix: prefix.map_or(defaults.prefix, str::to_owned),
        limit_lease: reader.count("limit-lease", 1).and_then(NonZeroU32::new).unwrap_or(defaults.limit_lease),
        connect_timeout: reader.duration("connect-timeout").unwrap_or(defaults.connect_timeout),
        timeout: reader.duration("timeout").unwrap_or(defaults.timeout),
        origin: Some(origin),
        url,
    };
    if reader.has("address") && !reader.has("key") {
        let message = "`store.address` requires `store.key`".to_owned();
        let hint = "add `key = \"${secret:toolcrib-key}\"`, the same for all gateways";
        reader.error_at_value("address", message, hint);
    } else if reader.has("url") && !reader.has("key") {
        let message = "`store.url` without `store.key`: each gateway signs with a key of its own, and requests for sessions \
                       are not forwarded between gateways";
        reader.note(offset, message, "set the same `key` for every gateway that uses the store");
    }
    let dependent_keys = ["address", "prefix", "limit-lease", "connect-timeout", "timeout"];
    if !reader.has("url")
        && let Some(key) = dependent_keys.into_iter().find(|key| reader.has(key))
    {
        let hint = "add `url = \"valkey://HOST\"`";
        reader.error_at_value(key, format!("`store.{key}` requires `store.url`"), hint);
    }
    reader.finish();
    spec
}

fn read_template(reader: &mut TableReader<'_>, key: &'static str) -> Option<TemplateText> {
    let text = reader.string(key)?;
    let node = reader.peek(key)?;
    reader.template(node, text)
}

/// Returns whether a text has no characters that mean something in patterns and slots of keys.
fn is_prefix(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_:.".contains(c))
}
