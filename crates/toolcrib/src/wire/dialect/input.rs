//! How a stateless server asks its client: the call is answered with questions and sent again with the answers.

use bytes::Bytes;

use crate::wire::message::{code, error_object};
use crate::wire::object::{self, Object, elements};
use crate::wire::scan;

/// Where the answers stand in the parameters of a call that is sent again.
pub const RESPONSES: &str = "inputResponses";
/// What the server wants to see again with them.
pub const STATE: &str = "requestState";

/// A session-era server's error for a call that needs a person to open an address first.
const NEEDS_URL: &[u8] = b"-32042";

/// One question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The name under which its answer is wanted.
    pub key: String,
    /// What is asked.
    pub method: String,
    /// Its raw parameters.
    pub params: Option<Bytes>,
}

/// What a call needs before it can go on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Needed {
    /// What is asked; nothing if the call is just to be sent again.
    pub questions: Vec<Question>,
    /// What must come back unchanged, as raw JSON.
    pub state: Option<Bytes>,
}

/// Whether a request may be answered with questions at all.
pub fn may_need_input(method: &str) -> bool {
    matches!(method, "tools/call" | "prompts/get" | "resources/read")
}

/// What a stateless server's result asks for; `None` if it is the result itself.
pub fn needed(result: &Bytes) -> Option<Needed> {
    scan::find(result, b"\"input_required\"")?;
    let result = Object::parse(result).ok()?;
    if result.string("resultType")? != "input_required" {
        return None;
    }
    let requests = result.get("inputRequests").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
    let question = |(key, raw): (&str, &Bytes)| {
        let request = Object::parse(raw).ok()?;
        let method = request.string("method")?.into_owned();
        Some(Question { key: key.to_owned(), method, params: request.get("params").cloned() })
    };
    Some(Needed {
        questions: requests.iter().filter_map(question).collect(),
        state: result.get(STATE).cloned(),
    })
}

/// The result that asks a stateless client these questions.
pub fn result_asking(questions: &[Question], state: Option<&str>) -> Bytes {
    let mut requests = Vec::from(b"{");
    for (index, question) in questions.iter().enumerate() {
        if index > 0 {
            requests.push(b',');
        }
        object::write_string(&mut requests, &question.key);
        requests.push(b':');
        let mut request = Object::default();
        request.set("method", object::string(&question.method));
        if let Some(params) = &question.params {
            // With `elicitationId`, which this era has no use for: rmcp's clients want it nevertheless, others ignore it.
            request.set("params", params.clone());
        }
        request.write(&mut requests);
    }
    requests.push(b'}');
    let mut result = Object::default();
    result.set("resultType", Bytes::from_static(b"\"input_required\""));
    result.set("inputRequests", requests);
    if let Some(state) = state {
        result.set(STATE, object::string(state));
    }
    result.to_bytes()
}

/// The error for a state that was not given out for this call.
pub fn bad_state() -> Bytes {
    let why = "this `requestState` is not good: it was used, is too old, or belongs to another call";
    error_object(code::INVALID_PARAMS, why, None)
}

/// The questions in a session-era server's error that a person must open an address first.
pub fn addresses_to_open(error: &Bytes) -> Option<Vec<Question>> {
    let error =
        Object::parse(error).ok().filter(|error| error.get("code").is_some_and(|raw| &**raw == NEEDS_URL))?;
    let data = Object::parse(error.get("data")?).ok()?;
    let elicitations = elements(data.get("elicitations")?).ok()?;
    let question = |(index, params): (usize, Bytes)| Question {
        key: format!("open-{}", index + 1),
        method: super::party::ELICIT.to_owned(),
        params: Some(params),
    };
    Some(elicitations.into_iter().enumerate().map(question).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_written_as_they_are_read() {
        let params = Bytes::from_static(br#"{"mode":"url","elicitationId":"7","url":"https://x"}"#);
        let question = Question {
            key: "a\"b".into(),
            method: "elicitation/create".into(),
            params: Some(params.clone()),
        };
        let result = result_asking(&[question], Some("s\u{e9}"));
        let needed = needed(&result).unwrap();
        assert_eq!(needed.state.as_deref(), Some("\"s\u{e9}\"".as_bytes()));
        assert_eq!(needed.questions[0].key, "a\"b");
        assert_eq!(needed.questions[0].params, Some(params));
    }

    #[test]
    fn only_a_result_that_says_so_asks() {
        for plain in
            [r#"{"content":["input_required"]}"#, r#"{"resultType":"complete","x":"input_required"}"#, "{}"]
        {
            assert_eq!(needed(&Bytes::from_static(plain.as_bytes())), None, "{plain}");
        }
    }

    #[test]
    fn an_error_can_ask_too() {
        let error =
            Bytes::from_static(br#"{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url"}]}}"#);
        assert_eq!(addresses_to_open(&error).unwrap().len(), 1);
        assert_eq!(addresses_to_open(&Bytes::from_static(br#"{"code":-32602}"#)), None);
    }
}
