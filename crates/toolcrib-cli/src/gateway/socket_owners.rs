//! Finds the user who owns the other end of a connection within this machine, so that other users cannot use a gateway
//! without callers.
//!
//! The kernel is asked for exactly one socket with a `sock_diag` request. Where that is not possible, the socket is searched
//! in `/proc/net/tcp` and `/proc/net/tcp6`, which takes longer if there are many.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use toolcrib::util::locks::IgnorePoison as _;

/// The files that list the TCP sockets of this network namespace.
const SOCKET_LISTS: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// Length of the header of a netlink message.
const HEADER_LENGTH: usize = 16;
/// Length of a request with its header.
const REQUEST_LENGTH: usize = HEADER_LENGTH + 56;
/// Length of a socket id: two ports, two addresses, interface and cookie.
const ID_LENGTH: usize = 48;
/// Length of a reply with its header.
const REPLY_LENGTH: usize = HEADER_LENGTH + 72;
/// The type of requests for sockets, and of their replies.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The flag of every request.
const NLM_F_REQUEST: u16 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
const IPPROTO_TCP: u8 = 6;

/// The two addresses of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketAddresses {
    /// The address of the socket itself.
    pub(super) own: SocketAddr,
    /// The address that it is connected to.
    pub(super) remote: SocketAddr,
}

/// A way to find the owner of a socket. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) enum SocketOwners {
    /// A `sock_diag` request.
    SockDiag(Arc<Mutex<DiagSocket>>),
    /// The lists of sockets below `/proc/net`.
    ProcNet,
}

/// A socket for requests. It stays open, because there may be no file descriptor left when it is needed.
#[derive(Debug)]
pub(super) struct DiagSocket {
    socket: OwnedFd,
    /// Number of the last request.
    sequence: u32,
}

impl SocketAddresses {
    /// Returns the addresses with IPv4 addresses in their own form.
    fn to_canonical(self) -> Self {
        let canonical = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Self { own: canonical(self.own), remote: canonical(self.remote) }
    }
}

impl SocketOwners {
    /// Returns the first way that finds the owner of a connection of this process, or `None` if none does.
    pub(super) fn probe() -> Option<Self> {
        let own_uid = rustix::process::geteuid().as_raw();
        let (_listener, client) = connect_to_self()?;
        let own = client.local_addr().ok()?;
        let addresses = SocketAddresses { own, remote: client.peer_addr().ok()? };
        let sock_diag = DiagSocket::open().ok().map(|socket| Self::SockDiag(Arc::new(Mutex::new(socket))));
        let ways = sock_diag.into_iter().chain([Self::ProcNet]);
        ways.into_iter().find(|owners: &Self| owners.find(addresses) == Some(own_uid))
    }

    /// Returns the user id of the owner of a socket. Returns `None` if the socket is not found or has been closed by its owner, in
    /// which case the kernel names root.
    pub(super) fn find(&self, addresses: SocketAddresses) -> Option<u32> {
        let addresses = addresses.to_canonical();
        match self {
            Self::SockDiag(socket) => socket.lock().ignore_poison().find(addresses).ok()?,
            Self::ProcNet => SOCKET_LISTS.iter().find_map(|list| find_in_list(list, addresses)),
        }
    }
}

/// Opens a connection within this process, over IPv4 or else IPv6.
fn connect_to_self() -> Option<(TcpListener, TcpStream)> {
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    loopback.into_iter().find_map(|address| {
        let listener = TcpListener::bind((address, 0)).ok()?;
        let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
        Some((listener, client))
    })
}

impl DiagSocket {
    fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let protocol = Some(netlink::SOCK_DIAG);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol)?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks the kernel for one socket. The answer is there as soon as the request has been sent.
    fn find(&mut self, addresses: SocketAddresses) -> io::Result<Option<u32>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = encode_request(addresses, self.sequence);
        rustix::net::send(&self.socket, &request, SendFlags::empty())?;
        loop {
            let mut reply = [0; 1 << 10];
            let (length, _) = rustix::net::recv(&self.socket, &mut reply, RecvFlags::DONTWAIT)?;
            // The reply to an earlier request, whose reading failed, is skipped.
            if reply[8..12] == self.sequence.to_ne_bytes() {
                return Ok(parse_reply(&reply[..length], addresses));
            }
        }
    }
}

fn encode_request(addresses: SocketAddresses, sequence: u32) -> Vec<u8> {
    let mut request = Vec::with_capacity(REQUEST_LENGTH);
    let length = u32::try_from(REQUEST_LENGTH).unwrap_or_default();
    request.extend(length.to_ne_bytes());
    request.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend(NLM_F_REQUEST.to_ne_bytes());
    request.extend(sequence.to_ne_bytes());
    // The sender, which the kernel knows.
    request.extend([0; 4]);
    let family = if addresses.own.is_ipv4() { AF_INET } else { AF_INET6 };
    // No extensions; one byte of padding; sockets in any state.
    request.extend([family, IPPROTO_TCP, 0, 0]);
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(encode_id(addresses));
    request
}

/// Encodes the id of a socket on any interface, without a cookie.
fn encode_id(addresses: SocketAddresses) -> [u8; ID_LENGTH] {
    let mut id = [0; ID_LENGTH];
    id[..2].copy_from_slice(&addresses.own.port().to_be_bytes());
    id[2..4].copy_from_slice(&addresses.remote.port().to_be_bytes());
    write_address(&mut id[4..20], addresses.own.ip());
    write_address(&mut id[20..36], addresses.remote.ip());
    id[40..].fill(0xff);
    id
}

fn write_address(field: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => field[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => field.copy_from_slice(&address.octets()),
    }
}

