//! `Addresses`: how many connections come from each address, so that one machine cannot take every place there is.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections that may come from one address at the same time. This machine may have as many as there are.
const MOST: usize = 256;

/// How many connections come from where.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A connection that counts, until it is dropped.
#[derive(Debug)]
pub(super) struct Admitted {
    from: IpAddr,
    addresses: Addresses,
}

impl Addresses {
    fn counts(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets one more in, unless there are too many from there.
    pub(super) fn admit(&self, from: IpAddr) -> Option<Admitted> {
        let from = network(from);
        let mut counts = self.counts();
        let count = counts.entry(from).or_default();
        if *count >= MOST && !from.is_loopback() {
            return None;
        }
        *count += 1;
        drop(counts);
        Some(Admitted { from, addresses: self.clone() })
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = self.addresses.counts();
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

/// Who has one address of the newer kind has a whole network of them.
fn network(address: IpAddr) -> IpAddr {
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
    fn one_address_takes_no_more_places_than_it_may_and_keeps_nobody_else_out() {
        let addresses = Addresses::default();
        let admit = |text: &str| addresses.admit(text.parse().unwrap());
        let mut many: Vec<_> = (0..MOST).map(|_| admit("192.0.2.1").unwrap()).collect();
        assert!(admit("192.0.2.1").is_none() && admit("::ffff:192.0.2.1").is_none());
        assert!(admit("192.0.2.2").is_some());
        many.pop();
        assert!(admit("192.0.2.1").is_some());
        drop(many);
        assert!(addresses.counts().is_empty());
        let wide: Vec<_> = (0..MOST).map(|n| admit(&format!("2001:db8::{n:x}")).unwrap()).collect();
        assert!(admit("2001:db8::ffff:1").is_none() && admit("2001:db8:0:1::1").is_some());
        drop(wide);
        let here: Vec<_> = (0..2 * MOST).map(|_| admit("127.0.0.1").unwrap()).collect();
        assert_eq!(here.len(), 2 * MOST);
    }
}
