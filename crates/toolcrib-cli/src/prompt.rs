//! Reads a secret from the terminal without echo.

use std::io::{self, Read as _, Write as _};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::visible_text::escape_lines;

/// Restores the terminal settings when dropped.
struct EchoGuard(Termios);

impl Drop for EchoGuard {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
        let _ = writeln!(io::stderr());
    }
}

/// Reads one line from the terminal at stdin, or `None` if the person cancelled. Ctrl-C is read as a character
/// meanwhile, so that the echo is always restored.
pub(crate) fn read_hidden_line(question: &str) -> io::Result<Option<Zeroizing<String>>> {
    let before = tcgetattr(io::stdin())?;
    let mut without_echo = before.clone();
    without_echo.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
    let _guard = EchoGuard(before);
    tcsetattr(io::stdin(), OptionalActions::Flush, &without_echo)?;
    write!(io::stderr(), "{}", escape_lines(question))?;
    io::stderr().flush()?;
    read_line(io::stdin().lock().bytes())
}

fn read_line(bytes: impl Iterator<Item = io::Result<u8>>) -> io::Result<Option<Zeroizing<String>>> {
    // Allocated once: growing would leave a copy of the secret in freed memory.
    let mut typed = Zeroizing::new(Vec::with_capacity(64 << 10));
    for byte in bytes {
        match byte? {
            b'\n' | b'\r' => break,
            3 => return Ok(None),
            4 if typed.is_empty() => return Ok(None),
            4 => break,
            8 | 127 => {
                let last_char =
                    String::from_utf8_lossy(&typed).char_indices().next_back().map_or(0, |(at, _)| at);
                typed.truncate(last_char);
            }
            21 => typed.clear(),
            byte if typed.len() < typed.capacity() => typed.push(byte),
            _ => {}
        }
    }
    match std::str::from_utf8(&typed) {
        Ok(text) => Ok(Some(Zeroizing::new(text.to_owned()))),
        Err(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not valid UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_line_handles_editing_keys() {
        let typed =
            |keys: &[u8]| read_line(keys.iter().map(|key| Ok(*key))).unwrap().map(|line| line.to_string());
        assert_eq!(typed(b"abc\nrest").as_deref(), Some("abc"));
        assert_eq!(typed("aä\x7fb\r".as_bytes()).as_deref(), Some("ab"));
        assert_eq!(typed(b"wrong\x15right\n").as_deref(), Some("right"));
        assert_eq!(typed(b"ab\x04").as_deref(), Some("ab"));
        assert_eq!(typed(b"ab\x03"), None);
        assert_eq!(typed(b"\x04"), None);
        assert!(read_line([0xff, b'\n'].map(Ok).into_iter()).is_err());
    }
}
