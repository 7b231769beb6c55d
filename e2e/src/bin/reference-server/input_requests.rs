//! Tools that send requests to the client: the same requests in both eras.

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResponse, CallToolResult, ClientCapabilities, InputRequest, InputRequests, JsonObject,
};
use serde_json::{Value, json};

use crate::caller::{Answer, Caller};
use crate::content::{string_argument, text};

pub(crate) async fn call(
    name: &str,
    arguments: &JsonObject,
    caller: &Caller<'_>,
) -> Result<Option<CallToolResponse>, ErrorData> {
    let (requests, state) = match name {
        "test_missing_capability" => return require_sampling(caller).map(Some),
        "test_input_required_result_multi_round" => return ask_in_rounds(caller).await.map(Some),
        "test_sampling" => (vec![("sample", sampling(string_argument(arguments, "prompt"), 100)?)], None),
        "test_elicitation" => (vec![("user", contact(string_argument(arguments, "message"))?)], None),
        "test_elicitation_sep1034_defaults" => (vec![("values", defaults()?)], None),
        "test_elicitation_sep1330_enums" => (vec![("values", enums()?)], None),
        "test_streaming_elicitation" => (vec![("confirm", form("Go on?", "ok", "boolean")?)], None),
        "test_input_required_result_elicitation" => (vec![("user_name", name_form()?)], None),
        "test_input_required_result_sampling" => {
            (vec![("capital_question", sampling("What is the capital of France?", 100)?)], None)
        }
        "test_input_required_result_list_roots" => (vec![("client_roots", roots()?)], None),
        "test_input_required_result_request_state" | "test_input_required_result_tampered_state" => {
            (vec![("confirm", form("Please confirm", "ok", "boolean")?)], Some("asked"))
        }
        "test_input_required_result_multiple_inputs" => (requests_for(&all_capabilities())?, Some("asked")),
        "test_input_required_result_capabilities" => (requests_for(&caller.capabilities())?, None),
        _ => return Ok(None),
    };
    let requests = requests.into_iter().map(|(key, request)| (key.to_owned(), request)).collect();
    Ok(Some(match caller.ask(requests, state).await? {
        Answer::InputRequired(result) => result.into(),
        Answer::Answered(answers) => answers_result(&json!(answers), state.is_some()),
    }))
}

/// Sends one request after the other; the state is the key of the last one.
async fn ask_in_rounds(caller: &Caller<'_>) -> Result<CallToolResponse, ErrorData> {
    let first = caller.state()?.is_none();
    let steps = [
        ("step1", form("Step 1: What is your name?", "name", "string")?),
        ("step2", form("Step 2: What is your favorite color?", "color", "string")?),
    ];
    let mut received = Vec::new();
    for (key, request) in steps.into_iter().skip(usize::from(caller.state()? == Some("step2"))) {
        match caller.ask(InputRequests::from([(key.to_owned(), request)]), Some(key)).await? {
            Answer::InputRequired(result) => return Ok(result.into()),
            Answer::Answered(answers) => received.push(json!(answers)),
        }
    }
    Ok(answers_result(&json!(received), !first))
}

fn require_sampling(caller: &Caller<'_>) -> Result<CallToolResponse, ErrorData> {
    if caller.capabilities().sampling.is_some() {
        return Ok(CallToolResult::success(vec![text("the client can sample")]).into());
    }
    let missing = ClientCapabilities::builder().enable_sampling().build();
    Err(ErrorData::missing_required_client_capability(missing))
}

/// Returns the client's answers, with a prefix if its state was verified.
fn answers_result(answers: &Value, with_state: bool) -> CallToolResponse {
    let state = if with_state { "state-ok " } else { "" };
    CallToolResult::success(vec![text(format!("{state}{answers}"))]).into()
}

/// Returns one request for each of these capabilities.
fn requests_for(capabilities: &ClientCapabilities) -> Result<Vec<(&'static str, InputRequest)>, ErrorData> {
    let mut requests = Vec::new();
    if capabilities.elicitation.is_some() {
        requests.push(("user_name", name_form()?));
    }
    if capabilities.sampling.is_some() {
        requests.push(("greeting", sampling("Generate a greeting", 50)?));
    }
    if capabilities.roots.is_some() {
        requests.push(("client_roots", roots()?));
    }
    Ok(requests)
}

fn all_capabilities() -> ClientCapabilities {
    ClientCapabilities::builder().enable_elicitation().enable_sampling().enable_roots().build()
}

pub(crate) fn name_form() -> Result<InputRequest, ErrorData> {
    form("What is your name?", "name", "string")
}

/// Returns a form with one required field.
pub(crate) fn form(message: &str, field: &str, kind: &str) -> Result<InputRequest, ErrorData> {
    elicitation(message, &json!({field: {"type": kind}}), &[field])
}

fn contact(message: &str) -> Result<InputRequest, ErrorData> {
    let fields = json!({
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    });
    elicitation(message, &fields, &["username", "email"])
}

fn defaults() -> Result<InputRequest, ErrorData> {
    let fields = json!({
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
        "verified": {"type": "boolean", "default": true},
    });
    elicitation("Every field has a default", &fields, &[])
}

fn enums() -> Result<InputRequest, ErrorData> {
    let options = json!(["option1", "option2", "option3"]);
    let titled = json!([
        {"const": "value1", "title": "First Option"},
        {"const": "value2", "title": "Second Option"},
        {"const": "value3", "title": "Third Option"},
    ]);
    let names = json!(["Option One", "Option Two", "Option Three"]);
    let fields = json!({
        "untitledSingle": {"type": "string", "enum": options},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    });
    elicitation("Choose of every kind", &fields, &[])
}

fn elicitation(message: &str, fields: &Value, required: &[&str]) -> Result<InputRequest, ErrorData> {
    let schema = json!({"type": "object", "properties": fields, "required": required});
    request("elicitation/create", &json!({"mode": "form", "message": message, "requestedSchema": schema}))
}

fn sampling(prompt: &str, tokens: u32) -> Result<InputRequest, ErrorData> {
    let message = json!({"role": "user", "content": {"type": "text", "text": prompt}});
    request("sampling/createMessage", &json!({"messages": [message], "maxTokens": tokens}))
}

fn roots() -> Result<InputRequest, ErrorData> {
    request("roots/list", &json!({}))
}

fn request(method: &str, params: &Value) -> Result<InputRequest, ErrorData> {
    let request = serde_json::from_value(json!({"method": method, "params": params}));
    request.map_err(|error| ErrorData::internal_error(format!("`{method}`: {error}"), None))
}
