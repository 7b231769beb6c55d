//! Values in the query string of a URL.

use toolcrib::util::encoding;

/// Returns the decoded value of one key of a query string.
pub fn query_value(query: Option<&str>, key: &str) -> Option<String> {
    let mut pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| encoding::percent_decode_lossy(value).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_value_finds_key() {
        assert_eq!(query_value(Some("after=7&name=a%20b"), "name").as_deref(), Some("a b"));
        assert_eq!(query_value(Some("after=7"), "wait"), None);
        assert_eq!(query_value(None, "wait"), None);
    }
}
