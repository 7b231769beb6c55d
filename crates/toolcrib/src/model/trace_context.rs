//! Trace contexts in the format of W3C, and the spans of a call that is traced.

use std::sync::Arc;

/// The longest `tracestate` that is passed on.
const MAX_STATE: usize = 512;
/// The flag of a trace that is recorded.
const SAMPLED: u8 = 1;

/// The position in a trace that a client or the gateway passes on, as `traceparent` and `tracestate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The id of the trace; not zero.
    pub trace_id: u128,
    /// The id of the span that the next one belongs to; not zero.
    pub span_id: u64,
    /// The trace flags.
    pub flags: u8,
    /// The `tracestate`, if there is one.
    pub state: Option<Arc<str>>,
}

impl TraceContext {
    /// Parses a `traceparent` and the `tracestate` that came with it. A state that is too long or not printable is left out.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let mut parts = traceparent.splitn(5, '-');
        let version = parse_hex(parts.next()?, 2)?;
        let trace_id = parse_hex(parts.next()?, 32)?;
        let span_id = parse_hex(parts.next()?, 16)?;
        let flags = parse_hex(parts.next()?, 2)?;
        // Later versions may have more parts.
        let has_more = parts.next().is_some();
        if version == 0xff || version == 0 && has_more || trace_id == 0 || span_id == 0 {
            return None;
        }
        let is_valid = |state: &&str| {
            let is_printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            !state.is_empty() && state.len() <= MAX_STATE && state.bytes().all(is_printable)
        };
        Some(Self {
            trace_id,
            span_id: u64::try_from(span_id).ok()?,
            flags: u8::try_from(flags).ok()?,
            state: tracestate.filter(is_valid).map(Arc::from),
        })
    }

    /// Returns whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }

    /// Returns the `traceparent`.
    pub fn to_traceparent(&self) -> String {
        self.traceparent_digits().map(char::from).iter().collect()
    }

    /// Returns the bytes of the `traceparent`.
    pub(crate) fn traceparent_digits(&self) -> [u8; 55] {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&mut text[3..35], &self.trace_id.to_be_bytes());
        write_hex(&mut text[36..52], &self.span_id.to_be_bytes());
        write_hex(&mut text[53..], &[self.flags]);
        text
    }
}

/// Writes bytes as lower-case hexadecimal digits. A formatter would need several times the instructions.
fn write_hex(digits: &mut [u8], bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 0xf)];
    }
}

/// Parses lower-case hexadecimal digits.
fn parse_hex(text: &str, digits: usize) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_valid = text.len() == digits && text.bytes().all(is_digit);
    u128::from_str_radix(text, 16).ok().filter(|_| is_valid)
}

/// How messages are carried, by the values of the OpenTelemetry attribute `network.transport`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkTransport {
    /// The pipes of a process.
    Pipe,
    /// A TCP connection.
    Tcp,
    /// A Unix socket.
    Unix,
}

impl NetworkTransport {
    /// Returns the value of the attribute.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pipe => "pipe",
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }
}

/// The spans of a call that is traced: one for the request of the client, whose id is that of the call, and one for the
/// request to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSpans {
    /// The id of the trace.
    pub trace_id: u128,
    /// The trace that the client passed on, if there is one.
    pub parent: Option<TraceContext>,
    /// The id of the span of the request to the server.
    pub client_span: u64,
    /// The id of the client's session, if it has one.
    pub session: Option<Arc<str>>,
    /// How the client is connected, if it is known.
    pub client_transport: Option<NetworkTransport>,
    /// How the server is connected, if the call was sent to one outside of the process.
    pub server_transport: Option<NetworkTransport>,
}

impl CallSpans {
    /// Creates the spans of a call about whose connections nothing is known.
    pub fn new(trace_id: u128, parent: Option<TraceContext>, client_span: u64) -> Self {
        Self { trace_id, parent, client_span, session: None, client_transport: None, server_transport: None }
    }

    /// Returns the context that is passed on to the server.
    pub(crate) fn outgoing(&self) -> TraceContext {
        TraceContext {
            trace_id: self.trace_id,
            span_id: self.client_span,
            flags: self.parent.as_ref().map_or(0, |parent| parent.flags) | SAMPLED,
            state: self.parent.as_ref().and_then(|parent| parent.state.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_traceparents_are_none() {
        let valid = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(valid, Some("a=1,b=2")).unwrap();
        assert_eq!((context.to_traceparent().as_str(), context.state.as_deref()), (valid, Some("a=1,b=2")));
        assert!(TraceContext::parse(&valid.replace("00-0", "cc-0"), None).is_some());
        assert!(TraceContext::parse(&format!("{}-more", valid.replace("00-0", "cc-0")), None).is_some());
        assert_eq!(TraceContext::parse(valid, Some("a\nb")).unwrap().state, None);
        for invalid in [
            "".to_owned(),
            format!("{valid}-more"),
            format!("{valid}0"),
            valid.to_uppercase(),
            valid.replace("00-0", "ff-0"),
            valid.replace("b7ad6b7169203331", "0000000000000000"),
            valid.replace("0af7651916cd43dd8448eb211c80319c", "00000000000000000000000000000000"),
            valid.replace("00-0a", "00-+a"),
        ] {
            assert_eq!(TraceContext::parse(&invalid, None), None, "{invalid}");
        }
    }

    proptest! {
        #[test]
        fn context_survives_its_text(trace_id in 1u128.., span_id in 1u64.., flags: u8) {
            let context = TraceContext { trace_id, span_id, flags, state: None };
            prop_assert_eq!(TraceContext::parse(&context.to_traceparent(), None), Some(context));
        }

        #[test]
        fn any_text_parses_to_its_own_prefix_or_not_at_all(text in "[0-9a-f+-]{0,60}|\\PC{0,60}") {
            if let Some(context) = TraceContext::parse(&text, Some(&text)) {
                prop_assert_eq!(&context.to_traceparent()[2..], &text[2..55]);
            }
        }
    }
}
