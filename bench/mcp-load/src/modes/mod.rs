//! One file per mode of the program.

pub(crate) mod call;
pub(crate) mod fanout;
pub(crate) mod list;
pub(crate) mod probe;
pub(crate) mod sessions;
pub(crate) mod startup;

use serde_json::Value;

/// Adds the members of `from` to `into`.
pub(crate) fn merge(into: &mut Value, from: Value) {
    if let (Some(into), Value::Object(from)) = (into.as_object_mut(), from) {
        into.extend(from);
    }
}
