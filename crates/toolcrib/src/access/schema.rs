//! Checks tool arguments against the tool's input schema.
//!
//! Arguments are rejected only if they certainly violate the schema. Keywords that are not supported here (patterns,
//! formats, references to other documents) and schemas that take too long to evaluate are left to the server.

mod containers;
mod keywords;
#[cfg(test)]
mod tests;
mod values;

use std::fmt;

use bytes::Bytes;
use serde_json::Value;

use crate::protocol::json::object::Object;
use keywords::{SchemaCheck, SchemaVerdict};

/// Largest schema and largest arguments that are checked, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Violations that are reported for one call.
const MAX_REPORTED: usize = 5;

/// The input schema of a tool.
#[derive(Debug)]
pub struct Schema {
    root: Value,
    /// Whether `$ref` overrides the keywords beside it, as in drafts before 2019-09.
    ref_overrides_siblings: bool,
}

/// One place where a value violates a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The place in the arguments, as a JSON pointer.
    pub path: String,
    /// The violation, in words.
    pub reason: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.path {
            "" => write!(f, "the arguments {}", self.reason),
            path => write!(f, "{path}: {}", self.reason),
        }
    }
}

impl Schema {
    /// Reads the input schema from a tool definition. Returns `None` if there is none that can be checked.
    pub fn from_definition(definition: &Bytes) -> Option<Self> {
        let definition = Object::parse(definition).ok()?;
        let raw = definition.get("inputSchema").filter(|raw| raw.len() <= MAX_BYTES)?;
        let root: Value = serde_json::from_slice(raw).ok()?;
        let draft = root["$schema"].as_str().unwrap_or_default();
        let ref_overrides_siblings =
            ["draft-04", "draft-06", "draft-07"].iter().any(|old| draft.contains(old));
        root.is_object().then_some(Self { root, ref_overrides_siblings })
    }

    /// Checks arguments against the schema.
    ///
    /// # Errors
    /// Returns the violations that were found.
    pub fn check(&self, arguments: &[u8]) -> Result<(), Vec<Violation>> {
        if arguments.len() > MAX_BYTES {
            return Ok(());
        }
        let Ok(arguments) = serde_json::from_slice(arguments) else { return Ok(()) };
        let mut check = SchemaCheck::new(&self.root, self.ref_overrides_siblings);
        match check.run(&arguments) {
            Ok(SchemaVerdict::Invalid) => {
                let mut violations = check.violations;
                violations.truncate(MAX_REPORTED);
                Err(violations)
            }
            // Undecided, or too expensive to decide: the server judges.
            Ok(SchemaVerdict::Valid | SchemaVerdict::Unknown) | Err(_) => Ok(()),
        }
    }
}
