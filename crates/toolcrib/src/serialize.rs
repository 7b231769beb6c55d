//! The feature `serde`: JSON forms of specs, status and events. Durations are numbers of seconds, times are RFC 3339 texts.

mod event;
mod spec;
mod status;
#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Serializes and reads types by a form of the same fields, which serde calls a remote type.
macro_rules! serialize_as {
    ($($public:ty => $form:ty),* $(,)?) => {$(
        impl Serialize for $public {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$form>::serialize(self, serializer)
            }
        }

        impl<'de> Deserialize<'de> for $public {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <$form>::deserialize(deserializer)
            }
        }
    )*};
}
use serialize_as;

/// Serializes types as the text that a function returns.
macro_rules! serialize_as_text {
    ($($public:ty => $text:expr),* $(,)?) => {$(
        impl Serialize for $public {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let text: fn(&$public) -> _ = $text;
                serializer.collect_str(&text(self))
            }
        }
    )*};
}
use serialize_as_text;

/// A duration in seconds.
mod seconds {
    use super::{Deserialize as _, Deserializer, Duration, Serializer};

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A duration in seconds, or `null`.
mod optional_seconds {
    use super::{Deserialize as _, Deserializer, Duration, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds.map(Duration::try_from_secs_f64).transpose().map_err(serde::de::Error::custom)
    }
}
