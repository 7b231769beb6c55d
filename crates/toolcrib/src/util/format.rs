//! Text helpers: the closest match to a misspelled name, and durations.

use std::time::Duration;

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
}
