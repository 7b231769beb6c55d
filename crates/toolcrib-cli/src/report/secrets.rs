//! Secrets that the config uses. Values are not part of it.

use serde_json::{Value, json};

use super::{Members, Report, list_to_json};
use crate::command_error::CommandError;
use crate::secrets::{SecretLocation, SecretLocator, SecretUses};

/// The secrets that the config uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SecretsReport {
    pub(crate) secrets: Vec<SecretReport>,
}

impl SecretsReport {
    /// Looks for each used secret. Blocks, because it reads the secret store.
    ///
    /// # Errors
    /// Fails if the store cannot be read.
    pub(crate) fn read(locator: &SecretLocator, uses: &SecretUses) -> Result<Self, CommandError> {
        let stored = locator.names(uses)?;
        let report = |name: &String| SecretReport::new(name, stored.get(name).copied(), uses);
        Ok(Self { secrets: uses.names().map(report).collect() })
    }
}

impl Report for SecretsReport {
    fn to_json(&self) -> Value {
        json!({"secrets": list_to_json(&self.secrets)})
    }

    fn from_json(value: &Value) -> Self {
        Self { secrets: Members(value).reports("secrets") }
    }
}

/// One secret, as in `secret ls --json`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecretReport {
    pub(crate) name: String,
    /// Where it is stored; `None` if it is not set.
    pub(crate) backend: Option<String>,
    /// Servers and `callers.NAME`.
    pub(crate) used_by: Vec<String>,
}

impl SecretReport {
    /// Creates the report about a secret that is stored at `location`, if it is set.
    pub(crate) fn new(name: &str, location: Option<SecretLocation>, uses: &SecretUses) -> Self {
        Self {
            name: name.to_owned(),
            backend: location.map(|location| location.as_str().to_owned()),
            used_by: uses.users(name).into_iter().map(str::to_owned).collect(),
        }
    }
}

impl Report for SecretReport {
    fn to_json(&self) -> Value {
        json!({
            "name": self.name,
            "backend": self.backend,
            "set": self.backend.is_some(),
            "used_by": self.used_by,
        })
    }

    fn from_json(value: &Value) -> Self {
        let members = Members(value);
        Self {
            name: members.text("name"),
            backend: members.optional_text("backend"),
            used_by: members.texts("used_by"),
        }
    }
}
