//! The few members of a request that the echo server reads.
//!
//! Everything is borrowed from the message, and values that are only copied stay undecoded.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
pub(crate) struct Incoming<'a> {
    #[serde(borrow, default)]
    pub(crate) id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(crate) method: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(crate) params: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
pub(crate) struct Params<'a> {
    #[serde(borrow, default)]
    pub(crate) name: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(crate) arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "protocolVersion")]
    pub(crate) protocol_version: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(crate) cursor: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "_meta")]
    pub(crate) meta: Option<Meta<'a>>,
}

#[derive(Deserialize, Default)]
pub(crate) struct Meta<'a> {
    #[serde(borrow, default, rename = "io.modelcontextprotocol/protocolVersion")]
    pub(crate) protocol_version: Cow<'a, str>,
}

/// The arguments of all built-in tools together.
#[derive(Deserialize, Default)]
pub(crate) struct Arguments<'a> {
    #[serde(borrow, default)]
    text: Option<&'a RawValue>,
    #[serde(borrow, default)]
    seed: Option<&'a RawValue>,
    #[serde(default)]
    pub(crate) bytes: usize,
    #[serde(default, rename = "ms")]
    pub(crate) milliseconds: u64,
}

impl<'a> Arguments<'a> {
    /// Returns the content of the `text` string, still escaped; empty if absent, `None` if it is not a string.
    pub(crate) fn text(&self) -> Option<&'a str> {
        string_content(self.text)
    }

    /// Returns the content of the `seed` string, still escaped; empty if absent, `None` if it is not a string.
    pub(crate) fn seed(&self) -> Option<&'a str> {
        string_content(self.seed)
    }
}

fn string_content(raw: Option<&RawValue>) -> Option<&str> {
    match raw {
        None => Some(""),
        Some(raw) => raw.get().strip_prefix('"')?.strip_suffix('"'),
    }
}
