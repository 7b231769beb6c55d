//! Events: the cut of the input changes nothing, no event is over its limit, and what is written is read again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::wire::sse::{SseEvent, SseEvents, write_event};

const LIMIT: usize = 1 << 10;

/// The events of a stream fed in pieces; it ends where the limit is broken.
fn events(input: &[u8], step: usize, limit: usize) -> (Vec<SseEvent>, bool) {
    let mut stream = SseEvents::new(limit);
    let mut found = Vec::new();
    for piece in input.chunks(step.max(1)) {
        stream.push(piece);
        loop {
            match stream.next_event() {
                Ok(Some(event)) => {
                    assert!(event.data.len() <= limit);
                    found.push(event);
                }
                Ok(None) => break,
                Err(_) => return (found, true),
            }
        }
    }
    (found, false)
}

fuzz_target!(|data: &[u8]| {
    let [step, input @ ..] = data else { return };
    let _ = events(input, usize::from(*step), LIMIT);
    let (whole, pieces) =
        (events(input, input.len(), usize::MAX >> 1), events(input, usize::from(*step), usize::MAX >> 1));
    assert_eq!(whole, pieces);
    let mut written = Vec::new();
    write_event(&mut written, input);
    let (read, _) = events(&written, usize::from(*step), usize::MAX >> 1);
    let expected: Vec<u8> = input.iter().map(|byte| if *byte == b'\r' { b' ' } else { *byte }).collect();
    assert_eq!(read.len(), 1);
    assert_eq!(read[0].data, expected);
});
