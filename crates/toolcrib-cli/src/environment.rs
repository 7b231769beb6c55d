//! The environment variables that a config uses, and their comparison between two processes without showing values.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};
use toolcrib::config::Config;
use toolcrib::util::encoding;

/// Returns the variables that servers of this config get from the environment: those in `${env:X}` and `inherit-env`.
pub(crate) fn used_variables(config: &Config) -> BTreeSet<String> {
    config.roster.servers().flat_map(|spec| spec.endpoint.environment_variables()).collect()
}

/// Returns a digest of the value that a variable has in this process. Digests with another salt cannot be compared.
pub(crate) fn digest_value(name: &str, salt: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    let mut hasher = Sha256::new();
    hasher.update(salt.as_bytes());
    hasher.update([0]);
    hasher.update(value.as_encoded_bytes());
    Some(encoding::to_hex(&hasher.finalize()[..16]))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn references_and_inherited_variables_are_used() {
        let text = "[servers.a]\ncommand = 'x'\nargs = ['${env:A}']\nenv = { Z = '${env:B:-b}' }\ninherit-env = ['C']\n\
                    [servers.b]\nurl = 'https://b.example/${env:D}'\n";
        let used = used_variables(&Config::parse(Path::new("/c.toml"), text));
        assert_eq!(used.iter().map(String::as_str).collect::<Vec<_>>(), ["A", "B", "C", "D"]);
    }

    #[test]
    fn digests_depend_on_value_and_salt() {
        let digest = digest_value("PATH", "1");
        assert!(digest.is_some() && digest == digest_value("PATH", "1"));
        assert_ne!(digest, digest_value("PATH", "2"));
        assert_ne!(digest, digest_value("HOME", "1"));
        assert_eq!(digest_value("TOOLCRIB_NOT_SET", "1"), None);
    }
}
