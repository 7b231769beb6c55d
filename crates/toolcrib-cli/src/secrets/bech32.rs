//! Bech32, the letters in which age writes its keys: a name, five bits a letter, and a checksum.

const LETTERS: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// Bytes under a name, in lower case.
pub(super) fn encode(name: &str, bytes: &[u8]) -> String {
    let fives = regroup(bytes.iter().copied(), 8, 5, true).unwrap_or_default();
    let mut checked: Vec<u8> = spread(name).chain(fives.iter().copied()).collect();
    checked.extend([0; 6]);
    let sum = checksum(&checked) ^ 1;
    let sums = (0..6).rev().map(|place| u8::try_from(sum >> (5 * place) & 31).unwrap_or_default());
    let letters = fives.into_iter().chain(sums).map(|five| char::from(LETTERS[usize::from(five)]));
    format!("{name}1{}", letters.collect::<String>())
}

/// The bytes under this name; `None` for anything else.
pub(super) fn decode(name: &str, text: &str) -> Option<Vec<u8>> {
    let lower = text.to_ascii_lowercase();
    if text != lower && text != text.to_ascii_uppercase() {
        return None;
    }
    let letters = lower.strip_prefix(name)?.strip_prefix('1')?;
    let value = |letter: u8| LETTERS.iter().position(|known| *known == letter);
    let fives: Option<Vec<u8>> =
        letters.bytes().map(|letter| value(letter).and_then(|five| u8::try_from(five).ok())).collect();
    let fives = fives.filter(|fives| fives.len() >= 6)?;
    let checked: Vec<u8> = spread(name).chain(fives.iter().copied()).collect();
    if checksum(&checked) != 1 {
        return None;
    }
    regroup(fives[..fives.len() - 6].iter().copied(), 5, 8, false)
}

/// A name as the checksum sees it.
fn spread(name: &str) -> impl Iterator<Item = u8> {
    name.bytes().map(|byte| byte >> 5).chain([0]).chain(name.bytes().map(|byte| byte & 31))
}

fn checksum(values: &[u8]) -> u32 {
    const STEPS: [u32; 5] = [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
    values.iter().fold(1, |sum, value| {
        let shifted = (sum & 0x01ff_ffff) << 5 ^ u32::from(*value);
        let top = sum >> 25;
        let steps = STEPS.iter().enumerate().filter(|(place, _)| top >> place & 1 == 1);
        steps.fold(shifted, |sum, (_, step)| sum ^ step)
    })
}

/// The same bits in groups of another size. What is left over is padded with zeros, or must be zeros.
fn regroup(groups: impl Iterator<Item = u8>, from: u32, to: u32, pad: bool) -> Option<Vec<u8>> {
    let (mut held, mut count, mut out) = (0u32, 0, Vec::new());
    for group in groups {
        held = (held << from | u32::from(group)) & 0xfff;
        count += from;
        while count >= to {
            count -= to;
            out.push(u8::try_from(held >> count & ((1 << to) - 1)).ok()?);
        }
    }
    let rest = held & ((1 << count) - 1);
    if pad && count > 0 {
        out.push(u8::try_from(rest << (to - count)).ok()?);
    }
    (pad || (count < from && rest == 0)).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_its_specification_hold() {
        assert_eq!(encode("a", &[]), "a12uel5l");
        assert_eq!(decode("a", "A12UEL5L"), Some(Vec::new()));
        let segwit = decode("bc", "bc1qw508d6qejxtdg4y5r3zarvary0c5xw7kv8f3t4");
        assert_eq!(segwit, None, "its first letter is no part of a byte");
        for wrong in ["a12uel5m", "A12uel5l", "b12uel5l", "a1", "a12ue", "", "a12uelbl"] {
            assert_eq!(decode("a", wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_written_can_be_read() {
        for length in 0..70u8 {
            let bytes: Vec<u8> = (0..length).map(|byte| byte.wrapping_mul(37)).collect();
            let text = encode("age-secret-key-", &bytes);
            assert_eq!(decode("age-secret-key-", &text), Some(bytes.clone()));
            assert_eq!(decode("age-secret-key-", &text.to_ascii_uppercase()), Some(bytes));
        }
    }
}
