//! Input requests of the stateless era: a server responds to a call with requests, and the client repeats the call with
//! the answers.

use bytes::Bytes;

use crate::protocol::json::object::{self, Object, parse_array};
use crate::protocol::json::scan;
use crate::protocol::jsonrpc::{code, error_object};
use crate::protocol::member_names::{self, Lookalike};

/// The member with the answers, in the parameters of a repeated call.
pub const INPUT_RESPONSES: &str = "inputResponses";
/// The member with the server's state, which a repeated call returns unchanged.
pub const REQUEST_STATE: &str = "requestState";

/// The error code of a session-era server for a call that needs the user to open a URL first.
const URL_ELICITATION_REQUIRED: &[u8] = b"-32042";

/// One request for input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputRequest {
    /// The key of its answer.
    pub key: String,
    /// The requested method.
    pub method: String,
    /// Its raw parameters.
    pub params: Option<Bytes>,
}

/// The input that a call needs before it can continue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequiredInput {
    /// The requests; none if the call only has to be repeated.
    pub requests: Vec<InputRequest>,
    /// The state to return unchanged, as raw JSON.
    pub state: Option<Bytes>,
}

/// Returns whether the response to a method can require input.
pub fn can_require_input(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// Parses the input that a stateless server's result requires. Returns `None` if it is a final result.
///
/// # Errors
/// Fails if some clients could take a final result for one that requires input, or the other way round.
pub fn parse_required_input(result: &Bytes) -> Result<Option<RequiredInput>, Lookalike> {
    if scan::find_quoted(result, b"\"input_required\"").is_none() {
        return Ok(None);
    }
    let Ok(result) = Object::parse(result) else { return Ok(None) };
    member_names::check_result(&result)?;
    if result.get_string("resultType").as_deref() != Some("input_required") {
        return Ok(None);
    }
    let requests = result.get("inputRequests").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
    let parse_request = |(key, raw): (&str, &Bytes)| {
        let request = Object::parse(raw).ok()?;
        let method = request.get_string("method")?.into_owned();
        Some(InputRequest { key: key.to_owned(), method, params: request.get("params").cloned() })
    };
    Ok(Some(RequiredInput {
        requests: requests.iter().filter_map(parse_request).collect(),
        state: result.get(REQUEST_STATE).cloned(),
    }))
}

/// The sender of requests for input.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Questioner<'a> {
    /// A server, with its name and version if they are known.
    Server(Option<&'a Bytes>),
    /// toolcrib itself, which asks for an approval.
    Toolcrib,
}

/// Builds the result that asks a stateless client for input.
pub fn input_required_result(
    requests: &[InputRequest],
    state: Option<&str>,
    questioner: Questioner<'_>,
) -> Bytes {
    let mut encoded = Vec::from(b"{");
    for (index, request) in requests.iter().enumerate() {
        if index > 0 {
            encoded.push(b',');
        }
        object::write_string(&mut encoded, &request.key);
        encoded.push(b':');
        let mut object = Object::default();
        object.set_unchecked("method", object::to_json_string(&request.method));
        if let Some(params) = &request.params {
            // Includes `elicitationId`, which this era does not use: clients built on rmcp require it, others ignore
            // it.
            object.set_unchecked("params", params.clone());
        }
        object.write_to(&mut encoded);
    }
    encoded.push(b'}');
    let mut result = Object::default();
    result.set_unchecked("resultType", Bytes::from_static(b"\"input_required\""));
    result.set_unchecked("inputRequests", encoded);
    if let Some(state) = state {
        result.set_unchecked(REQUEST_STATE, object::to_json_string(state));
    }
    let own_info = Bytes::from_static(super::IMPLEMENTATION.as_bytes());
    let mut meta = Object::default();
    let server_info = match questioner {
        Questioner::Server(info) => info.cloned(),
        Questioner::Toolcrib => {
            meta.set_unchecked(super::meta::OWN_QUESTION, Bytes::from_static(b"true"));
            None
        }
    };
    meta.set_unchecked(super::meta::SERVER_INFO, server_info.unwrap_or(own_info));
    result.set_unchecked("_meta", meta.to_bytes());
    result.to_bytes()
}

/// Returns whether a result is marked as a question of toolcrib itself. Servers cannot set the mark: see
/// `remove_own_question_mark`.
pub fn is_own_question(result: &Bytes) -> bool {
    parse_marked(result).is_some()
}

/// Removes the mark of toolcrib's own questions from the result of a server.
pub(crate) fn remove_own_question_mark(result: &Bytes) -> Option<Bytes> {
    let MarkedResult { mut result, mut meta } = parse_marked(result)?;
    meta.remove(super::meta::OWN_QUESTION);
    result.set_unchecked("_meta", meta.to_bytes());
    Some(result.to_bytes())
}

/// A result whose `_meta` has the mark of toolcrib's own questions.
struct MarkedResult {
    result: Object,
    meta: Object,
}

/// The text is searched first, so that other results are not parsed. A mark in another spelling does not count.
fn parse_marked(result: &Bytes) -> Option<MarkedResult> {
    scan::find_quoted(result, b"\"toolcrib/own-question\"")?;
    let result = Object::parse(result).ok()?;
    let meta = Object::parse(result.get("_meta")?).ok()?;
    meta.get(super::meta::OWN_QUESTION)?;
    Some(MarkedResult { result, meta })
}

/// Builds the error for a state that was not issued for this call.
pub fn invalid_state_error() -> Bytes {
    let message = "invalid `requestState`: already used, expired, or issued for another call";
    error_object(code::INVALID_PARAMS, message, None)
}

/// Parses the URL elicitations in a session-era server's error. Returns `None` for other errors.
pub fn parse_url_elicitations(error: &Bytes) -> Option<Vec<InputRequest>> {
    let error = Object::parse(error)
        .ok()
        .filter(|error| error.get("code").is_some_and(|raw| &**raw == URL_ELICITATION_REQUIRED))?;
    let data = Object::parse(error.get("data")?).ok()?;
    let elicitations = parse_array(data.get("elicitations")?).ok()?;
    let to_request = |(index, params): (usize, Bytes)| InputRequest {
        key: format!("open-{}", index + 1),
        method: super::capabilities::ELICIT.to_owned(),
        params: Some(params),
    };
    Some(elicitations.into_iter().enumerate().map(to_request).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_requests_round_trip() {
        let params = Bytes::from_static(br#"{"mode":"url","elicitationId":"7","url":"https://x"}"#);
        let request = InputRequest {
            key: "a\"b".into(),
            method: "elicitation/create".into(),
            params: Some(params.clone()),
        };
        let result = input_required_result(&[request], Some("s\u{e9}"), Questioner::Toolcrib);
        assert!(is_own_question(&result));
        let needed = parse_required_input(&result).unwrap().unwrap();
        assert_eq!(needed.state.as_deref(), Some("\"s\u{e9}\"".as_bytes()));
        assert_eq!(needed.requests[0].key, "a\"b");
        assert_eq!(needed.requests[0].params, Some(params));
    }

    #[test]
    fn server_cannot_mark_its_question_as_own() {
        for mark in [r#""toolcrib/own-question""#, r#""toolcrib/own\u002dquestion""#] {
            let forged = format!(r#"{{"_meta":{{{mark}:true}},"x":"toolcrib/own-question"}}"#);
            let removed = remove_own_question_mark(&forged.into()).unwrap();
            assert_eq!(removed, r#"{"_meta":{},"x":"toolcrib/own-question"}"#);
            let escaped_only = format!(r#"{{"_meta":{{{mark}:true}}}}"#).into();
            let passed = remove_own_question_mark(&escaped_only).unwrap_or(escaped_only);
            assert!(!is_own_question(&passed), "{mark}");
        }
        assert_eq!(remove_own_question_mark(&Bytes::from_static(b"{}")), None);
    }

    #[test]
    fn only_input_required_results_need_input() {
        for plain in
            [r#"{"content":["input_required"]}"#, r#"{"resultType":"complete","x":"input_required"}"#, "{}"]
        {
            assert_eq!(parse_required_input(&Bytes::from_static(plain.as_bytes())), Ok(None), "{plain}");
        }
    }

    #[test]
    fn url_elicitation_error_needs_input() {
        let error =
            Bytes::from_static(br#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url"}]}}"#);
        assert_eq!(parse_url_elicitations(&error).unwrap().len(), 1);
        assert_eq!(parse_url_elicitations(&Bytes::from_static(br#"{"code":-32602}"#)), None);
    }
}
