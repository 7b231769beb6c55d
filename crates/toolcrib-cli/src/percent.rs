//! Percent-encoding, for names in paths and queries.

/// Bytes that stand for themselves everywhere in a URL.
fn plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

/// A text as one segment of a path or one value of a query.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The text behind it; a `%` that starts nothing stands for itself.
pub(crate) fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let escaped =
            digits.filter(|two| !two.starts_with('+')).and_then(|two| u8::from_str_radix(two, 16).ok());
        match escaped.filter(|_| first == b'%') {
            Some(byte) => {
                out.push(byte);
                rest = &tail[2..];
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// One value of a query, decoded.
pub(crate) fn query(query: Option<&str>, key: &str) -> Option<String> {
    let pairs = query.unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    pairs.into_iter().find(|(name, _)| *name == key).map(|(_, value)| decode(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_survives_the_way_there_and_back() {
        for text in ["", "plain-name_1.~", "a b/c?d&e=f%20", "größe", "100%", "%zz", "%+1"] {
            assert_eq!(decode(&encode(text)), text);
        }
        assert_eq!(decode("100%"), "100%");
        assert_eq!(decode("%zz%4"), "%zz%4");
        assert_eq!(decode("%41"), "A");
    }

    #[test]
    fn values_are_found_by_name() {
        assert_eq!(query(Some("after=7&name=a%20b"), "name").as_deref(), Some("a b"));
        assert_eq!(query(Some("after=7"), "wait"), None);
        assert_eq!(query(None, "wait"), None);
    }
}
