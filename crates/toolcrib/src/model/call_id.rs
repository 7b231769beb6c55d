//! `CallId`: the name of a call in errors, audit, history and spans.

use std::fmt;
use std::str::FromStr;

/// The id of a call: 16 hexadecimal digits that begin with the time of its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(u64);

impl CallId {
    /// Creates the id with this number.
    pub fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The text is not the id of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidCallId;

impl fmt::Display for InvalidCallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the id of a call has 16 hexadecimal digits")
    }
}

impl std::error::Error for InvalidCallId {}

impl FromStr for CallId {
    type Err = InvalidCallId;

    fn from_str(text: &str) -> Result<Self, InvalidCallId> {
        let is_valid = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u64::from_str_radix(text, 16).ok().filter(|_| is_valid);
        number.map(Self).ok_or(InvalidCallId)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_sixteen_digits() {
        let id = CallId::from_number(0x19a_8c3f);
        assert_eq!(id.to_string(), "00000000019a8c3f");
        assert_eq!(id.to_string().parse(), Ok(id));
        for text in ["", "19a8c3f", "+0000000019a8c3f", "00000000019a8c3g", "000000000019a8c3f"] {
            assert_eq!(text.parse::<CallId>(), Err(InvalidCallId), "{text}");
        }
    }
}
