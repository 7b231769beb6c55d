//! A minimal HTTP/1.1 client: exactly the bytes a test wants to send, and answers read as they come.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use toolcrib::wire::sse::SseEvents;

use crate::PATIENCE;

/// An answer whose body may still be under way. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    /// The status.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    length: Length,
    events: SseEvents,
    /// The ids of the events so far, empty ones too.
    pub ids: Vec<String>,
}

/// How the end of a body is known.
#[derive(Debug, Clone, Copy)]
enum Length {
    Left(usize),
    Chunked,
    UntilClose,
    Over,
}

/// A whole answer.
#[derive(Debug)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, decoded.
    pub body: Vec<u8>,
}

/// Sends raw bytes on a new connection and reads the head of the answer.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Stream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    // A server that refuses early may close before it has read everything; its answer is still there.
    let _ = stream.write_all(bytes);
    Stream::read(stream)
}

/// Sends a request on a new connection and reads the head of the answer. `Host` and the length are added unless given.
pub fn open(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Stream {
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    let has = |name: &str| headers.iter().any(|(given, _)| given.eq_ignore_ascii_case(name));
    if !has("host") {
        head.push_str(&format!("Host: {address}\r\n"));
    }
    if !has("content-length") && !has("transfer-encoding") && method == "POST" {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    send(address, &[head.as_bytes(), body].concat())
}

/// As [`open`], and reads the answer to its end.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    open(address, method, path, headers, body).finish()
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
}

impl Stream {
    fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let status_line = line(&mut reader);
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not an HTTP answer: {status_line:?}"));
        let mut headers = Vec::new();
        loop {
            let header = line(&mut reader);
            let Some((name, value)) = header.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = match (find(&headers, "content-length"), find(&headers, "transfer-encoding")) {
            (_, Some(_)) => Length::Chunked,
            (Some(length), None) => Length::Left(length.parse().unwrap()),
            (None, None) if matches!(status, 100..200 | 204 | 304) => Length::Over,
            (None, None) => Length::UntilClose,
        };
        Self { status, headers, reader, length, events: SseEvents::new(64 << 20), ids: Vec::new() }
    }

    /// The next piece of the body; `None` at its end.
    fn piece(&mut self) -> Option<Vec<u8>> {
        match self.length {
            Length::Over | Length::Left(0) => None,
            Length::Left(left) => {
                let mut piece = vec![0; left.min(64 << 10)];
                self.reader.read_exact(&mut piece).unwrap();
                self.length = Length::Left(left - piece.len());
                Some(piece)
            }
            Length::UntilClose => {
                let mut piece = vec![0; 64 << 10];
                let count = self.reader.read(&mut piece).unwrap_or(0);
                piece.truncate(count);
                (count > 0).then_some(piece)
            }
            Length::Chunked => {
                let size =
                    usize::from_str_radix(line(&mut self.reader).split(';').next()?.trim(), 16).ok()?;
                let mut piece = vec![0; size + 2];
                self.reader.read_exact(&mut piece).ok()?;
                piece.truncate(size);
                if size == 0 {
                    self.length = Length::Over;
                    return None;
                }
                Some(piece)
            }
        }
    }

    /// The next event of a stream of events, decoded; `None` when the stream has ended.
    pub fn next_event(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.events.next_event().unwrap() {
                self.ids.extend(event.id);
                if event.data.is_empty() {
                    continue;
                }
                return Some(serde_json::from_slice(&event.data).unwrap());
            }
            let piece = self.piece()?;
            self.events.push(&piece);
        }
    }

    /// The rest of the answer.
    pub fn finish(mut self) -> Response {
        let mut body = Vec::new();
        while let Some(piece) = self.piece() {
            body.extend_from_slice(&piece);
        }
        Response { status: self.status, headers: self.headers, body }
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let _ = reader.read_line(&mut line);
    line.trim_end().to_owned()
}

impl Response {
    /// A header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Every message in the body, which is one JSON object or a stream of events.
    pub fn messages(&self) -> Vec<Value> {
        if self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let mut events = SseEvents::new(64 << 20);
            events.push(&self.body);
            let data =
                std::iter::from_fn(|| events.next_event().unwrap()).filter(|event| !event.data.is_empty());
            return data.map(|event| serde_json::from_slice(&event.data).unwrap()).collect();
        }
        serde_json::from_slice(&self.body).into_iter().collect()
    }

    /// The last message, which is the answer.
    pub fn message(&self) -> Value {
        self.messages().pop().unwrap_or_default()
    }

    /// The JSON-RPC error code in it, if it is an error.
    pub fn code(&self) -> Option<i64> {
        self.message()["error"]["code"].as_i64()
    }
}
