//! Words of a text: split at punctuation, case and digits, in lower case.

/// Longest identifier that is kept as one word beside its parts.
const MAX_JOINED_BYTES: usize = 24;

/// Words that say little about what a request is for. They count for less, but they do count: a tool may be called `get`.
#[rustfmt::skip]
const STOP_WORDS: &[&str] = &[
    "a", "about", "above", "after", "again", "against", "all", "am", "an", "and", "any", "are", "as", "at", "be",
    "because", "been", "before", "being", "below", "between", "both", "but", "by", "can", "cant", "could", "d",
    "did", "do", "does", "doing", "don", "dont", "down", "during", "each", "few", "for", "from", "further", "get",
    "had", "has", "have", "having", "he", "her", "here", "hers", "herself", "him", "himself", "his", "how", "i",
    "id", "if", "im", "in", "into", "is", "it", "its", "itself", "ive", "just", "let", "like", "ll", "m", "may",
    "me", "might", "more", "most", "must", "my", "myself", "need", "no", "nor", "not", "now", "o", "of", "off",
    "on", "once", "only", "or", "other", "our", "ours", "ourselves", "out", "over", "own", "please", "re", "s",
    "same", "shall", "she", "should", "so", "some", "such", "t", "than", "that", "the", "their", "theirs", "them",
    "themselves", "then", "there", "these", "they", "this", "those", "through", "to", "too", "under", "until", "up",
    "us", "ve", "very", "want", "was", "we", "were", "what", "whats", "when", "where", "which", "while", "who",
    "whom", "why", "will", "with", "would", "y", "you", "your", "yours", "yourself", "yourselves",
];

/// Returns whether a word in lower case says little about what a request is for.
pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.binary_search(&word).is_ok()
}

/// Calls `visit` with each word of a text in lower case. An identifier such as `getHTTPStatus2` is passed as a whole and in its
/// parts `get`, `http`, `status` and `2`. In scripts without spaces, each character is a word.
pub(super) fn for_each_word(text: &str, mut visit: impl FnMut(&str)) {
    let mut parts = WordParts::default();
    for found in text.chars() {
        // Apostrophes do not end a word: `user's` is `users`.
        if found.is_alphanumeric() {
            parts.push(found);
        } else if !matches!(found, '\'' | '\u{2019}') {
            parts.finish(&mut visit);
        }
    }
    parts.finish(&mut visit);
}

/// A run of letters and digits, in lower case, with the positions at which it is split.
#[derive(Default)]
struct WordParts {
    text: String,
    /// Ends of the parts in `text`, except the last.
    ends: Vec<usize>,
    last: Option<char>,
    /// The position before the last character.
    last_start: usize,
}

impl WordParts {
    fn push(&mut self, next: char) {
        if let Some(last) = self.last {
            let is_split = (last.is_lowercase() && next.is_uppercase())
                || last.is_numeric() != next.is_numeric()
                || is_unspaced(last)
                || is_unspaced(next);
            if is_split {
                self.split_at(self.text.len());
            } else if last.is_uppercase() && next.is_lowercase() {
                // The last letter of `HTTPStatus` that is upper case begins the next part.
                self.split_at(self.last_start);
            }
        }
        self.last_start = self.text.len();
        self.text.extend(next.to_lowercase());
        self.last = Some(next);
    }

    fn split_at(&mut self, position: usize) {
        if position > self.ends.last().copied().unwrap_or(0) {
            self.ends.push(position);
        }
    }

    fn finish(&mut self, visit: &mut impl FnMut(&str)) {
        if self.last.is_none_or(|last| !is_unspaced(last))
            && !self.ends.is_empty()
            && self.text.len() <= MAX_JOINED_BYTES
        {
            visit(&self.text);
        }
        let mut start = 0;
        for end in self.ends.drain(..) {
            visit(&self.text[start..end]);
            start = end;
        }
        if start < self.text.len() {
            visit(&self.text[start..]);
        }
        self.text.clear();
        self.last = None;
    }
}

/// Returns whether a character belongs to a script that does not separate words by spaces: Han, kana, Hangul, Thai, Lao, Khmer
/// or Burmese.
fn is_unspaced(letter: char) -> bool {
    matches!(letter,
        '\u{0e00}'..='\u{0eff}' | '\u{1000}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{2fa1f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        for_each_word(text, |word| words.push(word.to_owned()));
        words
    }

    #[test]
    fn identifiers_are_split_at_case_punctuation_and_digits() {
        assert_eq!(words("git_log"), ["git", "log"]);
        assert_eq!(words("create-pull.request"), ["create", "pull", "request"]);
        assert_eq!(words("getHTTPStatus2"), ["gethttpstatus2", "get", "http", "status", "2"]);
        assert_eq!(words("GitHub's CSV"), ["githubs", "git", "hubs", "csv"]);
        assert_eq!(words("查询 票 ÄRGER"), ["查", "询", "票", "ärger"]);
        assert!(words(" \u{0}-;DROP TABLE").ends_with(&["drop".to_owned(), "table".to_owned()]));
        assert!(words("…!?").is_empty());
    }

    #[test]
    fn stop_words_are_sorted_for_lookup() {
        assert!(STOP_WORDS.is_sorted() && is_stop_word("the") && !is_stop_word("tool"));
    }

    proptest! {
        #[test]
        fn any_text_is_split_into_words_without_separators(text in ".{0,200}") {
            for_each_word(&text, |word| {
                assert!(!word.is_empty() && word.chars().all(|letter| !letter.is_whitespace()));
            });
        }
    }
}
