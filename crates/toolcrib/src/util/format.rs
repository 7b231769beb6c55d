//! Text helpers: the closest match to a misspelled name, durations and sizes.

use std::time::{Duration, SystemTime};

/// Returns the candidate closest to a word, if one is close enough to suggest. Case, `-` and `_` are ignored.
pub fn closest_match<'c>(word: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<&'c str> {
    let folded = fold(word);
    let max_distance = (folded.len() / 3).clamp(1, 3);
    let distances = candidates
        .into_iter()
        .map(|candidate| (distance(&folded, &fold(candidate), max_distance), candidate));
    distances
        .filter_map(|(distance, candidate)| Some((distance?, candidate)))
        .min()
        .map(|(_, candidate)| candidate)
}

/// Formats a duration for messages, such as `90s` or `10m`. Fractions of a second are rounded: 12.3456 s is `12.3s`.
pub fn format_duration(duration: Duration) -> String {
    let milliseconds = duration.as_millis();
    let units = [(3_600_000, "h"), (60_000, "m"), (1000, "s")];
    if let Some((unit, name)) = units.into_iter().find(|(unit, _)| milliseconds.is_multiple_of(*unit))
        && (milliseconds > 0 || duration.is_zero())
    {
        return format!("{}{}", milliseconds / unit, if milliseconds > 0 { name } else { "s" });
    }
    if milliseconds < 1000 {
        return format!("{}ms", milliseconds.max(1));
    }
    let tenths = (milliseconds + 50) / 100;
    let rest = Some(tenths % 10).filter(|rest| *rest > 0).map(|rest| format!(".{rest}"));
    format!("{}{}s", tenths / 10, rest.unwrap_or_default())
}

/// Formats a size as the config spells it, exactly, such as `32MiB` or `1000B`.
pub fn format_size(bytes: usize) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    let (shift, name) = unit.unwrap_or((0, "B"));
    format!("{}{name}", bytes >> shift)
}

fn fold(word: &str) -> Vec<char> {
    word.chars().filter(|letter| !matches!(letter, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// Returns the edit distance with transpositions, or `None` if it exceeds `max_distance`.
fn distance(a: &[char], b: &[char], max_distance: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > max_distance {
        return None;
    }
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    Some(rows[a.len()][b.len()]).filter(|distance| *distance <= max_distance)
}

/// Formats a time in UTC as RFC 3339 with milliseconds.
pub fn format_timestamp(at: SystemTime) -> String {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let second_of_day = since.as_secs() % 86_400;
    // Days since 1 March of year 0: in years that start in March, the leap day is the last day.
    let days = since.as_secs() / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let hour = second_of_day / 3600;
    let minute = second_of_day / 60 % 60;
    let second = second_of_day % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since.subsec_millis())
}

/// Parses a timestamp in UTC: a date, optionally with a time to the hour, minute, second or millisecond.
pub fn parse_timestamp(text: &str) -> Option<SystemTime> {
    const FORM: &str = "0000-00-00T00:00:00.000";
    let text = text.strip_suffix('Z').unwrap_or(text).replace(' ', "T");
    let fits = |(given, form): (char, char)| match form {
        '0' => given.is_ascii_digit(),
        _ => given == form,
    };
    let is_valid =
        [10, 13, 16, 19, FORM.len()].contains(&text.len()) && text.chars().zip(FORM.chars()).all(fits);
    if !is_valid {
        return None;
    }
    let number = |start: usize, len: usize| match text.get(start..start + len) {
        Some(digits) => digits.parse().ok(),
        None => Some(0_u64),
    };
    let year = number(0, 4)?;
    let month = number(5, 2).filter(|month| (1..=12).contains(month))?;
    let day = number(8, 2).filter(|day| (1..=31).contains(day))?;
    let hour = number(11, 2).filter(|hour| *hour < 24)?;
    let minute = number(14, 2).filter(|minute| *minute < 60)?;
    let second = number(17, 2).filter(|second| *second < 60)?;
    // Years start in March here too.
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let month_from_march = (month + 9) % 12;
    let day_of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let days = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year;
    let seconds = days.checked_sub(719_468)? * 86_400 + hour * 3600 + minute * 60 + second;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(number(20, 3)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_uses_the_largest_whole_unit() {
        let seconds = |seconds| format_duration(Duration::from_secs(seconds));
        assert_eq!([seconds(30), seconds(90), seconds(600), seconds(129_600)], ["30s", "90s", "10m", "36h"]);
        let micros = |micros| format_duration(Duration::from_micros(micros));
        assert_eq!([micros(0), micros(1), micros(100_000), micros(99_900)], ["0s", "1ms", "100ms", "99ms"]);
        assert_eq!([micros(12_345_600), micros(5_000_100), micros(4_999_900)], ["12.3s", "5s", "5s"]);
    }

    #[test]
    fn size_uses_the_largest_whole_unit() {
        let sizes = [0, 1000, 1024, 1536, 32 << 20, 3 << 30].map(format_size);
        assert_eq!(sizes, ["0B", "1000B", "1KiB", "1536B", "32MiB", "3GiB"]);
    }

    #[test]
    fn closest_match_ignores_distant_candidates() {
        let candidates = ["command", "args", "env", "cwd", "keep-alive", "call-timeout-max", "servers"];
        for (word, expected) in [
            ("comand", Some("command")),
            ("commnad", Some("command")),
            ("arg", Some("args")),
            ("keepAlive", Some("keep-alive")),
            ("callTimeoutMax", Some("call-timeout-max")),
            ("mcpServers", Some("servers")),
            ("mcp_servers", Some("servers")),
            ("evn", Some("env")),
            ("colour", None),
            ("", None),
            ("x", None),
        ] {
            assert_eq!(closest_match(word, candidates), expected, "{word}");
        }
    }

    #[test]
    fn timestamp_is_rfc3339_in_utc() {
        let at = |seconds, millis| {
            format_timestamp(
                SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_millis(millis),
            )
        };
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_400, 5), "2000-02-29T00:00:00.005Z");
        assert_eq!(at(1_794_732_506, 0), "2026-11-15T08:48:26.000Z");
        assert_eq!(at(4_102_444_799, 999), "2099-12-31T23:59:59.999Z");
    }
}
