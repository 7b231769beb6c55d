//! Lines: however the input is cut, the same lines come out, none over the limit, and all bytes are accounted for.

#![no_main]

use libfuzzer_sys::fuzz_target;
use toolcrib::wire::frame::{Frame, Frames, flatten};

/// The lines of `input`, fed in pieces of `step` bytes; `None` stands for one that was too long.
fn lines(input: &[u8], limit: usize, step: usize) -> Vec<Option<Vec<u8>>> {
    let mut frames = Frames::new(limit);
    let mut found = Vec::new();
    for piece in input.chunks(step.max(1)) {
        frames.push(piece);
        while let Some(frame) = frames.next_frame() {
            found.push(match frame {
                Frame::End(tail) => {
                    assert!(tail.len() <= 4 << 10 && found.last() == Some(&None));
                    continue;
                }
                Frame::Line(line) => {
                    assert!(line.len() <= limit && !line.contains(&b'\n'));
                    Some(line.to_vec())
                }
                Frame::TooLong(head) => {
                    assert!(head.len() <= 4 << 10);
                    None
                }
            });
        }
    }
    if let Some(rest) = frames.rest() {
        found.push((rest.len() <= limit).then(|| rest.to_vec()));
    }
    found
}

fuzz_target!(|data: &[u8]| {
    let [limit, step, input @ ..] = data else { return };
    let (limit, step) = (usize::from(*limit), usize::from(*step));
    assert_eq!(lines(input, limit, input.len()), lines(input, limit, step));
    // Without a limit, what goes in comes out.
    let whole = lines(input, usize::MAX - 1, step);
    let expected = input.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let mut expected: Vec<Option<Vec<u8>>> = expected.map(|line| Some(line.to_vec())).collect();
    expected.pop_if(|last| last.as_ref().is_none_or(Vec::is_empty));
    assert_eq!(whole, expected);
    let mut flat = input.to_vec();
    flatten(&mut flat);
    assert!(flat.len() == input.len() && !flat.contains(&b'\n') && !flat.contains(&b'\r'));
});
