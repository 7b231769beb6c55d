//! Public addresses of resources: the server's own, or `toolcrib://SERVER/…` where that would not say whose it is.

use std::borrow::Cow;

use crate::spec::ServerId;

/// What every address begins with that names its server.
const SCHEME: &str = "toolcrib://";

/// The address of a server's resource that is understood whoever else is there.
pub(super) fn of_resource(server: &ServerId, own: &str) -> String {
    let mut address = format!("{SCHEME}{server}/");
    for byte in own.bytes() {
        match byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            true => address.push(char::from(byte)),
            false => address.push_str(&format!("%{byte:02X}")),
        }
    }
    address
}

/// The same for a template. Its text stays as it is, so that clients can still fill it in, and what they put in stays
/// as they wrote it.
pub(super) fn of_template(server: &ServerId, own: &str) -> String {
    format!("{SCHEME}{server}/{own}")
}

/// The server that an address names, and the server's own address. What follows the server's name is encoded, unless it
/// holds the `:` that every address has: then it is a template filled in.
pub(super) fn split(address: &str) -> Option<(ServerId, Cow<'_, str>)> {
    let (server, own) = address.strip_prefix(SCHEME)?.split_once('/')?;
    let own = if own.contains(':') { Cow::Borrowed(own) } else { decode(own)? };
    Some((server.parse().ok()?, own))
}

/// What comes before the first `:`.
pub(super) fn scheme(address: &str) -> Option<&str> {
    address.split_once(':').map(|(scheme, _)| scheme)
}

/// A `%` that starts nothing stands for itself; bytes that are no text are no address.
pub(crate) fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digit = |at: usize| char::from(*tail.get(at)?).to_digit(16);
        match digit(0).zip(digit(1)).filter(|_| *first == b'%') {
            Some((high, low)) => {
                decoded.push(u8::try_from(high * 16 + low).ok()?);
                rest = &tail[2..];
            }
            None => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8(decoded).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_address_names_its_server() {
        let server: ServerId = "git".parse().unwrap();
        let address = of_resource(&server, "file:///a b/ü%20?x#y");
        assert_eq!(address, "toolcrib://git/file%3A%2F%2F%2Fa%20b%2F%C3%BC%2520%3Fx%23y");
        assert_eq!(split(&address), Some((server.clone(), "file:///a b/ü%20?x#y".into())));
        assert_eq!(of_template(&server, "file:///{x}"), "toolcrib://git/file:///{x}");
        assert_eq!(split("toolcrib://git/file:///a%20b"), Some((server, "file:///a%20b".into())));
    }

    #[test]
    fn other_addresses_name_none() {
        for other in
            ["file:///x", "toolcrib://", "toolcrib://git", "toolcrib://No/x", "toolcrib://git/%FF", ""]
        {
            assert_eq!(split(other), None, "{other}");
        }
        assert_eq!(split("toolcrib://git/%zz%4").unwrap().1, "%zz%4");
    }

    proptest! {
        #[test]
        fn every_address_survives(own in ".*") {
            let server: ServerId = "a-b".parse().unwrap();
            let address = of_resource(&server, &own);
            prop_assert_eq!(split(&address), Some((server, own.into())));
        }

        #[test]
        fn no_text_breaks_it(text in "(toolcrib://[a-z]/)?.*") {
            let _ = split(&text);
        }
    }
}
