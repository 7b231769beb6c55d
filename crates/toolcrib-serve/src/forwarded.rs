//! The client behind a trusted proxy, as the proxy describes it in `Forwarded` (RFC 7239) or in `X-Forwarded-For`,
//! `X-Forwarded-Proto` and `X-Forwarded-Host`.
//!
//! Each proxy adds its peer at the end. The client is the last peer that is not a trusted proxy itself; what precedes it was
//! sent by the client and is not used.

use std::net::{IpAddr, SocketAddr};

use hyper::HeaderMap;
use hyper::header::{FORWARDED, HeaderName};
use toolcrib::config::AddressRange;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// The client of a request that a trusted proxy passed on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ForwardedClient {
    /// Its address, if the proxy names it.
    pub(crate) address: Option<IpAddr>,
    /// True if it used `https`, false if it used `http`.
    pub(crate) is_https: Option<bool>,
    /// The host that it addressed, with or without a port.
    pub(crate) host: Option<String>,
    /// True if it may be on another machine: one of the peers is, or is not known.
    pub(crate) is_remote: bool,
}

/// Two headers of a request that describe different clients, so that one of them is not from the proxy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ConflictingHeaders;

impl ForwardedClient {
    /// Reads the headers of a request that came from a trusted proxy.
    pub(crate) fn read(headers: &HeaderMap, trusted: &[AddressRange]) -> Result<Self, ConflictingHeaders> {
        let standard = Self::from_standard(headers, trusted);
        let common = Self::from_common(headers, trusted);
        match (standard, common) {
            (Some(standard), Some(common)) if standard.conflicts_with(&common) => Err(ConflictingHeaders),
            (Some(standard), Some(common)) => {
                Ok(Self { is_remote: standard.is_remote || common.is_remote, ..standard })
            }
            (Some(client), None) | (None, Some(client)) => Ok(client),
            (None, None) => Ok(Self::default()),
        }
    }

    fn conflicts_with(&self, other: &Self) -> bool {
        self.address != other.address
            || self.is_https.zip(other.is_https).is_some_and(|(one, other)| one != other)
            || self.host.as_ref().zip(other.host.as_ref()).is_some_and(|(one, other)| one != other)
    }

    fn from_standard(headers: &HeaderMap, trusted: &[AddressRange]) -> Option<Self> {
        let elements = list(headers, &FORWARDED);
        if elements.is_empty() {
            return None;
        }
        let elements: Vec<ForwardedElement> =
            elements.iter().map(|element| ForwardedElement::parse(element)).collect();
        let peers: Vec<Option<IpAddr>> = elements.iter().map(|element| element.peer).collect();
        let client = find_client(&peers, trusted);
        let element = elements.into_iter().nth(client.index).unwrap_or_default();
        let is_https = element.scheme.as_deref().and_then(parse_scheme);
        Some(Self {
            address: client.address,
            is_https,
            host: element.host,
            is_remote: has_remote_peer(&peers),
        })
    }

    fn from_common(headers: &HeaderMap, trusted: &[AddressRange]) -> Option<Self> {
        let peers = list(headers, &X_FORWARDED_FOR);
        let schemes = list(headers, &X_FORWARDED_PROTO);
        let hosts = list(headers, &X_FORWARDED_HOST);
        if peers.is_empty() && schemes.is_empty() && hosts.is_empty() {
            return None;
        }
        let addresses: Vec<Option<IpAddr>> = peers.iter().map(|peer| parse_address(peer)).collect();
        let client = find_client(&addresses, trusted);
        // Most proxies replace these two; a list with an entry for each proxy is read at the place of the client.
        let at_client = |values: Vec<String>| match values.len() == peers.len() {
            true => values.into_iter().nth(client.index),
            false => values.into_iter().next_back(),
        };
        let is_https = at_client(schemes).as_deref().and_then(parse_scheme);
        let is_remote = has_remote_peer(&addresses);
        Some(Self { address: client.address, is_https, host: at_client(hosts), is_remote })
    }
}

/// The place of the client in the peers of a chain of proxies.
struct ClientPosition {
    index: usize,
    address: Option<IpAddr>,
}

/// Returns the last peer that is not a trusted proxy, or the first one if all are.
fn find_client(peers: &[Option<IpAddr>], trusted: &[AddressRange]) -> ClientPosition {
    let is_trusted = |peer: &Option<IpAddr>| {
        peer.is_some_and(|address| trusted.iter().any(|range| range.contains(address)))
    };
    let index = peers.iter().rposition(|peer| !is_trusted(peer)).unwrap_or(0);
    ClientPosition { index, address: peers.get(index).copied().flatten() }
}

/// Returns whether one of the peers may be on another machine. All are looked at: a client whose address is that of a trusted proxy can
/// write any address before it.
fn has_remote_peer(peers: &[Option<IpAddr>]) -> bool {
    let is_here = |peer: &Option<IpAddr>| peer.is_some_and(|address| address.is_loopback());
    peers.is_empty() || !peers.iter().all(is_here)
}

