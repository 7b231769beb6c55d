//! Parsers for durations and sizes: one whole number and a unit.

use std::time::Duration;

/// Examples of durations, for hints.
pub const DURATION_EXAMPLES: &str = "`\"100ms\"`, `\"30s\"`, `\"5m\"` or `\"1h\"`";
/// Examples of sizes, for hints.
pub const SIZE_EXAMPLES: &str = "`\"512B\"`, `\"64KiB\"`, `\"32MiB\"` or `\"1GiB\"`";

/// Longest duration accepted: sums of a few stay far from overflow.
const MAX_DURATION: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// Largest size accepted, in bytes.
const MAX_SIZE: u64 = 1 << 40;

/// Parses a duration of at most a year.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text)?;
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return None,
    };
    let duration = Duration::from_millis(number.checked_mul(milliseconds)?);
    (duration <= MAX_DURATION).then_some(duration)
}

/// Parses a size of at most a tebibyte and returns it in bytes.
pub fn parse_size(text: &str) -> Option<usize> {
    let (number, unit) = split_unit(text)?;
    let shift = match unit {
        "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return None,
    };
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes <= MAX_SIZE)?;
    usize::try_from(bytes).ok()
}

fn split_unit(text: &str) -> Option<(u64, &str)> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
    Some((number.parse().ok()?, unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn durations_and_sizes_round_trip(number in 0u64..8000) {
            let millisecond = Duration::from_millis(number);
            let kibibyte = usize::try_from(number << 10).unwrap();
            let number32 = u32::try_from(number).unwrap();
            prop_assert_eq!(parse_duration(&format!("{number}ms")), Some(millisecond));
            prop_assert_eq!(parse_duration(&format!("{number}s")), Some(millisecond * 1000));
            prop_assert_eq!(parse_duration(&format!("{number}m")), Some(Duration::from_secs(60) * number32));
            prop_assert_eq!(parse_duration(&format!("{number}h")), Some(Duration::from_secs(3600) * number32));
            let day = Duration::from_secs(24 * 3600) * number32;
            prop_assert_eq!(parse_duration(&format!("{number}d")), (number <= 366).then_some(day));
            prop_assert_eq!(parse_size(&format!("{number}B")), Some(kibibyte >> 10));
            prop_assert_eq!(parse_size(&format!("{number}KiB")), Some(kibibyte));
            prop_assert_eq!(parse_size(&format!("{number}MiB")), Some(kibibyte << 10));
        }
    }

    #[test]
    fn anything_but_a_whole_number_and_unit_is_rejected() {
        for text in [
            "",
            "30",
            "s",
            "1.5s",
            "-1s",
            "+1s",
            "1 s",
            "1S",
            "1m30s",
            "1w",
            "٣s",
            "99999999999h",
            "8785h",
            "367d",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
        for text in ["", "1", "1KB", "1kib", "1 MiB", "1MB", "1TiB", "-1B", "1025GiB", "99999999999999GiB"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
