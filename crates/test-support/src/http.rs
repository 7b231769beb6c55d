//! A minimal HTTP/1.1 client that sends exact bytes and reads responses as they arrive.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;
use toolcrib::protocol::sse::SseDecoder;

use crate::WAIT_LIMIT;

/// A response whose body may be incomplete. Dropping it closes the connection.
#[derive(Debug)]
pub struct Stream {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    length: Length,
    events: SseDecoder,
    /// The ids of the events so far, including empty ones.
    pub ids: Vec<String>,
}

/// The way in which the end of a body is found.
#[derive(Debug, Clone, Copy)]
enum Length {
    Remaining(usize),
    Chunked,
    UntilClose,
    Ended,
}

/// A complete response.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, decoded.
    pub body: Vec<u8>,
}

/// Sends raw bytes on a new connection and reads the head of the response.
pub fn send(address: SocketAddr, bytes: &[u8]) -> Stream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    // A server that refuses early may close before it has read everything; its response can still be read.
    let _ = stream.write_all(bytes);
    Stream::read(stream)
}

/// Sends a request on a new connection and reads the head of the response. Adds `Host` and `Content-Length` unless given.
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

/// Sends a request on a new connection and reads the whole response.
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
        let status_line = read_line(&mut reader);
        let status = status_line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("not an HTTP response: {status_line:?}"));
        let mut headers = Vec::new();
        loop {
            let header = read_line(&mut reader);
            let Some((name, value)) = header.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let length = match (find(&headers, "content-length"), find(&headers, "transfer-encoding")) {
            (_, Some(_)) => Length::Chunked,
            (Some(length), None) => Length::Remaining(length.parse().unwrap()),
            (None, None) if matches!(status, 100..200 | 204 | 304) => Length::Ended,
            (None, None) => Length::UntilClose,
        };
        Self { status, headers, reader, length, events: SseDecoder::new(64 << 20), ids: Vec::new() }
    }

    /// Reads the next chunk of the body; `None` at its end.
    fn read_chunk(&mut self) -> Option<Vec<u8>> {
        match self.length {
            Length::Ended | Length::Remaining(0) => None,
            Length::Remaining(remaining) => {
                let mut chunk = vec![0; remaining.min(64 << 10)];
                self.reader.read_exact(&mut chunk).unwrap();
                self.length = Length::Remaining(remaining - chunk.len());
                Some(chunk)
            }
            Length::UntilClose => {
                let mut chunk = vec![0; 64 << 10];
                let count = self.reader.read(&mut chunk).unwrap_or(0);
                chunk.truncate(count);
                (count > 0).then_some(chunk)
            }
            Length::Chunked => {
                let size =
                    usize::from_str_radix(read_line(&mut self.reader).split(';').next()?.trim(), 16).ok()?;
                let mut chunk = vec![0; size + 2];
                self.reader.read_exact(&mut chunk).ok()?;
                chunk.truncate(size);
                if size == 0 {
                    self.length = Length::Ended;
                    return None;
                }
                Some(chunk)
            }
        }
    }

    /// Returns the next event of an event stream, decoded; `None` at the end of the stream.
    pub fn next_event(&mut self) -> Option<Value> {
        loop {
            if let Some(event) = self.events.next_event().unwrap() {
                self.ids.extend(event.id);
                if event.data.is_empty() {
                    continue;
                }
                return Some(serde_json::from_slice(&event.data).unwrap());
            }
            let chunk = self.read_chunk()?;
            self.events.push(&chunk);
        }
    }

    /// Reads the rest of the response.
    pub fn finish(mut self) -> Response {
        let mut body = Vec::new();
        while let Some(chunk) = self.read_chunk() {
            body.extend_from_slice(&chunk);
        }
        Response { status: self.status, headers: self.headers, body }
    }
}

fn read_line(reader: &mut BufReader<TcpStream>) -> String {
    let mut line = String::new();
    let _ = reader.read_line(&mut line);
    line.trim_end().to_owned()
}

impl Response {
    /// Returns a header by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    /// Returns the body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns every message in the body, which is one JSON object or an event stream.
    pub fn messages(&self) -> Vec<Value> {
        if self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            let mut events = SseDecoder::new(64 << 20);
            events.push(&self.body);
            let data =
                std::iter::from_fn(|| events.next_event().unwrap()).filter(|event| !event.data.is_empty());
            return data.map(|event| serde_json::from_slice(&event.data).unwrap()).collect();
        }
        serde_json::from_slice(&self.body).into_iter().collect()
    }

    /// Returns the last message, which is the response.
    pub fn message(&self) -> Value {
        self.messages().pop().unwrap_or_default()
    }

    /// Returns the JSON-RPC error code, if it is an error.
    pub fn code(&self) -> Option<i64> {
        self.message()["error"]["code"].as_i64()
    }
}
