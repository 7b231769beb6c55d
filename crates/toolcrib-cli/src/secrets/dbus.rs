//! A minimal blocking D-Bus client: one connection, one call at a time, with timeouts. A full client would add 70 crates
//! and its own runtime.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use tokio::time::Instant;
use toolcrib::util::encoding;
use zeroize::Zeroizing;

use super::marshal::{DbusReader, DbusWriter};

/// Size limit of a message.
const MAX_MESSAGE_BYTES: usize = 1 << 20;

/// Limit on signals and other messages that arrive before a reply.
const MAX_UNRELATED_MESSAGES: usize = 100;

const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Reason why a call failed.
#[derive(Debug)]
pub(super) enum DbusError {
    /// There is no bus or no such service.
    Unavailable(String),
    /// The service replied with an error of this name.
    Refused(String),
    Timeout,
    Broken(String),
}

impl From<io::Error> for DbusError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Timeout,
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// A method call.
#[derive(Debug, Clone, Copy)]
pub(super) struct DbusCall<'a> {
    pub(super) destination: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
    /// Signature of the arguments.
    pub(super) signature: &'a str,
}

/// A received message.
struct DbusMessage {
    kind: u8,
    fields: DbusFields,
    body: DbusReader,
}

/// The header fields of a message that matter here.
#[derive(Debug, Default)]
pub(super) struct DbusFields {
    /// Serial of the call that this message replies to.
    reply_serial: u32,
    error_name: String,
}

/// A connection to the session bus.
#[derive(Debug)]
pub(super) struct Bus {
    stream: UnixStream,
    last_serial: u32,
    /// The time limit of a call.
    timeout: Duration,
    /// The end of the current call's time limit.
    deadline: Instant,
}

impl Bus {
    /// Connects to the first reachable address. `timeout` applies to the connection and to each call as a whole.
    pub(super) fn connect(addresses: &str, timeout: Duration) -> Result<Self, DbusError> {
        let mut failure = "there is no session bus".to_owned();
        for address in addresses.split(';') {
            match connect_address(address) {
                Ok(stream) => return Self::authenticate(stream, timeout),
                Err(error) => failure = format!("`{address}`: {error}"),
            }
        }
        Err(DbusError::Unavailable(failure))
    }

    fn authenticate(stream: UnixStream, timeout: Duration) -> Result<Self, DbusError> {
        stream.set_write_timeout(Some(timeout))?;
        let mut bus = Self { stream, last_serial: 0, timeout, deadline: Instant::now() + timeout };
        let user_id = rustix::process::geteuid().as_raw().to_string();
        let hex_id = encoding::to_hex(user_id.as_bytes());
        bus.stream.write_all(format!("\0AUTH EXTERNAL {hex_id}\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            let mut byte = [0];
            bus.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        if !line.starts_with(b"OK ") {
            return Err(DbusError::Broken("the session bus rejected the authentication".to_owned()));
        }
        bus.stream.write_all(b"BEGIN\r\n")?;
        let hello = DbusCall {
            destination: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member: "Hello",
            signature: "",
        };
        bus.call(hello, &DbusWriter::default())?;
        Ok(bus)
    }

    /// Calls a method and waits for its reply.
    pub(super) fn call(&mut self, call: DbusCall<'_>, body: &DbusWriter) -> Result<DbusReader, DbusError> {
        self.last_serial += 1;
        self.deadline = Instant::now() + self.timeout;
        self.stream.write_all(&encode_call(self.last_serial, call, body.bytes()))?;
        for _ in 0..MAX_UNRELATED_MESSAGES {
            let message = self.read_message()?;
            match message.kind {
                METHOD_RETURN if message.fields.reply_serial == self.last_serial => return Ok(message.body),
                ERROR if message.fields.reply_serial == self.last_serial => {
                    return Err(error_reply(message.fields.error_name));
                }
                _ => {}
            }
        }
        Err(DbusError::Broken("the session bus sent too many unrelated messages".to_owned()))
    }

    /// Fills a buffer within the time limit of the call, however slowly the bytes arrive.
    fn read_exact(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            let remaining = self.deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(remaining))?;
            match self.stream.read(&mut buffer[filled..])? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => filled += count,
            }
        }
        Ok(())
    }

    fn read_message(&mut self) -> Result<DbusMessage, DbusError> {
        let malformed = || DbusError::Broken("malformed message from the session bus".to_owned());
        let mut head = [0; 16];
        self.read_exact(&mut head)?;
        if head[0] != b'l' {
            return Err(malformed());
        }
        let length_at = |offset: usize| {
            let bytes = [head[offset], head[offset + 1], head[offset + 2], head[offset + 3]];
            usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let body_length = length_at(4);
        let fields_length = length_at(12);
        if body_length > MAX_MESSAGE_BYTES || fields_length > MAX_MESSAGE_BYTES {
            return Err(malformed());
        }
        let mut fields = head[12..].to_vec();
        fields.resize(4 + fields_length.next_multiple_of(8), 0);
        self.read_exact(&mut fields[4..])?;
        let mut body = vec![0; body_length];
        self.read_exact(&mut body)?;
        let fields = parse_fields(&fields[4..4 + fields_length]).ok_or_else(malformed)?;
        Ok(DbusMessage { kind: head[1], fields, body: DbusReader::new(body) })
    }
}

