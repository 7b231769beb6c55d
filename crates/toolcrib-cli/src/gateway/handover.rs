//! The hand-over of the listeners from a running gateway to the one that replaces it (`toolcrib serve --replace`).
//!
//! The new process listens on a Unix socket of its own and asks the running one, over the admin API, to connect to it. Lines of JSON
//! follow; until `started`, the running gateway goes on if the connection ends:
//!
//! | from | message | meaning |
//! |---|---|---|
//! | running | `{"protocol", "listeners"}` and descriptors | the listening sockets; both processes have them now |
//! | new | `{"take": true}` | everything that can fail without the state files has succeeded |
//! | running | `{"sessions": […]}` | it accepts no connections, writes no usage file and has released the lock |
//! | new | `{"started": true}` | it accepts connections |
//! | running | `{"session": {…}}` | a session that changed while it finishes its calls |
//! | new | `{"message": {…}}` | an answer or a cancellation of a client that is about a call of the running gateway |

mod predecessor;
mod requests;
mod successor;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

pub(super) use self::predecessor::HandedListener;
pub(crate) use self::predecessor::Predecessor;
pub(crate) use self::requests::HandoverRequests;
pub(crate) use self::successor::Successor;

/// The version of the messages.
const PROTOCOL: u64 = 1;
/// The public listener, the gateway's own socket and that of the dashboard.
const MAX_LISTENERS: usize = 3;
/// Largest size of the message with the descriptors.
const MAX_OFFER_SIZE: usize = 4 << 10;

/// The connection between the two processes.
struct HandoverChannel {
    reader: MessageReader,
    writer: MessageWriter,
}

/// The receiving side of a channel.
struct MessageReader(BufReader<OwnedReadHalf>);

/// The sending side of a channel.
struct MessageWriter(OwnedWriteHalf);

/// A message and the descriptors that came with it.
struct ReceivedOffer {
    message: Value,
    descriptors: Vec<OwnedFd>,
}

/// Returns the path at which the new gateway waits for the running one that has this socket.
fn handover_path(socket: &Path) -> PathBuf {
    socket.with_extension("handover")
}

impl HandoverChannel {
    fn new(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self { reader: MessageReader(BufReader::new(reader)), writer: MessageWriter(writer) }
    }

    /// Sends a message.
    async fn send(&mut self, message: &Value) -> io::Result<()> {
        self.writer.send(message).await
    }

    /// Receives a message.
    async fn receive(&mut self) -> io::Result<Value> {
        self.reader.receive().await
    }

    /// Sends the first message, with descriptors.
    async fn send_offer(&self, message: &Value, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let line = format!("{message}\n");
        let stream: &UnixStream = self.writer.0.as_ref();
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                control.push(SendAncillaryMessage::ScmRights(descriptors));
                let parts = [IoSlice::new(line.as_bytes())];
                // A closed connection is an error here: programs in Rust ignore SIGPIPE.
                Ok(sendmsg(stream.as_fd(), &parts, &mut control, SendFlags::empty())?)
            })
            .await?;
        // A new socket has room for a line of this size.
        if sent == line.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives the first message, which is alone until it is answered.
    async fn receive_offer(&self) -> io::Result<ReceivedOffer> {
        let stream: &UnixStream = self.writer.0.as_ref();
        let mut bytes = vec![0; MAX_OFFER_SIZE];
        let mut descriptors = Vec::new();
        let count = stream
            .async_io(Interest::READABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_LISTENERS))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let received = recvmsg(stream.as_fd(), &mut parts, &mut control, RecvFlags::empty())?;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(received) = message {
                        descriptors.extend(received);
                    }
                }
                Ok(received.bytes)
            })
            .await?;
        // Not every system can do this while it receives. No server is started before, so none inherits a descriptor.
        for descriptor in &descriptors {
            fcntl_setfd(descriptor, FdFlags::CLOEXEC)?;
        }
        let message = match count {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            _ => serde_json::from_slice(&bytes[..count]).map_err(io::Error::other)?,
        };
        Ok(ReceivedOffer { message, descriptors })
    }
}

impl MessageReader {
    async fn receive(&mut self) -> io::Result<Value> {
        let mut line = String::new();
        match self.0.read_line(&mut line).await? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other process has ended")),
            _ => serde_json::from_str(&line).map_err(io::Error::other),
        }
    }
}

impl MessageWriter {
    async fn send(&mut self, message: &Value) -> io::Result<()> {
        self.0.write_all(format!("{message}\n").as_bytes()).await
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn listeners_and_messages_pass_through_the_channel() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut ours = HandoverChannel::new(ours);
        let mut theirs = HandoverChannel::new(theirs);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        ours.send_offer(&json!({"protocol": PROTOCOL}), &[listener.as_fd()]).await.unwrap();
        let mut offer = theirs.receive_offer().await.unwrap();
        assert_eq!(offer.message["protocol"], PROTOCOL);
        let received = TcpListener::from(offer.descriptors.pop().unwrap());
        assert_eq!(received.local_addr().unwrap(), listener.local_addr().unwrap());
        theirs.send(&json!({"take": true})).await.unwrap();
        assert_eq!(ours.receive().await.unwrap()["take"], true);
        drop(theirs);
        assert_eq!(ours.receive().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
