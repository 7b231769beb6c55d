//! `Schema`: what a tool says its arguments look like, and whether some do.
//!
//! What is refused here certainly does not fit. A schema may say more than is understood here (patterns, formats, other
//! documents), and may be made to take for ever: where that is so the server decides, as it does without a check.

mod inside;
mod keywords;
mod numbers;
#[cfg(test)]
mod tests;

use std::fmt;

use bytes::Bytes;
use serde_json::Value;

use crate::wire::object::Object;
use keywords::{Check, Verdict};

/// The largest schema, and the largest arguments, that are read.
const LARGEST: usize = 1 << 20;
/// Misfits that are told.
const TOLD: usize = 5;

/// What a tool's arguments look like.
#[derive(Debug)]
pub struct Schema {
    root: Value,
    /// Whether `$ref` hides what stands beside it, as it did before 2019.
    is_old: bool,
}

/// One thing that does not fit, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// The place in the arguments, as a JSON pointer.
    pub path: String,
    /// What is wrong there.
    pub why: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.path {
            "" => write!(f, "the arguments {}", self.why),
            path => write!(f, "{path}: {}", self.why),
        }
    }
}

impl Schema {
    /// The input schema in a tool's definition; `None` if there is none that could be read.
    pub fn of(definition: &Bytes) -> Option<Self> {
        let definition = Object::parse(definition).ok()?;
        let raw = definition.get("inputSchema").filter(|raw| raw.len() <= LARGEST)?;
        let root: Value = serde_json::from_slice(raw).ok()?;
        let dialect = root["$schema"].as_str().unwrap_or_default();
        let is_old = ["draft-04", "draft-06", "draft-07"].iter().any(|old| dialect.contains(old));
        root.is_object().then_some(Self { root, is_old })
    }

    /// Whether arguments fit, and if not, what is wrong with them.
    pub fn check(&self, arguments: &[u8]) -> Result<(), Vec<Misfit>> {
        // What is too large, or nested too deeply, is the server's to judge.
        if arguments.len() > LARGEST {
            return Ok(());
        }
        let Ok(arguments) = serde_json::from_slice(arguments) else { return Ok(()) };
        let mut check = Check::new(&self.root, self.is_old);
        match check.whole(&arguments) {
            Ok(Verdict::Misfits) => {
                let mut misfits = check.misfits;
                misfits.truncate(TOLD);
                Err(misfits)
            }
            // Nobody knows, or it would take too long to find out.
            Ok(Verdict::Fits | Verdict::Unsure) | Err(_) => Ok(()),
        }
    }
}
