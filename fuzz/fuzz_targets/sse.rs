//! Server-sent events: the chunks of the input do not matter, no event exceeds the limit, and events round-trip.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::protocol::sse::{SseDecoder, SseEvent, write_event};

const LIMIT: usize = 1 << 10;
const UNLIMITED: usize = usize::MAX >> 1;

/// Decodes a stream that is fed in chunks of `step` bytes. An event over the limit is its size.
fn decode(input: &[u8], step: usize, limit: usize) -> Vec<Result<SseEvent, u64>> {
    let mut decoder = SseDecoder::new(limit);
    let mut events = Vec::new();
    for chunk in input.chunks(step.max(1)) {
        decoder.push(chunk);
        loop {
            match decoder.next_event() {
                Ok(Some(event)) => {
                    assert!(event.data.len() <= limit);
                    events.push(Ok(event));
                }
                Ok(None) => break,
                Err(oversize) => events.extend(oversize.end.map(|end| Err(end.size))),
            }
        }
    }
    events
}

fuzz_target!(|data: &[u8]| {
    let [step, input @ ..] = data else { return };
    let step = usize::from(*step);
    assert_eq!(decode(input, input.len(), LIMIT), decode(input, step, LIMIT));
    assert_eq!(decode(input, input.len(), UNLIMITED), decode(input, step, UNLIMITED));
    let mut written = Vec::new();
    write_event(&mut written, input);
    let decoded = decode(&written, step, UNLIMITED);
    let expected: Vec<u8> = input.iter().map(|byte| if *byte == b'\r' { b' ' } else { *byte }).collect();
    assert_eq!(decoded.len(), 1);
    assert_eq!(decoded[0].as_ref().map(|event| &*event.data), Ok(&*expected));
});
