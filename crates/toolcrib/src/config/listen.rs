//! Reads `[listen]`: TLS, the proxies in front of the gateway, and the URL that they publish it at.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use super::keys::ValueKind::{Boolean, Table, Text, TextList};
use super::keys::{ConfigKey, key};
use super::reader::TableReader;
use super::{scope, server};
use crate::spec::url::parse_url;

/// The keys of `[listen]`.
pub(super) const KEYS: &[ConfigKey] = &[
    key("hosts", TextList, "[]", "Accepted `Host` names besides the listen address and `localhost`"),
    key(
        "origins",
        TextList,
        "[]",
        "Web pages that may use the MCP endpoints, such as `http://localhost:6274`; those of the gateway itself always may",
    ),
    key("sse", Boolean, "false", "Whether `/sse` serves clients of HTTP+SSE, the transport of 2024-11-05"),
    key(
        "any-user",
        Boolean,
        "false",
        "Whether other users of this machine may use a loopback address while no `callers` are declared",
    ),
    key(
        "public-url",
        Text,
        "",
        "URL by which clients reach the gateway, such as `https://tools.example`, if a proxy is in front of it",
    ),
    key("tls", Table(TLS), "", "Files with which the TCP address is served over TLS"),
    key(
        "trusted-proxies",
        TextList,
        "[]",
        "Addresses and ranges of proxies whose `Forwarded` and `X-Forwarded-…` headers are used",
    ),
];

const TLS: &[ConfigKey] = &[
    key("cert", Text, "", "Certificate chain in PEM, relative to this file; read again when it changes"),
    key("key", Text, "", "Private key in PEM, which only the gateway's user may read"),
    key(
        "client-ca",
        Text,
        "",
        "Certificates in PEM of the authorities that issue certificates of clients, for `mtls`",
    ),
];

/// Files with which the gateway serves TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSpec {
    /// Certificate chain in PEM, the gateway's own certificate first.
    pub cert: PathBuf,
    /// Private key in PEM.
    pub key: PathBuf,
    /// Certificates in PEM of the authorities that issue the certificates of clients.
    pub client_ca: Option<PathBuf>,
}

/// A range of IP addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    address: IpAddr,
    bits: u8,
}

impl AddressRange {
    /// Parses a range such as `10.0.0.0/8`, or a single address.
    pub fn parse(written: &str) -> Option<Self> {
        if let Ok(address) = written.parse::<IpAddr>() {
            return Some(Self { address, bits: if address.is_ipv4() { 32 } else { 128 } });
        }
        scope::parse_cidr(written).map(|(address, bits)| Self { address, bits })
    }

    /// Returns whether an address is in the range. An IPv4 address may be written as an IPv6 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        scope::is_in_range(address, self.address, self.bits)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

/// Parses the origin of a web page, such as `http://localhost:6274`, into the form that browsers send: in lower case, and without
/// the default port.
pub fn parse_origin(written: &str) -> Option<String> {
    let written = written.trim_end_matches('/').to_ascii_lowercase();
    let url = parse_url(&written).ok()?;
    let (scheme, host) = (url.scheme_str()?, url.host()?);
    let has_only_origin = url.path() == "/" && url.query().is_none() && !written.contains(['#', '@']);
    let default_port = if scheme == "https" { 443 } else { 80 };
    let port = url.port_u16().filter(|port| *port != default_port);
    let port = port.map(|port| format!(":{port}")).unwrap_or_default();
    has_only_origin.then(|| format!("{scheme}://{host}{port}"))
}

/// Reads `origins`.
pub(super) fn read_origins(reader: &mut TableReader<'_>) -> Vec<String> {
    let mut origins = Vec::new();
    for (node, written) in reader.strings("origins").unwrap_or_default() {
        match parse_origin(written) {
            Some(origin) => origins.push(origin),
            None => {
                let message = format!("`{written}` is not the origin of a web page");
                let hint = "write scheme, host and port, such as `\"http://localhost:6274\"`";
                reader.error(node.span.start, message, hint);
            }
        }
    }
    origins
}

/// Reads the URL by which clients reach the gateway, without a slash at its end.
pub(super) fn read_public_url(reader: &mut TableReader<'_>) -> Option<String> {
    let url = reader.string("public-url")?;
    let reason = match parse_url(url) {
        Err(reason) => reason,
        Ok(parsed) if parsed.query().is_some() || url.contains('#') => "it has a query or a fragment",
        Ok(parsed) if parsed.path().trim_end_matches('/').ends_with("/mcp") => {
            "it must not contain the path of an endpoint"
        }
        Ok(_) => return Some(url.trim().trim_end_matches('/').to_owned()),
    };
    let hint = "write scheme and host, such as `public-url = \"https://tools.example\"`";
    reader.error_at_value("public-url", format!("`listen.public-url`: {reason}"), hint);
    None
}

/// Reads `tls`.
pub(super) fn read_tls(reader: &mut TableReader<'_>) -> Option<TlsSpec> {
    let mut table = reader.table("tls")?;
    let cert = read_path(&mut table, "cert");
    let key = read_path(&mut table, "key");
    let client_ca = read_path(&mut table, "client-ca");
    for key in ["cert", "key"].into_iter().filter(|key| !table.has(key)).collect::<Vec<_>>() {
        let hint = "write `tls = { cert = \"cert.pem\", key = \"key.pem\" }`";
        table.error_at_table(format!("`listen.tls` has no `{key}`"), hint);
    }
    table.finish();
    Some(TlsSpec { cert: cert?, key: key?, client_ca })
}

fn read_path(table: &mut TableReader<'_>, key: &'static str) -> Option<PathBuf> {
    let written = table.string(key)?;
    server::resolve_path(table, key, written)
}

/// Reads `trusted-proxies`.
pub(super) fn read_trusted_proxies(reader: &mut TableReader<'_>) -> Vec<AddressRange> {
    let mut ranges = Vec::new();
    for (node, written) in reader.strings("trusted-proxies").unwrap_or_default() {
        match AddressRange::parse(written) {
            Some(range) => ranges.push(range),
            None => {
                let message = format!("`{written}` is not an address or an address range");
                reader.error(
                    node.span.start,
                    message,
                    "write `\"127.0.0.1\"`, `\"10.0.0.0/8\"` or `\"fd00::/8\"`",
                );
            }
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origin_is_written_as_browsers_send_it() {
        for (written, origin) in [
            ("http://localhost:6274", "http://localhost:6274"),
            ("HTTP://LocalHost:6274/", "http://localhost:6274"),
            ("https://app.example:443", "https://app.example"),
            ("http://[::1]:80", "http://[::1]"),
        ] {
            assert_eq!(parse_origin(written).as_deref(), Some(origin), "{written}");
        }
        for invalid in
            ["", "*", "null", "localhost:6274", "file:///x", "http://a/b", "http://a?b", "http://u@a"]
        {
            assert_eq!(parse_origin(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn range_contains_its_addresses_in_both_families() {
        let contains = |range: &str, address: &str| {
            AddressRange::parse(range).unwrap().contains(address.parse().unwrap())
        };
        assert!(contains("10.0.0.0/8", "10.1.2.3") && contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1") && !contains("10.0.0.0/8", "fd00::1"));
        assert!(contains("127.0.0.1", "127.0.0.1") && !contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("fd00::/8", "fd12::1") && contains("::1", "::1") && !contains("::1", "::2"));
        for invalid in ["", "10.0.0.0/33", "10.0.0", "proxy.local", "fd00::/129", "10.0.0.0/"] {
            assert_eq!(AddressRange::parse(invalid), None, "{invalid}");
        }
    }
}