/// Returns the elements of a list header, of all its lines. Commas in quotes do not separate.
fn list(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let lines = headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()));
    lines.flat_map(|line| split_outside_quotes(&line, ',')).collect()
}

/// Splits a text at a separator and removes white space around the parts. Quotes stay in the parts.
fn split_outside_quotes(text: &str, separator: char) -> Vec<String> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut is_quoted = false;
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if letter == separator && !is_quoted => {
                parts.push(text[start..at].trim().to_owned());
                start = at + separator.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim().to_owned());
    parts
}

/// One element of a `Forwarded` header.
#[derive(Debug, Default)]
struct ForwardedElement {
    peer: Option<IpAddr>,
    scheme: Option<String>,
    host: Option<String>,
}

impl ForwardedElement {
    fn parse(text: &str) -> Self {
        let mut element = Self::default();
        for pair in split_outside_quotes(text, ';') {
            let Some((name, value)) = pair.split_once('=') else { continue };
            let value = unquote(value);
            match name.to_ascii_lowercase().as_str() {
                "for" => element.peer = parse_address(&value),
                "proto" => element.scheme = Some(value),
                "host" => element.host = Some(value),
                _ => {}
            }
        }
        element
    }
}

fn unquote(value: &str) -> String {
    let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    inner.map_or_else(|| value.to_owned(), |inner| inner.replace('\\', ""))
}

/// Parses an address with or without a port, such as `192.0.2.1:80` or `[2001:db8::1]`.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let address: Option<IpAddr> = text.parse().ok().or_else(bracketed).or_else(with_port);
    address.map(|address| address.to_canonical())
}

fn parse_scheme(text: &str) -> Option<bool> {
    match text {
        _ if text.eq_ignore_ascii_case("https") => Some(true),
        _ if text.eq_ignore_ascii_case("http") => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn read(headers: &[(&'static str, &str)]) -> Result<ForwardedClient, ConflictingHeaders> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let trusted =
            ["10.0.0.0/8", "127.0.0.1", "fd00::/8"].map(|range| AddressRange::parse(range).unwrap());
        ForwardedClient::read(&map, &trusted)
    }

    fn client(address: &str, is_https: Option<bool>, host: Option<&str>) -> ForwardedClient {
        let host = host.map(str::to_owned);
        ForwardedClient { address: address.parse().ok(), is_https, host, is_remote: true }
    }

    #[test]
    fn client_is_the_last_peer_that_is_not_a_proxy() {
        for (written, address) in [
            ("192.0.2.1", "192.0.2.1"),
            ("1.1.1.1, 192.0.2.1", "192.0.2.1"),
            ("1.1.1.1, 192.0.2.1, 10.0.0.7", "192.0.2.1"),
            ("10.9.9.9, 10.0.0.7", "10.9.9.9"),
            ("192.0.2.1:4711", "192.0.2.1"),
            ("[2001:db8::1]:4711", "2001:db8::1"),
            ("2001:db8::1", "2001:db8::1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("1.1.1.1, unknown", "none"),
            ("1.1.1.1, ", "none"),
        ] {
            assert_eq!(
                read(&[("x-forwarded-for", written)]).unwrap(),
                client(address, None, None),
                "{written}"
            );
        }
        let two_lines = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "192.0.2.1")];
        assert_eq!(read(&two_lines).unwrap(), client("192.0.2.1", None, None));
        assert_eq!(read(&[]).unwrap(), ForwardedClient::default());
    }

    #[test]
    fn scheme_and_host_are_those_of_the_client() {
        let one = [
            ("x-forwarded-for", "1.1.1.1, 192.0.2.1"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "crib.example"),
        ];
        assert_eq!(read(&one).unwrap(), client("192.0.2.1", Some(true), Some("crib.example")));
        let lists = [("x-forwarded-for", "192.0.2.1, 10.0.0.7"), ("x-forwarded-proto", "https, http")];
        assert_eq!(read(&lists).unwrap(), client("192.0.2.1", Some(true), None));
        let standard = "for=1.1.1.1;host=evil.example, For=\"[2001:db8::1]:80\";Proto=HTTPS;host=\"crib.example:8443\", \
                        for=10.0.0.7;proto=http;by=\"a,b;c\"";
        let expected = client("2001:db8::1", Some(true), Some("crib.example:8443"));
        assert_eq!(read(&[("forwarded", standard)]).unwrap(), expected);
        assert_eq!(read(&[("forwarded", "for=_hidden;proto=gopher")]).unwrap(), client("none", None, None));
    }

    #[test]
    fn headers_that_disagree_are_refused() {
        let both = |standard: &'static str| {
            read(&[("forwarded", standard), ("x-forwarded-for", "192.0.2.1"), ("x-forwarded-proto", "https")])
        };
        assert_eq!(both("for=192.0.2.1").unwrap(), client("192.0.2.1", None, None));
        for other in ["for=192.0.2.2", "for=192.0.2.1;proto=http", "proto=https"] {
            assert_eq!(both(other), Err(ConflictingHeaders), "{other}");
        }
    }
}
