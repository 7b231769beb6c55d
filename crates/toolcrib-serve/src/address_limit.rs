//! The limit of connections per IP address, and of requests per client of a proxy, so that one machine cannot use up all of them.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use toolcrib::util::locks::IgnorePoison as _;

/// Connections or requests per address. Loopback is not limited.
const MAX_PER_ADDRESS: usize = 256;

/// Open connections or requests by address, or by /64 network for IPv6. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct AddressLimit(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A counted connection or request. Dropping it frees its place.
#[derive(Debug)]
pub struct AddressPermit {
    ip: IpAddr,
    limit: AddressLimit,
}

impl AddressLimit {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().ignore_poison()
    }

    /// Counts one more, unless there are too many from its address.
    pub fn try_acquire(&self, ip: IpAddr) -> Option<AddressPermit> {
        let ip = limited_address(ip);
        let mut counts = self.counts();
        let count = counts.entry(ip).or_default();
        if *count >= MAX_PER_ADDRESS && !ip.is_loopback() {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(AddressPermit { ip, limit: self.clone() })
    }
}

impl Drop for AddressPermit {
    fn drop(&mut self) {
        let mut counts = self.limit.counts();
        if let Some(count) = counts.get_mut(&self.ip) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.ip);
            }
        }
    }
}

/// Returns the address that is counted: an IPv6 client usually controls a whole /64 network.
fn limited_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) if !ip.is_loopback() => {
            Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into()
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_per_address_are_limited_except_loopback() {
        let connections = AddressLimit::default();
        let acquire = |text: &str| connections.try_acquire(text.parse().unwrap());
        let mut many: Vec<_> = (0..MAX_PER_ADDRESS).map(|_| acquire("192.0.2.1").unwrap()).collect();
        assert!(acquire("192.0.2.1").is_none() && acquire("::ffff:192.0.2.1").is_none());
        assert!(acquire("192.0.2.2").is_some());
        many.pop();
        assert!(acquire("192.0.2.1").is_some());
        drop(many);
        assert!(connections.counts().is_empty());
        let one_network: Vec<_> =
            (0..MAX_PER_ADDRESS).map(|n| acquire(&format!("2001:db8::{n:x}")).unwrap()).collect();
        assert!(acquire("2001:db8::ffff:1").is_none() && acquire("2001:db8:0:1::1").is_some());
        drop(one_network);
        let loopback: Vec<_> = (0..2 * MAX_PER_ADDRESS).map(|_| acquire("127.0.0.1").unwrap()).collect();
        assert_eq!(loopback.len(), 2 * MAX_PER_ADDRESS);
    }
}
