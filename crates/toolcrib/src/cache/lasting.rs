//! `Lasting`: how long, and for whom, a server says that its answer is good. Pure.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::call::Outcome;
use crate::wire::message::Answer;
use crate::wire::object::{Object, as_integer, digits};
use crate::wire::scan;

/// The member that says how long.
const TTL: &str = "ttlMs";

/// What a server says of its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lasting {
    /// How long it is good.
    pub(super) time: Duration,
    /// Whether it is good for everybody.
    pub(super) public: bool,
    /// Where the time stands in it.
    at: Range<usize>,
}

impl Lasting {
    /// What is said of an answer that may be given again; `None` of all others: errors, failures of tools, questions,
    /// tasks, and whatever does not say how long it is good.
    pub(super) fn of(outcome: &Outcome) -> Option<Self> {
        let Answer::Result(result) = &outcome.answer else { return None };
        scan::find(result, b"\"ttlMs\"")?;
        let object = Object::parse(result).ok()?;
        let complete = object.get("resultType").is_none() || object.string("resultType")? == "complete";
        if !complete || object.get("isError").is_some_and(|raw| &**raw != b"false") {
            return None;
        }
        let written = object.get(TTL)?;
        let time = as_integer(written).filter(|time| *time > 0).map(Duration::from_millis)?;
        let start = written.as_ptr() as usize - result.as_ptr() as usize;
        let public = object.string("cacheScope").is_some_and(|scope| scope == "public");
        Some(Self { time, public, at: start..start + written.len() })
    }

    /// The answer with the time that is left in the place of the time it was given.
    pub(super) fn with_left(&self, result: &Bytes, left: Duration) -> Bytes {
        let (left, mut room) = (u64::try_from(left.as_millis()).unwrap_or(u64::MAX), [0; 20]);
        [&result[..self.at.start], digits(left, &mut room), &result[self.at.end..]].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::revision::Era;

    fn lasting(result: &'static str) -> Option<Lasting> {
        let answer = Answer::Result(Bytes::from_static(result.as_bytes()));
        Lasting::of(&Outcome { answer, era: Era::Stateless, server: None })
    }

    #[test]
    fn only_a_whole_good_answer_that_says_so_lasts() {
        for not in [
            r#"{"content":[]}"#,
            r#"{"ttlMs":0}"#,
            r#"{"ttlMs":-5}"#,
            r#"{"ttlMs":null}"#,
            r#"{"ttlMs":"60000"}"#,
            r#"{"ttlMs":99999999999999999999999}"#,
            r#"{"ttlMs":5,"isError":true}"#,
            r#"{"ttlMs":5,"isError":1}"#,
            r#"{"ttlMs":5,"resultType":"input_required"}"#,
            r#"{"ttlMs":5,"resultType":"task","taskId":"1"}"#,
            r#"{"ttlMs":5,"resultType":7}"#,
            r#"{"structuredContent":{"ttlMs":5}}"#,
            r#"{"content":["ttlMs"]}"#,
            r#"{"ttlMs":5,"ttlMs":6}"#,
        ] {
            assert_eq!(lasting(not), None, "{not}");
        }
        let good = lasting(r#"{"resultType":"complete","isError":false,"ttlMs":5}"#).unwrap();
        assert_eq!((good.time, good.public), (Duration::from_millis(5), false));
        assert!(lasting(r#"{"ttlMs":5,"cacheScope":"public"}"#).unwrap().public);
        for private in [r#"{"ttlMs":5,"cacheScope":"private"}"#, r#"{"ttlMs":5,"cacheScope":"Public"}"#] {
            assert!(!lasting(private).unwrap().public, "{private}");
        }
    }

    #[test]
    fn an_error_does_not_last() {
        let answer = Answer::Error(Bytes::from_static(br#"{"code":1,"message":"m","ttlMs":5}"#));
        assert_eq!(Lasting::of(&Outcome { answer, era: Era::Stateless, server: None }), None);
    }

    #[test]
    fn of_what_is_given_again_only_the_time_is_another() {
        let text = r#"{ "x":1e400, "ttlMs" : 60000 ,"z":"\u0041"}"#;
        let left = lasting(text)
            .unwrap()
            .with_left(&Bytes::from_static(text.as_bytes()), Duration::from_micros(41_999));
        assert_eq!(left, text.replace("60000", "41"));
    }
}
