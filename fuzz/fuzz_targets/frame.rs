//! Line framing: the chunks of the input do not matter, no line exceeds the limit, and no bytes are lost.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::protocol::framing::{Frame, FrameDecoder, OversizeMessage, replace_line_breaks};

/// Returns the lines of `input`, fed in chunks of `step` bytes; `None` stands for a line over the limit.
fn lines(input: &[u8], limit: usize, step: usize) -> Vec<Option<Vec<u8>>> {
    let mut decoder = FrameDecoder::new(limit);
    let mut found = Vec::new();
    for chunk in input.chunks(step.max(1)) {
        decoder.push(chunk);
        while let Some(frame) = decoder.next_frame() {
            found.push(match frame {
                Frame::Oversize(OversizeMessage { head, end: Some(end), .. }) => {
                    assert!(end.tail.len() <= 4 << 10 && end.size >= head.len() as u64 - 1);
                    assert_eq!(found.last(), Some(&None));
                    continue;
                }
                Frame::Line(line) => {
                    assert!(line.len() <= limit && !line.contains(&b'\n'));
                    Some(line.to_vec())
                }
                Frame::Oversize(oversize) => {
                    assert!(oversize.head.len() <= 4 << 10);
                    None
                }
            });
        }
    }
    if let Some(rest) = decoder.take_remainder() {
        found.push((rest.len() <= limit).then(|| rest.to_vec()));
    }
    found
}

fuzz_target!(|data: &[u8]| {
    let [limit, step, input @ ..] = data else { return };
    let limit = usize::from(*limit);
    let step = usize::from(*step);
    assert_eq!(lines(input, limit, input.len()), lines(input, limit, step));
    // Without a limit, every line is returned unchanged.
    let unlimited = lines(input, usize::MAX - 1, step);
    let expected = input.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut expected: Vec<Option<Vec<u8>>> = expected.map(|line| Some(line.to_vec())).collect();
    expected.pop_if(|last| last.as_ref().is_none_or(Vec::is_empty));
    assert_eq!(unlimited, expected);
    let mut flat = input.to_vec();
    replace_line_breaks(&mut flat);
    assert!(flat.len() == input.len() && !flat.contains(&b'\n') && !flat.contains(&b'\r'));
});