/// Returns the owner in a reply, if it is about the socket that was asked for: the kernel may also return a socket that
/// listens on the same port.
fn parse_reply(reply: &[u8], addresses: SocketAddresses) -> Option<u32> {
    let reply = reply.get(..REPLY_LENGTH)?;
    let kind = u16::from_ne_bytes(reply[4..6].try_into().ok()?);
    let found = parse_id(reply[HEADER_LENGTH], &reply[HEADER_LENGTH + 4..][..ID_LENGTH])?;
    let number = |offset: usize| Some(u32::from_ne_bytes(reply[offset..offset + 4].try_into().ok()?));
    let uid = number(REPLY_LENGTH - 8)?;
    let inode = number(REPLY_LENGTH - 4)?;
    (kind == SOCK_DIAG_BY_FAMILY && found.to_canonical() == addresses && inode != 0).then_some(uid)
}

/// Parses the ports and addresses in the id of a socket. An IPv6 socket may be connected over IPv4.
fn parse_id(family: u8, id: &[u8]) -> Option<SocketAddresses> {
    let port = |offset: usize| Some(u16::from_be_bytes(id[offset..offset + 2].try_into().ok()?));
    let address = |offset: usize| -> Option<IpAddr> {
        match family {
            AF_INET => Some(<[u8; 4]>::try_from(&id[offset..offset + 4]).ok()?.into()),
            AF_INET6 => Some(<[u8; 16]>::try_from(&id[offset..offset + 16]).ok()?.into()),
            _ => None,
        }
    };
    let own = SocketAddr::new(address(4)?, port(0)?);
    Some(SocketAddresses { own, remote: SocketAddr::new(address(20)?, port(2)?) })
}

/// Searches a list of sockets.
fn find_in_list(list: &str, addresses: SocketAddresses) -> Option<u32> {
    let lines = BufReader::new(File::open(list).ok()?).lines();
    lines.map_while(Result::ok).find_map(|line| parse_line(&line, addresses))
}

/// Returns the owner in a line of a list, if it is about this socket and the socket is open.
fn parse_line(line: &str, addresses: SocketAddresses) -> Option<u32> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, own, remote, _, _, _, _, uid, _, inode, ..] = fields[..] else { return None };
    let found = SocketAddresses { own: parse_address(own)?, remote: parse_address(remote)? };
    if found.to_canonical() != addresses || inode == "0" {
        return None;
    }
    uid.parse().ok()
}

/// Parses an address such as `0100007F:1E25`: words in the byte order of the machine, and the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |index: usize| {
        let digits = address.get(index * 8..index * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip: IpAddr = match address.len() {
        8 => word(0)?.into(),
        32 => {
            let octets: Vec<u8> = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            <[u8; 16]>::try_from(octets).ok()?.into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways() -> [SocketOwners; 2] {
        let socket = DiagSocket::open().unwrap();
        [SocketOwners::SockDiag(Arc::new(Mutex::new(socket))), SocketOwners::ProcNet]
    }

    fn addresses(socket: &TcpStream) -> SocketAddresses {
        SocketAddresses { own: socket.local_addr().unwrap(), remote: socket.peer_addr().unwrap() }
    }

    #[test]
    fn owner_of_own_connection_is_found_in_both_ways() {
        let own_uid = rustix::process::geteuid().as_raw();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            for owners in ways() {
                assert_eq!(owners.find(addresses(&client)), Some(own_uid), "{owners:?} {address}");
            }
        }
        assert!(matches!(SocketOwners::probe(), Some(SocketOwners::SockDiag(_))));
    }

    #[test]
    fn mapped_address_is_found_as_ipv4() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mapped = SocketAddr::new(Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), port);
        let client = TcpStream::connect(mapped).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let seen = SocketAddresses { own: peer, remote: server.local_addr().unwrap() };
        for owners in ways() {
            assert!(owners.find(seen).is_some() && owners.find(addresses(&client)).is_some(), "{owners:?}");
        }
    }

    #[test]
    fn closed_and_listening_sockets_have_no_owner() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let closed = addresses(&client);
        let (_server, _) = listener.accept().unwrap();
        drop(client);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = other.local_addr().unwrap();
        let listening = SocketAddresses { own, remote: listener.local_addr().unwrap() };
        for owners in ways() {
            assert_eq!(owners.find(closed), None, "{owners:?}: the kernel says root");
            assert_eq!(owners.find(listening), None, "{owners:?}");
        }
    }

    #[test]
    fn line_of_a_list_is_parsed() {
        let line = "   4: 0100007F:C350 0100007F:1E25 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100";
        let addresses = SocketAddresses {
            own: "127.0.0.1:50000".parse().unwrap(),
            remote: "127.0.0.1:7717".parse().unwrap(),
        };
        assert_eq!(parse_line(line, addresses), Some(1000));
        assert_eq!(parse_line(&line.replace(" 4711 ", " 0 "), addresses), None, "a closed socket");
        assert_eq!(parse_line(&line.replace("C350", "C351"), addresses), None);
        assert_eq!(parse_line("  sl  local_address rem_address   st", addresses), None);
        let v6 = parse_address("00000000000000000000000001000000:1E25").unwrap();
        assert_eq!(v6, "[::1]:7717".parse().unwrap());
    }

    #[test]
    fn broken_replies_have_no_owner() {
        let addresses =
            SocketAddresses { own: "[::1]:1".parse().unwrap(), remote: "[::1]:2".parse().unwrap() };
        assert_eq!(encode_request(addresses, 1).len(), REQUEST_LENGTH);
        for length in 0..REPLY_LENGTH + 8 {
            assert_eq!(parse_reply(&vec![0; length], addresses), None);
        }
    }
}
