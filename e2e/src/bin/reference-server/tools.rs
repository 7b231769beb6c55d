//! The list of tools, and which module answers each call.

use std::sync::atomic::Ordering;

use rmcp::ErrorData;
use rmcp::model::{CallToolResponse, JsonObject, Tool};
use serde_json::{Value, json};

use crate::caller::Caller;
use crate::shared::Shared;
use crate::{content, input_requests, notifications, tasks};

/// Every tool with its description; those with arguments have a schema in [`schema`].
const TOOLS: [(&str, &str); 37] = [
    ("test_simple_text", "Text"),
    ("test_image_content", "An image"),
    ("test_audio_content", "Sound"),
    ("test_embedded_resource", "An embedded resource"),
    ("test_multiple_content_types", "Text, an image and a resource"),
    ("test_error_handling", "Always an error"),
    ("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features"),
    ("test_custom_header", "Repeats an argument that is also sent in a header"),
    ("test_tool_with_progress", "Three steps of progress"),
    ("test_tool_with_logging", "Three log messages"),
    ("test_logging_tool", "Three log messages, if the log level allows them"),
    ("test_reconnection", "Takes a moment"),
    ("test_trigger_tool_change", "Changes the list of tools"),
    ("test_trigger_prompt_change", "Changes the list of prompts"),
    ("test_trigger_resource_update", "Changes `test://watched-resource`"),
    ("test_missing_capability", "Needs a client that can sample"),
    ("test_sampling", "Asks for a sample"),
    ("test_elicitation", "Asks for a name and an address"),
    ("test_elicitation_sep1034_defaults", "Asks with defaults of every type"),
    ("test_elicitation_sep1330_enums", "Asks with enums of every kind"),
    ("test_streaming_elicitation", "Asks for a confirmation"),
    ("test_input_required_result_elicitation", "Asks for a name"),
    ("test_input_required_result_sampling", "Asks for the capital of France"),
    ("test_input_required_result_list_roots", "Asks for the client's roots"),
    ("test_input_required_result_request_state", "Asks, and needs its state back"),
    ("test_input_required_result_tampered_state", "Asks, and needs its state back unchanged"),
    ("test_input_required_result_multiple_inputs", "Asks three things at the same time"),
    ("test_input_required_result_multi_round", "Asks twice"),
    ("test_input_required_result_capabilities", "Asks all that the client can answer"),
    ("greet", "Says hello"),
    ("slow_compute", "Takes the given number of seconds"),
    ("failing_job", "A task whose tool result is an error"),
    ("protocol_error_job", "A task that fails with a protocol error"),
    ("confirm_delete", "A task that asks for a confirmation"),
    ("multi_input", "A task that asks two things at the same time"),
    ("test_tool_with_task", "Asks for a name, then becomes a task"),
    ("test_extra_tool", "Added by `test_trigger_tool_change`, removed by the next call"),
];

pub(crate) fn list(shared: &Shared) -> Vec<Tool> {
    let has_extra = shared.extra_tool.load(Ordering::Relaxed);
    let tools = TOOLS.iter().filter(|(name, _)| has_extra || *name != "test_extra_tool");
    tools.map(|(name, description)| Tool::new(*name, *description, schema(name))).collect()
}

fn schema(name: &str) -> JsonObject {
    let string = json!({"type": "string"});
    let properties = match name {
        "json_schema_2020_12_tool" => return object(contact()),
        "test_custom_header" => json!({"region": {"type": "string", "x-mcp-header": "Region"}}),
        "test_sampling" => json!({"prompt": string}),
        "test_elicitation" => json!({"message": string}),
        "greet" => json!({"name": string}),
        "slow_compute" => json!({"seconds": {"type": "integer"}, "label": string}),
        "confirm_delete" => json!({"filename": string}),
        _ => json!({}),
    };
    object(json!({"type": "object", "properties": properties}))
}

/// Returns a schema with vocabulary of 2020-12 that is easily lost on the way.
fn contact() -> Value {
    let string = json!({"type": "string"});
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {"address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": string, "city": string},
        }},
        "properties": {
            "name": string,
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": string,
            "email": string,
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": false,
    })
}

fn object(value: Value) -> JsonObject {
    if let Value::Object(object) = value { object } else { JsonObject::new() }
}

pub(crate) async fn call(
    name: &str,
    arguments: &JsonObject,
    caller: &Caller<'_>,
) -> Result<CallToolResponse, ErrorData> {
    if let Some(result) = content::call(name, arguments) {
        return Ok(result.into());
    }
    if let Some(result) = notifications::call(name, caller).await {
        return Ok(result.into());
    }
    if let Some(response) = input_requests::call(name, arguments, caller).await? {
        return Ok(response);
    }
    let response = tasks::call(name, arguments, caller).await?;
    response.ok_or_else(|| ErrorData::invalid_params(format!("Unknown tool: {name}"), None))
}
