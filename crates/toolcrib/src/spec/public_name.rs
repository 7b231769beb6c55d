//! Public tool names, `SERVER__TOOL`: valid for every model API, and independent of other servers.

use sha2::{Digest, Sha256};

use crate::spec::ServerId;
use crate::util::encoding;

/// Separator of server and tool. A server name never contains it.
pub const SEPARATOR: &str = "__";

/// Longest public name. It leaves room for an agent's own prefix within the 64 characters that model APIs allow.
pub const MAX_LENGTH: usize = 48;

/// Hexadecimal digits of the digest at the end of a changed name.
const DIGEST_DIGITS: usize = 8;

/// Returns the public name of a server's tool. A name with invalid characters, or one that is too long, is changed and ends
/// in a digest of the original.
pub fn public_name(server: &ServerId, tool: &str) -> String {
    let plain = [server.as_str(), SEPARATOR, tool].concat();
    if !tool.is_empty()
        && tool.bytes().all(|byte| is_valid(char::from(byte)))
        && plain.len() <= MAX_LENGTH
        && !has_digest_suffix(tool)
    {
        return plain;
    }
    digest_name(server, tool)
}

/// Returns the name of a server's tool from its public name, if that was not changed.
pub(crate) fn plain_name<'a>(server: &ServerId, public: &'a str) -> Option<&'a str> {
    let tool = public.strip_prefix(server.as_str())?.strip_prefix(SEPARATOR)?;
    (public_name(server, tool) == public).then_some(tool)
}

/// Returns a name that ends in a digest, for a tool whose plain public name is invalid or taken.
pub(crate) fn digest_name(server: &ServerId, tool: &str) -> String {
    let plain = format!("{server}{SEPARATOR}{tool}");
    let cleaned: String = plain
        .chars()
        .map(|c| if is_valid(c) { c } else { '_' })
        .take(MAX_LENGTH - DIGEST_DIGITS - 1)
        .collect();
    let digest = Sha256::digest(tool.as_bytes());
    let suffix = encoding::to_hex(&digest[..DIGEST_DIGITS / 2]);
    format!("{cleaned}_{suffix}")
}

fn is_valid(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// Returns whether a name ends like one with a digest. It is changed too, so that it cannot equal one of them.
fn has_digest_suffix(tool: &str) -> bool {
    let suffix = tool.as_bytes().last_chunk::<{ DIGEST_DIGITS + 1 }>();
    suffix.is_some_and(|suffix| {
        suffix[0] == b'_' && suffix[1..].iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn public(server: &str, tool: &str) -> String {
        public_name(&server.parse().unwrap(), tool)
    }

    #[test]
    fn valid_name_gets_only_a_prefix() {
        assert_eq!(public("git", "git_log"), "git__git_log");
        assert_eq!(public("a", "_b"), "a___b");
        assert_ne!(public("a", "b__c"), public("a-b", "c"));
    }

    #[test]
    fn public_name_tells_the_own_name_unless_it_was_changed() {
        let plain = |public: &str| plain_name(&"git".parse().unwrap(), public).map(str::to_owned);
        assert_eq!(plain("git__log"), Some("log".to_owned()));
        assert_eq!(plain("time__log"), None);
        assert_eq!(plain(&public("git", "log.all")), None);
        assert_eq!(plain(&public("git", "log_8d38e7f9")), None, "it could be the digest of another name");
    }

    #[test]
    fn invalid_name_gets_a_stable_digest() {
        assert_eq!(public("git", "log.all"), "git__log_all_8d38e7f9");
        assert_eq!(public("git", &"x".repeat(100)).len(), MAX_LENGTH);
        assert_ne!(public("git", "log.all"), public("git", "log/all"));
        assert!(public("git", "").starts_with("git___"));
        assert_ne!(public("git", "_e3b0c442"), public("git", ""));
    }

    proptest! {
        #[test]
        fn every_name_is_valid_and_short(server in "[a-z][a-z0-9]{0,31}", tool in ".{0,80}") {
            let name = public(&server, &tool);
            prop_assert!(name.len() <= MAX_LENGTH, "{name}");
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'));
        }

        #[test]
        fn different_tools_have_different_names(tools in prop::collection::hash_set(".{0,60}", 0..50)) {
            let names: HashSet<String> = tools.iter().map(|tool| public("server", tool)).collect();
            prop_assert_eq!(names.len(), tools.len());
        }
    }
}
