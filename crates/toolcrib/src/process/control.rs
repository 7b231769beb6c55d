//! The protocol between a shim and the process that requested it: one spawn request with three file descriptors, then
//! single-byte commands in one direction and fixed-size reports in the other. The fork server gets the shim's end of the socket.

use std::io::{self, IoSlice, IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::spawn_request::SpawnRequest;

/// Command to send SIGTERM to the whole tree.
pub(super) const TERM: u8 = b'T';
/// Command to kill the whole tree.
pub(super) const KILL: u8 = b'K';

/// Request to the fork server.
const FORK: u8 = b'F';

/// Size of an encoded report in bytes.
pub(super) const REPORT_LEN: usize = 5;

/// A message from a shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShimReport {
    /// The shim runs with this pid.
    Forked(i32),
    /// The server is being started. Without a further report, the shim was killed meanwhile.
    Starting,
    /// The server runs with this pid.
    Started(i32),
    /// The shim or the server could not be started, with this errno.
    Failed(i32),
    /// The server exited with this status.
    Exited(i32),
    /// The server was killed by this signal.
    Killed(i32),
    /// The tree is being killed because it has this many processes.
    TooManyProcesses(i32),
    /// No process of the tree is left that can be ended, and the shim exits. One that is killed does not report this.
    Finished,
    /// The process with this pid belongs to the tree and is in a session of its own.
    InOtherSession(i32),
}

impl ShimReport {
    pub(super) fn to_bytes(self) -> [u8; REPORT_LEN] {
        let (kind, number) = match self {
            Self::Forked(pid) => (b'c', pid),
            Self::Starting => (b'b', 0),
            Self::Started(pid) => (b'p', pid),
            Self::Failed(errno) => (b'f', errno),
            Self::Exited(status) => (b'e', status),
            Self::Killed(signal) => (b'k', signal),
            Self::TooManyProcesses(count) => (b'o', count),
            Self::InOtherSession(pid) => (b's', pid),
            Self::Finished => (b'd', 0),
        };
        let [a, b, c, d] = number.to_le_bytes();
        [kind, a, b, c, d]
    }

    pub(super) fn from_bytes([kind, number @ ..]: [u8; REPORT_LEN]) -> Option<Self> {
        let number = i32::from_le_bytes(number);
        Some(match kind {
            b'c' => Self::Forked(number),
            b'b' => Self::Starting,
            b'p' => Self::Started(number),
            b'f' => Self::Failed(number),
            b'e' => Self::Exited(number),
            b'k' => Self::Killed(number),
            b'o' => Self::TooManyProcesses(number),
            b's' => Self::InOtherSession(number),
            b'd' => Self::Finished,
            _ => return None,
        })
    }
}

/// Sends the server's stdio files and as much of the request as fits into the socket buffer. Returns the number of bytes of
/// the request that were sent; the others must follow.
pub(super) fn send_files(control: &UnixStream, request: &[u8], files: &[OwnedFd; 3]) -> io::Result<usize> {
    let header = u32::try_from(request.len()).map_err(io::Error::other)?.to_le_bytes();
    let files = [files[0].as_fd(), files[1].as_fd(), files[2].as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let pieces = [IoSlice::new(&header), IoSlice::new(request)];
    let sent = sendmsg(control, &pieces, &mut ancillary, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    sent.checked_sub(header.len()).ok_or_else(|| io::ErrorKind::WriteZero.into())
}

/// Receives the request and the files, in the shim.
pub(super) fn receive_request(mut control: &UnixStream) -> io::Result<(SpawnRequest, [OwnedFd; 3])> {
    let mut header = [0; 4];
    let received = receive_files(control, &mut header)?;
    if received.bytes != header.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let files = received.files.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
    let mut bytes = vec![0; u32::from_le_bytes(header) as usize];
    control.read_exact(&mut bytes)?;
    let request = SpawnRequest::from_bytes(&bytes).ok_or(io::ErrorKind::InvalidData)?;
    Ok((request, files))
}

/// Sends the control socket of a new shim to the fork server.
pub(super) fn send_control(requests: impl AsFd, control: &OwnedFd) -> io::Result<()> {
    let files = [control.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    sendmsg(requests, &[IoSlice::new(&[FORK])], &mut ancillary, flags)?;
    Ok(())
}

/// Receives the control socket of a new shim, in the fork server. `None` if there will be no more.
pub(super) fn receive_control(requests: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let received = receive_files(requests, &mut [0])?;
    match (received.bytes, received.files.into_iter().next()) {
        (0, _) => Ok(None),
        (_, Some(control)) => Ok(Some(control)),
        (_, None) => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A message with files.
struct ReceivedFiles {
    bytes: usize,
    files: Vec<OwnedFd>,
}

/// Receives up to three files and the bytes that came with them.
fn receive_files(socket: &UnixStream, bytes: &mut [u8]) -> io::Result<ReceivedFiles> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut files = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    Ok(ReceivedFiles { bytes: received.bytes, files })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::secrets::ResolvedSecrets;
    use crate::spec::CommandSpec;

    #[test]
    fn request_arrives_with_its_files() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let spec = CommandSpec::new("sh").arg("x".repeat(10_000));
        let request = SpawnRequest::new(&spec, &ResolvedSecrets::default(), "t").unwrap();
        let (read, write) = io::pipe().unwrap();
        let files = [read.into(), write.into(), std::fs::File::open("/dev/null").unwrap().into()];
        let bytes = request.to_bytes();
        let sent = send_files(&ours, &bytes, &files).unwrap();
        (&ours).write_all(&bytes[sent..]).unwrap();
        let (received, [input, output, _]) = receive_request(&theirs).unwrap();
        assert_eq!(received, request);
        drop(files);
        std::fs::File::from(output).write_all(b"through").unwrap();
        assert_eq!(io::read_to_string(std::fs::File::from(input)).unwrap(), "through");
    }

    #[test]
    fn closed_socket_is_an_error_for_a_shim_and_the_end_for_the_fork_server() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(receive_request(&theirs).is_err());
        assert!(receive_control(&theirs).unwrap().is_none());
    }

    #[test]
    fn each_control_socket_arrives_with_its_own_request() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let pipes = [io::pipe().unwrap(), io::pipe().unwrap()];
        for (number, (_, write)) in pipes.iter().enumerate() {
            let write = OwnedFd::from(write.try_clone().unwrap());
            send_control(&ours, &write).unwrap();
            drop(write);
            let received = receive_control(&theirs).unwrap().unwrap();
            std::fs::File::from(received).write_all(&[number as u8]).unwrap();
        }
        for (number, (mut read, write)) in pipes.into_iter().enumerate() {
            drop(write);
            let mut bytes = Vec::new();
            read.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, [number as u8]);
        }
    }

    #[test]
    fn reports_round_trip() {
        use ShimReport::{
            Exited, Failed, Finished, Forked, InOtherSession, Killed, Started, Starting, TooManyProcesses,
        };
        let reports = [
            Finished,
            Forked(6),
            Starting,
            Started(7),
            Failed(2),
            Exited(-1),
            Killed(9),
            TooManyProcesses(600),
            InOtherSession(8),
        ];
        for report in reports {
            assert_eq!(ShimReport::from_bytes(report.to_bytes()), Some(report));
        }
        assert_eq!(ShimReport::from_bytes(*b"?0000"), None);
    }
}
