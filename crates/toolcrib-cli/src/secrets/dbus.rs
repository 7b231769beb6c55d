//! As much of D-Bus as it takes to ask one service of the session a few questions: one connection, one question at a time,
//! and nobody is waited for longer than a few seconds. A whole client would bring 70 crates and a runtime of its own.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use zeroize::Zeroizing;

use super::marshal::{Reader, Writer};

/// The largest message that is read.
const LARGEST: usize = 1 << 20;

/// Messages for nobody in particular that may come before an answer.
const MOST_OTHERS: usize = 100;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Silence {
    /// Nobody is there to ask.
    Nobody(String),
    /// The answer is an error of this name.
    Refused(String),
    /// It took too long.
    TooLong,
    /// Something else went wrong.
    Broken(String),
}

impl From<io::Error> for Silence {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::TooLong,
            _ => Self::Broken(error.to_string()),
        }
    }
}

/// What is asked of whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    pub(super) to: &'a str,
    pub(super) path: &'a str,
    pub(super) interface: &'a str,
    pub(super) member: &'a str,
    /// Of what the question carries.
    pub(super) signature: &'a str,
}

/// A connection to the bus of the session.
#[derive(Debug)]
pub(super) struct Bus {
    stream: UnixStream,
    last: u32,
}

impl Bus {
    /// Connects to the first of these addresses that takes us; each step may take as long as `patience`.
    pub(super) fn connect(addresses: &str, patience: Duration) -> Result<Self, Silence> {
        let mut failed = "there is no session bus".to_owned();
        for address in addresses.split(';') {
            match dial(address) {
                Ok(stream) => return Self::greet(stream, patience),
                Err(error) => failed = format!("`{address}`: {error}"),
            }
        }
        Err(Silence::Nobody(failed))
    }

    fn greet(mut stream: UnixStream, patience: Duration) -> Result<Self, Silence> {
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        let id = rustix::process::geteuid().as_raw().to_string();
        let id: String = id.bytes().map(|digit| format!("{digit:02x}")).collect();
        stream.write_all(format!("\0AUTH EXTERNAL {id}\r\n").as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") && line.len() < 512 {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        if !line.starts_with(b"OK ") {
            return Err(Silence::Broken("the session bus does not let us in".to_owned()));
        }
        stream.write_all(b"BEGIN\r\n")?;
        let mut bus = Self { stream, last: 0 };
        let hello = Question {
            to: "org.freedesktop.DBus",
            path: "/org/freedesktop/DBus",
            interface: "org.freedesktop.DBus",
            member: "Hello",
            signature: "",
        };
        bus.ask(hello, &Writer::default())?;
        Ok(bus)
    }

    /// Asks, and waits for the answer to this very question.
    pub(super) fn ask(&mut self, question: Question<'_>, body: &Writer) -> Result<Reader, Silence> {
        self.last += 1;
        self.stream.write_all(&message(self.last, question, body.bytes()))?;
        for _ in 0..MOST_OTHERS {
            let (kind, about, name, body) = self.read()?;
            match kind {
                RETURN if about == self.last => return Ok(body),
                ERROR if about == self.last => return Err(refusal(name)),
                _ => {}
            }
        }
        Err(Silence::Broken("the session bus talks of other things".to_owned()))
    }

