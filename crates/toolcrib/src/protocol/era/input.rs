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

/// Builds the result that asks a stateless client for input on behalf of a server.
pub fn input_required_result(
    requests: &[InputRequest],
    state: Option<&str>,
    server_info: Option<&Bytes>,
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
    meta.set_unchecked(super::meta::SERVER_INFO, server_info.cloned().unwrap_or(own_info));
    result.set_unchecked("_meta", meta.to_bytes());
    result.to_bytes()
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
        let result = input_required_result(&[request], Some("s\u{e9}"), None);
        let needed = parse_required_input(&result).unwrap().unwrap();
        assert_eq!(needed.state.as_deref(), Some("\"s\u{e9}\"".as_bytes()));
        assert_eq!(needed.requests[0].key, "a\"b");
        assert_eq!(needed.requests[0].params, Some(params));
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
