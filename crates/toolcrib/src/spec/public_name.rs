//! Public names: `SERVER__TOOL`, safe for every model API, the same whoever else is there.

use sha2::{Digest, Sha256};

use crate::spec::ServerId;

/// Stands between server and tool; a server's name never holds it.
pub const SEPARATOR: &str = "__";

/// The longest public name, so that an agent's own prefix still fits in the 64 characters that model APIs allow.
pub const LONGEST: usize = 48;

/// Hexadecimal digits of the digest that ends a name which had to be changed.
const DIGITS: usize = 8;

/// The public name of a server's tool. It depends on nothing but the two names, so it never changes because another
/// server came or went; a name that had to be cleaned or cut ends in a digest of the original.
pub fn public(server: &ServerId, tool: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let plain = format!("{server}{SEPARATOR}{tool}");
    if !tool.is_empty() && tool.chars().all(allowed) && plain.len() <= LONGEST && !looks_changed(tool) {
        return plain;
    }
    changed(server, tool)
}

/// The name of a tool that may not have the one it would have.
pub(crate) fn changed(server: &ServerId, tool: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let plain = format!("{server}{SEPARATOR}{tool}");
    let cleaned: String =
        plain.chars().map(|c| if allowed(c) { c } else { '_' }).take(LONGEST - DIGITS - 1).collect();
    let digest = Sha256::digest(tool.as_bytes());
    let suffix: String = digest[..DIGITS / 2].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{cleaned}_{suffix}")
}

/// Whether a name ends as changed ones do; it is changed too, so that it is never taken for one of them.
fn looks_changed(tool: &str) -> bool {
    let digits = tool.rsplit_once('_').map_or("", |(_, digits)| digits);
    digits.len() == DIGITS && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn named(server: &str, tool: &str) -> String {
        public(&server.parse().unwrap(), tool)
    }

    #[test]
    fn a_good_name_is_only_prefixed() {
        assert_eq!(named("git", "git_log"), "git__git_log");
        assert_eq!(named("a", "_b"), "a___b");
        assert_ne!(named("a", "b__c"), named("a-b", "c"));
    }

    #[test]
    fn a_bad_name_is_changed_in_the_same_way_every_time() {
        assert_eq!(named("git", "log.all"), "git__log_all_8d38e7f9");
        assert_eq!(named("git", &"x".repeat(100)).len(), LONGEST);
        assert_ne!(named("git", "log.all"), named("git", "log/all"));
        assert!(named("git", "").starts_with("git___"));
        assert_ne!(named("git", "_e3b0c442"), named("git", ""));
    }

    proptest! {
        #[test]
        fn every_name_is_safe(server in "[a-z][a-z0-9]{0,31}", tool in ".{0,80}") {
            let name = named(&server, &tool);
            prop_assert!(name.len() <= LONGEST, "{name}");
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
        }

        #[test]
        fn different_tools_have_different_names(tools in prop::collection::hash_set(".{0,60}", 0..50)) {
            let names: HashSet<String> = tools.iter().map(|tool| named("server", tool)).collect();
            prop_assert_eq!(names.len(), tools.len());
        }
    }
}
