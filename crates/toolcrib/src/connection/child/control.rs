//! What passes between a shim and whoever started it: one order with three files, then single words both ways.

use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::order::Order;

/// Asks a shim to ask the whole tree to end.
pub(super) const TERM: u8 = b'T';
/// Tells a shim to kill the whole tree.
pub(super) const KILL: u8 = b'K';

/// Bytes of a report.
pub(super) const REPORT: usize = 5;

/// What a shim tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Report {
    /// The server runs under this number.
    Started(i32),
    /// The server could not be started; this is the system's error number.
    Failed(i32),
    /// The server ended by itself with this status.
    Exited(i32),
    /// The server was ended by this signal.
    Killed(i32),
    /// The tree grew to this many processes, and is being killed.
    Overgrown(i32),
}

impl Report {
    pub(super) fn to_bytes(self) -> [u8; REPORT] {
        let (kind, number) = match self {
            Self::Started(number) => (b'p', number),
            Self::Failed(number) => (b'f', number),
            Self::Exited(number) => (b'e', number),
            Self::Killed(number) => (b'k', number),
            Self::Overgrown(number) => (b'o', number),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, a, b, c, d]
    }

    pub(super) fn from_bytes([kind, number @ ..]: [u8; REPORT]) -> Option<Self> {
        let number = i32::from_le_bytes(number);
        Some(match kind {
            b'p' => Self::Started(number),
            b'f' => Self::Failed(number),
            b'e' => Self::Exited(number),
            b'k' => Self::Killed(number),
            b'o' => Self::Overgrown(number),
            _ => return None,
        })
    }
}

/// Sends the files of a server and the length of its order, which is small enough never to wait; the order follows.
pub(super) fn send_files(control: &UnixStream, length: usize, files: &[OwnedFd; 3]) -> io::Result<()> {
    let length = u32::try_from(length).map_err(io::Error::other)?.to_le_bytes();
    let files = [files[0].as_fd(), files[1].as_fd(), files[2].as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut with = SendAncillaryBuffer::new(&mut space);
    with.push(SendAncillaryMessage::ScmRights(&files));
    match sendmsg(control, &[IoSlice::new(&length)], &mut with, SendFlags::NOSIGNAL)? {
        4 => Ok(()),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

/// The order and the files, at the other end.
pub(super) fn receive(mut control: &UnixStream) -> io::Result<(Order, [OwnedFd; 3])> {
    let mut length = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut with = RecvAncillaryBuffer::new(&mut space);
    let got = retry_on_intr(|| {
        recvmsg(control, &mut [IoSliceMut::new(&mut length)], &mut with, RecvFlags::CMSG_CLOEXEC)
    })?;
    if got.bytes != length.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut files = Vec::new();
    for message in with.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    let files = files.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    control.read_exact(&mut bytes)?;
    let order = Order::from_bytes(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok((order, files))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::secret::Purse;
    use crate::spec::CommandSpec;

    #[test]
    fn an_order_arrives_with_its_files() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let order =
            Order::of(&CommandSpec::new("sh").arg("x".repeat(10_000)), &Purse::default(), "t").unwrap();
        let (read, write) = io::pipe().unwrap();
        let files = [read.into(), write.into(), std::fs::File::open("/dev/null").unwrap().into()];
        let bytes = order.to_bytes();
        send_files(&ours, bytes.len(), &files).unwrap();
        (&ours).write_all(&bytes).unwrap();
        let (received, [input, output, _]) = receive(&theirs).unwrap();
        assert_eq!(received, order);
        drop(files);
        std::fs::File::from(output).write_all(b"through").unwrap();
        assert_eq!(io::read_to_string(std::fs::File::from(input)).unwrap(), "through");
    }

    #[test]
    fn half_an_order_is_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(receive(&theirs).is_err());
    }

    #[test]
    fn reports_are_read_as_they_were_meant() {
        use Report::{Exited, Failed, Killed, Overgrown, Started};
        for report in [Started(7), Failed(2), Exited(-1), Killed(9), Overgrown(600)] {
            assert_eq!(Report::from_bytes(report.to_bytes()), Some(report));
        }
        assert_eq!(Report::from_bytes(*b"?0000"), None);
    }
}