/// Parses the header fields of a message. Returns `None` if they are malformed.
pub(super) fn parse_fields(bytes: &[u8]) -> Option<DbusFields> {
    let mut fields = DbusFields::default();
    // The fields start at byte 16 of the message, which matters for their alignment.
    let mut reader = DbusReader::new([&[0; 16], bytes].concat());
    reader.skip(16);
    while !reader.is_empty() {
        reader.align(8);
        let code = reader.read_byte()?;
        let signature = reader.read_signature()?;
        match (code, signature.as_str()) {
            (5, "u") => fields.reply_serial = reader.read_u32()?,
            (4, "s") => fields.error_name = reader.read_string()?,
            (_, "s" | "o") => drop(reader.read_string()?),
            (_, "u") => drop(reader.read_u32()?),
            (_, "g") => drop(reader.read_signature()?),
            _ => return None,
        }
    }
    Some(fields)
}

/// Converts the name of an error reply.
fn error_reply(name: String) -> DbusError {
    let is_unavailable = ["ServiceUnknown", "NameHasNoOwner"].iter().any(|suffix| name.ends_with(suffix))
        || name.starts_with("org.freedesktop.DBus.Error.Spawn");
    if is_unavailable { DbusError::Unavailable(name) } else { DbusError::Refused(name) }
}

fn connect_address(address: &str) -> io::Result<UnixStream> {
    let unsupported = || io::Error::new(ErrorKind::Unsupported, "unsupported D-Bus address");
    let pairs = address.strip_prefix("unix:").ok_or_else(unsupported)?.split(',');
    for (key, value) in pairs.filter_map(|pair| pair.split_once('=')) {
        let value = encoding::percent_decode_lossy(value).into_owned();
        match key {
            "path" => return UnixStream::connect(value),
            #[cfg(target_os = "linux")]
            "abstract" => {
                use std::os::linux::net::SocketAddrExt as _;
                let address = std::os::unix::net::SocketAddr::from_abstract_name(value)?;
                return UnixStream::connect_addr(&address);
            }
            _ => {}
        }
    }
    Err(unsupported())
}

/// Encodes a method call.
fn encode_call(serial: u32, call: DbusCall<'_>, body: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut fields = DbusWriter::default();
    let texts = [(1, "o", call.path), (2, "s", call.interface), (3, "s", call.member)];
    for (code, signature, text) in texts.into_iter().chain([(6, "s", call.destination)]) {
        fields.align(8);
        fields.write_byte(code);
        fields.write_signature(signature);
        fields.write_string(text);
    }
    if !call.signature.is_empty() {
        fields.align(8);
        fields.write_byte(8);
        fields.write_signature("g");
        fields.write_signature(call.signature);
    }
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut out = DbusWriter::default();
    for byte in [b'l', METHOD_CALL, 0, 1] {
        out.write_byte(byte);
    }
    out.write_u32(length);
    out.write_u32(serial);
    // The fields start at a multiple of eight, so their own alignment is also that of the message.
    out.write_u32(u32::try_from(fields.bytes().len()).unwrap_or(u32::MAX));
    let mut out = Zeroizing::new(out.into_bytes());
    out.reserve_exact(fields.bytes().len() + 8 + body.len());
    out.extend_from_slice(fields.bytes());
    let start = out.len().next_multiple_of(8);
    out.resize(start, 0);
    out.extend_from_slice(body);
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::RecvTimeoutError;

    use super::*;

    #[test]
    fn call_is_encoded_as_specified() {
        let call = DbusCall { destination: "a.b", path: "/c", interface: "d.e", member: "F", signature: "s" };
        let mut body = DbusWriter::default();
        body.write_string("hi");
        let bytes = encode_call(7, call, body.bytes());
        assert_eq!(&bytes[..12], b"l\x01\0\x01\x07\0\0\0\x07\0\0\0");
        assert_eq!(&bytes[16..27], b"\x01\x01o\0\x02\0\0\0/c\0");
        assert!(bytes.ends_with(b"\x02\0\0\0hi\0") && (bytes.len() - 7).is_multiple_of(8));
    }

    #[test]
    fn slow_bus_times_out_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let bus = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // One byte every 20 ms, up to the longest line.
            for _ in 0..512 {
                if stream.write_all(b"O").is_err()
                    || stopped.recv_timeout(Duration::from_millis(20)) != Err(RecvTimeoutError::Timeout)
                {
                    break;
                }
            }
        });
        let result = Bus::connect(&format!("unix:path={}", path.display()), Duration::from_millis(200));
        assert!(matches!(result, Err(DbusError::Timeout)), "{result:?}");
        drop(stop);
        bus.join().unwrap();
    }

    #[test]
    fn silent_bus_times_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let _silent = UnixListener::bind(&path).unwrap();
        let address = format!("unix:path={},guid=0", path.display());
        let result = Bus::connect(&address, Duration::from_millis(50));
        assert!(matches!(result, Err(DbusError::Timeout)), "{result:?}");
        for address in ["", "unix:path=/nowhere/bus", "tcp:host=x", "autolaunch:"] {
            let result = Bus::connect(address, Duration::from_millis(50));
            assert!(matches!(result, Err(DbusError::Unavailable(_))), "{address}: {result:?}");
        }
    }
}
