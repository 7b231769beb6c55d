//! `CacheDirective`: how long, and for which callers, a server allows its answer to be reused.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;

use crate::model::outcome::Outcome;
use crate::protocol::json::object::{Object, as_integer, format_u64};
use crate::protocol::json::scan;
use crate::protocol::jsonrpc::ResponsePayload;

/// The member of a result that holds its TTL in milliseconds.
const TTL: &str = "ttlMs";

/// The cache directive in a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CacheDirective {
    pub(super) ttl: Duration,
    /// Whether every caller may have the answer.
    pub(super) is_public: bool,
    /// Position of the TTL's digits in the result.
    ttl_range: Range<usize>,
}

impl CacheDirective {
    /// Reads the directive of a cacheable result. Returns `None` for errors, tool failures, questions, tasks and results
    /// without a TTL.
    pub(super) fn from_outcome(outcome: &Outcome) -> Option<Self> {
        let ResponsePayload::Result(result) = &outcome.answer else { return None };
        scan::find_quoted(result, b"\"ttlMs\"")?;
        let object = Object::parse(result).ok()?;
        let is_complete =
            object.get("resultType").is_none() || object.get_string("resultType")? == "complete";
        if !is_complete || object.get("isError").is_some_and(|raw| &**raw != b"false") {
            return None;
        }
        let digits = object.get(TTL)?;
        let ttl = as_integer(digits).filter(|ttl| *ttl > 0).map(Duration::from_millis)?;
        let start = digits.as_ptr() as usize - result.as_ptr() as usize;
        let is_public = object.get_string("cacheScope").is_some_and(|scope| scope == "public");
        Some(Self { ttl, is_public, ttl_range: start..start + digits.len() })
    }

    /// Returns the result with the remaining time as its TTL. Every other byte is unchanged.
    pub(super) fn replace_ttl(&self, result: &Bytes, remaining: Duration) -> Bytes {
        let remaining = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX);
        let mut buffer = [0; 20];
        let before = &result[..self.ttl_range.start];
        let after = &result[self.ttl_range.end..];
        [before, format_u64(remaining, &mut buffer), after].concat().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::versions::Era;

    fn directive(result: &'static str) -> Option<CacheDirective> {
        let answer = ResponsePayload::Result(Bytes::from_static(result.as_bytes()));
        CacheDirective::from_outcome(&Outcome {
            answer,
            era: Era::Stateless,
            server: None,
            server_info: None,
        })
    }

    #[test]
    fn only_complete_results_with_a_ttl_are_cacheable() {
        for uncacheable in [
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
            assert_eq!(directive(uncacheable), None, "{uncacheable}");
        }
        let cacheable = directive(r#"{"resultType":"complete","isError":false,"ttlMs":5}"#).unwrap();
        assert_eq!((cacheable.ttl, cacheable.is_public), (Duration::from_millis(5), false));
        assert!(directive(r#"{"ttlMs":5,"cacheScope":"public"}"#).unwrap().is_public);
        for private in [r#"{"ttlMs":5,"cacheScope":"private"}"#, r#"{"ttlMs":5,"cacheScope":"Public"}"#] {
            assert!(!directive(private).unwrap().is_public, "{private}");
        }
    }

    #[test]
    fn error_with_ttl_is_not_cacheable() {
        let answer = ResponsePayload::Error(Bytes::from_static(br#"{"code":1,"message":"m","ttlMs":5}"#));
        let outcome = Outcome { answer, era: Era::Stateless, server: None, server_info: None };
        assert_eq!(CacheDirective::from_outcome(&outcome), None);
    }

    #[test]
    fn replace_ttl_changes_only_the_ttl() {
        let text = r#"{ "x":1e400, "ttlMs" : 60000 ,"z":"\u0041"}"#;
        let replaced = directive(text)
            .unwrap()
            .replace_ttl(&Bytes::from_static(text.as_bytes()), Duration::from_micros(41_999));
        assert_eq!(replaced, text.replace("60000", "41"));
    }
}
