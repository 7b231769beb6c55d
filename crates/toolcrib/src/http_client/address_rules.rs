//! Addresses that requests may go to when another party names the URL.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hyper::Uri;

/// The text of the error for an address that the rules do not allow.
pub(crate) const FORBIDDEN_ADDRESS: &str = "its address is not public";

/// The network that a server is in. Metadata of a server may name URLs with public addresses, and those in its own
/// network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressRules {
    /// Public addresses with https.
    Public,
    /// The same, and this machine with http or https.
    Loopback,
    /// The same as public, and private addresses with https.
    Private,
}

impl AddressRules {
    /// Returns the rules for URLs that the server at `addresses` names. A server with any public address is public.
    pub(crate) fn for_server(addresses: &[IpAddr]) -> Self {
        let all = |test: fn(IpAddr) -> bool| !addresses.is_empty() && addresses.iter().all(|ip| test(*ip));
        if all(|ip| ip.to_canonical().is_loopback()) {
            Self::Loopback
        } else if all(|ip| !is_public(ip)) {
            Self::Private
        } else {
            Self::Public
        }
    }

    /// Checks the scheme of a URL, and its host if that is an address. Names are checked when they are connected to.
    pub(crate) fn check_url(self, url: &Uri) -> Result<(), &'static str> {
        let host = url.host().unwrap_or_default().trim_matches(['[', ']']);
        let address = host.parse::<IpAddr>().ok();
        if address.is_some_and(|ip| !self.allow_address(ip)) {
            return Err(FORBIDDEN_ADDRESS);
        }
        let is_loopback = host.eq_ignore_ascii_case("localhost")
            || address.is_some_and(|ip| ip.to_canonical().is_loopback());
        match url.scheme_str() {
            Some("https") => Ok(()),
            Some("http") if self == Self::Loopback && is_loopback => Ok(()),
            _ => Err("it does not use https"),
        }
    }

    /// Returns whether a connection to an address is allowed.
    pub(crate) fn allow_address(self, address: IpAddr) -> bool {
        match self {
            _ if is_public(address) => true,
            Self::Public => false,
            Self::Loopback => address.to_canonical().is_loopback(),
            Self::Private => !address.to_canonical().is_loopback(),
        }
    }
}

/// Returns whether an address can be reached from anywhere.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    let is_carrier_nat = first == 100 && (64..128).contains(&second);
    let is_benchmark = first == 198 && (18..20).contains(&second);
    let is_reserved = first == 0 || first >= 240;
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || is_carrier_nat
        || is_benchmark
        || is_reserved)
}

fn is_public_v6(ip: Ipv6Addr) -> bool {
    // Only this block is assigned to public networks.
    ip.segments()[0] & 0xe000 == 0x2000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn rules_follow_the_network_of_the_server() {
        assert_eq!(AddressRules::for_server(&[ip("127.0.0.1"), ip("::1")]), AddressRules::Loopback);
        assert_eq!(AddressRules::for_server(&[ip("10.0.0.7")]), AddressRules::Private);
        assert_eq!(AddressRules::for_server(&[ip("10.0.0.7"), ip("9.9.9.9")]), AddressRules::Public);
        assert_eq!(AddressRules::for_server(&[]), AddressRules::Public);
    }

    #[test]
    fn only_public_addresses_are_allowed_for_a_public_server() {
        for address in ["9.9.9.9", "2620:fe::9"] {
            assert!(AddressRules::Public.allow_address(ip(address)), "{address}");
        }
        for address in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "198.18.0.1",
            "::1",
            "::ffff:127.0.0.1",
            "fe80::1",
            "fd00::1",
            "::",
        ] {
            assert!(!AddressRules::Public.allow_address(ip(address)), "{address}");
        }
        assert!(AddressRules::Loopback.allow_address(ip("::ffff:127.0.0.1")));
        assert!(!AddressRules::Loopback.allow_address(ip("10.0.0.1")));
        assert!(AddressRules::Private.allow_address(ip("10.0.0.1")));
        assert!(!AddressRules::Private.allow_address(ip("127.0.0.1")));
    }

    #[test]
    fn plain_http_is_allowed_only_on_loopback_for_a_loopback_server() {
        let check = |rules: AddressRules, url: &str| rules.check_url(&url.parse().unwrap()).is_ok();
        assert!(check(AddressRules::Public, "https://login.example/token"));
        assert!(!check(AddressRules::Public, "http://login.example/token"));
        assert!(!check(AddressRules::Public, "https://127.0.0.1/token"));
        assert!(!check(AddressRules::Public, "https://[::1]/token"));
        assert!(check(AddressRules::Loopback, "http://localhost:1/token"));
        assert!(check(AddressRules::Loopback, "http://127.0.0.1:1/token"));
        assert!(!check(AddressRules::Loopback, "http://login.example/token"));
        assert!(check(AddressRules::Private, "https://10.0.0.1/token"));
        assert!(!check(AddressRules::Private, "http://10.0.0.1/token"));
    }
}
