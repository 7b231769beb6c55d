//! What somebody types that nobody is to see: read from the terminal without an echo.

use std::io::{self, Read as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

/// Puts the terminal back as it was.
struct Quiet(Termios);

impl Drop for Quiet {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
        let _ = writeln!(io::stderr());
    }
}

/// One line of stdin, which is a terminal; `None` if the person thought better of it. Ctrl-C is read as a letter
/// meanwhile, so that the terminal is never left without its echo.
pub(crate) fn unseen(question: &str) -> io::Result<Option<Zeroizing<String>>> {
    let before = tcgetattr(io::stdin())?;
    let mut quiet = before.clone();
    quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    let _restored = Quiet(before);
    tcsetattr(io::stdin(), OptionalActions::Flush, &quiet)?;
    write!(io::stderr(), "{question}")?;
    io::stderr().flush()?;
    line(io::stdin().lock().bytes())
}

fn line(bytes: impl Iterator<Item = io::Result<u8>>) -> io::Result<Option<Zeroizing<String>>> {
    // Never moved while it grows, so that no copy is left behind.
    let mut typed = Zeroizing::new(Vec::with_capacity(64 << 10));
    for byte in bytes {
        match byte? {
            b'\n' | b'\r' => break,
            3 => return Ok(None),
            4 if typed.is_empty() => return Ok(None),
            4 => break,
            8 | 127 => {
                let kept = String::from_utf8_lossy(&typed).char_indices().next_back().map_or(0, |(at, _)| at);
                typed.truncate(kept);
            }
            21 => typed.clear(),
            byte if typed.len() < typed.capacity() => typed.push(byte),
            _ => {}
        }
    }
    match std::str::from_utf8(&typed) {
        Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
        Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no text")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_they_mean_elsewhere() {
        let typed = |keys: &[u8]| line(keys.iter().map(|key| Ok(*key))).unwrap().map(|line| line.to_string());
        assert_eq!(typed(b"abc\nrest").as_deref(), Some("abc"));
        assert_eq!(typed("aä\x7fb\r".as_bytes()).as_deref(), Some("ab"));
        assert_eq!(typed(b"wrong\x15right\n").as_deref(), Some("right"));
        assert_eq!(typed(b"ab\x04").as_deref(), Some("ab"));
        assert_eq!(typed(b"ab\x03"), None);
        assert_eq!(typed(b"\x04"), None);
        assert!(line([0xff, b'\n'].map(Ok).into_iter()).is_err());
    }
}