    /// One message: its kind, which question it answers, the name of an error, and what it carries.
    fn read(&mut self) -> Result<(u8, u32, String, Reader), Silence> {
        let strange = || Silence::Broken("the session bus says what cannot be understood".to_owned());
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        if head[0] != b'l' {
            return Err(strange());
        }
        let number = |at: usize| {
            let bytes = [head[at], head[at + 1], head[at + 2], head[at + 3]];
            usize::try_from(u32::from_le_bytes(bytes)).unwrap_or(usize::MAX)
        };
        let (length, fields) = (number(4), number(12));
        if length > LARGEST || fields > LARGEST {
            return Err(strange());
        }
        let mut bytes = head[12..].to_vec();
        bytes.resize(4 + fields.next_multiple_of(8), 0);
        self.stream.read_exact(&mut bytes[4..])?;
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let (mut about, mut name) = (0, String::new());
        // The fields begin at the twelfth byte, which counts for where things are aligned.
        let mut reader = Reader::new([&[0; 12], &bytes[..4 + fields]].concat());
        reader.skip(16);
        while !reader.is_empty() {
            reader.align(8);
            let code = reader.byte().ok_or_else(strange)?;
            let signature = reader.signature().ok_or_else(strange)?;
            match (code, signature.as_str()) {
                (5, "u") => about = reader.number().ok_or_else(strange)?,
                (4, "s") => name = reader.string().ok_or_else(strange)?,
                (_, "s" | "o") => drop(reader.string().ok_or_else(strange)?),
                (_, "u") => drop(reader.number().ok_or_else(strange)?),
                (_, "g") => drop(reader.signature().ok_or_else(strange)?),
                _ => return Err(strange()),
            }
        }
        Ok((head[1], about, name, Reader::new(body)))
    }
}

/// Nobody has the name and nobody can be started for it, or the answer is no.
fn refusal(name: String) -> Silence {
    let absent = ["ServiceUnknown", "NameHasNoOwner"].iter().any(|end| name.ends_with(end))
        || name.starts_with("org.freedesktop.DBus.Error.Spawn");
    if absent { Silence::Nobody(name) } else { Silence::Refused(name) }
}

fn dial(address: &str) -> io::Result<UnixStream> {
    let unknown = || io::Error::new(ErrorKind::Unsupported, "not an address that can be used here");
    let pairs = address.strip_prefix("unix:").ok_or_else(unknown)?.split(',');
    for (key, value) in pairs.filter_map(|pair| pair.split_once('=')) {
        let value = crate::percent::decode(value);
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
    Err(unknown())
}

/// A question as it goes over the wire.
fn message(serial: u32, question: Question<'_>, body: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut fields = Writer::default();
    let texts = [(1, "o", question.path), (2, "s", question.interface), (3, "s", question.member)];
    for (code, signature, text) in texts.into_iter().chain([(6, "s", question.to)]) {
        fields.align(8);
        fields.byte(code);
        fields.signature(signature);
        fields.string(text);
    }
    if !question.signature.is_empty() {
        fields.align(8);
        fields.byte(8);
        fields.signature("g");
        fields.signature(question.signature);
    }
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let mut out = Writer::default();
    for byte in [b'l', CALL, 0, 1] {
        out.byte(byte);
    }
    out.number(length);
    out.number(serial);
    // Fields are aligned among themselves as they are in the message: both begin at a multiple of eight.
    out.number(u32::try_from(fields.bytes().len()).unwrap_or(u32::MAX));
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

    use super::*;

    #[test]
    fn a_question_is_written_as_the_specification_says() {
        let question = Question { to: "a.b", path: "/c", interface: "d.e", member: "F", signature: "s" };
        let mut body = Writer::default();
        body.string("hi");
        let bytes = message(7, question, body.bytes());
        assert_eq!(&bytes[..12], b"l\x01\0\x01\x07\0\0\0\x07\0\0\0");
        assert_eq!(&bytes[16..27], b"\x01\x01o\0\x02\0\0\0/c\0");
        assert!(bytes.ends_with(b"\x02\0\0\0hi\0") && (bytes.len() - 7).is_multiple_of(8));
    }

    #[test]
    fn a_bus_that_says_nothing_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let _silent = UnixListener::bind(&path).unwrap();
        let address = format!("unix:path={},guid=0", path.display());
        let asked = Bus::connect(&address, Duration::from_millis(50));
        assert!(matches!(asked, Err(Silence::TooLong)), "{asked:?}");
        for nobody in ["", "unix:path=/nowhere/bus", "tcp:host=x", "autolaunch:"] {
            let asked = Bus::connect(nobody, Duration::from_millis(50));
            assert!(matches!(asked, Err(Silence::Nobody(_))), "{nobody}: {asked:?}");
        }
    }
}
