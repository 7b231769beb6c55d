//! Bytes of a response that are written together although they are in several pieces.

use std::io::IoSlice;

use bytes::{Buf, Bytes};

/// The data of one frame. hyper writes the pieces of a frame with one system call, but not those of the next frame after a large
/// one: without this, the last byte of a large response would be a packet of its own. This and the
/// steps in which the read buffer grows (`FrameDecoder` of the library) took 6 % off the CPU time of a result of 1 MB.
#[derive(Debug)]
pub(crate) enum ResponseData {
    One(Bytes),
    Several(Box<[Bytes; 3]>),
}

impl ResponseData {
    /// Returns the first piece that is not empty, and those after it.
    fn pieces(&self) -> &[Bytes] {
        match self {
            Self::One(piece) => std::slice::from_ref(piece),
            Self::Several(pieces) => {
                let first = pieces.iter().position(|piece| !piece.is_empty());
                &pieces[first.unwrap_or(pieces.len())..]
            }
        }
    }
}

impl Buf for ResponseData {
    fn remaining(&self) -> usize {
        match self {
            Self::One(piece) => piece.len(),
            Self::Several(pieces) => pieces.iter().map(Bytes::len).sum(),
        }
    }

    fn chunk(&self) -> &[u8] {
        self.pieces().first().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces().iter().filter(|piece| !piece.is_empty());
        let pairs = slices.iter_mut().zip(pieces);
        pairs.map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::One(piece) => piece.advance(count),
            Self::Several(pieces) => {
                let mut rest = count;
                for piece in pieces.iter_mut() {
                    let taken = rest.min(piece.len());
                    piece.advance(taken);
                    rest -= taken;
                }
                assert!(rest == 0, "advanced past the end");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several(pieces: [&'static str; 3]) -> ResponseData {
        ResponseData::Several(Box::new(pieces.map(Bytes::from)))
    }

    fn slices(data: &ResponseData) -> Vec<Vec<u8>> {
        let mut slices = [IoSlice::new(&[]); 8];
        let count = data.chunks_vectored(&mut slices);
        slices[..count].iter().map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn pieces_are_written_together() {
        assert_eq!(slices(&several(["{", "result", "}"])), [&b"{"[..], b"result", b"}"]);
        assert_eq!(slices(&several(["", "result", ""])), [b"result"]);
        assert!(slices(&several(["", "", ""])).is_empty());
        assert_eq!(slices(&ResponseData::One("all".into())), [b"all"]);
    }

    #[test]
    fn written_bytes_are_those_of_the_pieces() {
        for pieces in [["{", "result", "}"], ["", "result", "}"], ["{", "", "}"], ["", "", ""]] {
            for step in 1..10 {
                let mut data = several(pieces);
                let mut written = Vec::new();
                while data.has_remaining() {
                    let count = step.min(data.remaining());
                    assert!(!data.chunk().is_empty());
                    written.extend_from_slice(&slices(&data).concat()[..count]);
                    data.advance(count);
                }
                assert_eq!(written, pieces.concat().as_bytes(), "{step} bytes at a time");
            }
        }
    }
}
