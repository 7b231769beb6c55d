//! Server-sent events: the chunks of the input do not matter, no event exceeds the limit, and events round-trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::protocol::sse::{SseDecoder, SseEvent, write_event};

const LIMIT: usize = 1 << 10;
const UNLIMITED: usize = usize::MAX >> 1;

/// The events of a stream, and whether it ended because an event was too large.
#[derive(Debug, PartialEq)]
struct Decoded {
    events: Vec<SseEvent>,
    is_too_large: bool,
}

/// Decodes a stream that is fed in chunks of `step` bytes.
fn decode(input: &[u8], step: usize, limit: usize) -> Decoded {
    let mut decoder = SseDecoder::new(limit);
    let mut events = Vec::new();
    for chunk in input.chunks(step.max(1)) {
        decoder.push(chunk);
        loop {
            match decoder.next_event() {
                Ok(Some(event)) => {
                    assert!(event.data.len() <= limit);
                    events.push(event);
                }
                Ok(None) => break,
                Err(_) => return Decoded { events, is_too_large: true },
            }
        }
    }
    Decoded { events, is_too_large: false }
}

fuzz_target!(|data: &[u8]| {
    let [step, input @ ..] = data else { return };
    let step = usize::from(*step);
    let _ = decode(input, step, LIMIT);
    assert_eq!(decode(input, input.len(), UNLIMITED), decode(input, step, UNLIMITED));
    let mut written = Vec::new();
    write_event(&mut written, input);
    let decoded = decode(&written, step, UNLIMITED).events;
    let expected: Vec<u8> = input.iter().map(|byte| if *byte == b'\r' { b' ' } else { *byte }).collect();
    assert_eq!(decoded.len(), 1);
    assert_eq!(decoded[0].data, expected);
});
