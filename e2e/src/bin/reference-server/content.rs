//! Tools that answer immediately with one or several kinds of content.

use rmcp::model::{CallToolResult, ContentBlock, JsonObject, ResourceContents};

/// One red pixel.
pub(crate) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR42mP4z8AAAAMBAQD3A0FDAAAAAElFTkSuQmCC";

/// A millisecond of silence.
const WAV: &str = "UklGRiwAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQgAAACAgICAgICAgA==";

pub(crate) fn call(name: &str, arguments: &JsonObject) -> Option<CallToolResult> {
    let content = match name {
        "test_simple_text" => vec![text("This is a simple text response for testing.")],
        "test_image_content" => vec![ContentBlock::image(PNG, "image/png")],
        "test_audio_content" => vec![ContentBlock::audio(WAV, "audio/wav")],
        "test_embedded_resource" => {
            vec![embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")]
        }
        "test_multiple_content_types" => vec![
            text("Multiple content types test:"),
            ContentBlock::image(PNG, "image/png"),
            embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
        ],
        "test_error_handling" => {
            let message = text("This tool intentionally returns an error for testing");
            return Some(CallToolResult::error(vec![message]));
        }
        "greet" | "json_schema_2020_12_tool" => {
            vec![text(format!("Hello, {}!", string_argument(arguments, "name")))]
        }
        "test_custom_header" => vec![text(format!("region: {}", string_argument(arguments, "region")))],
        "test_extra_tool" => vec![text("here for now")],
        _ => return None,
    };
    Some(CallToolResult::success(content))
}

pub(crate) fn text(text: impl Into<String>) -> ContentBlock {
    ContentBlock::text(text)
}

pub(crate) fn embedded(uri: &str, mime_type: &str, text: &str) -> ContentBlock {
    ContentBlock::resource(ResourceContents::text(text, uri).with_mime_type(mime_type))
}

/// Returns a string argument; empty if it is missing.
pub(crate) fn string_argument<'a>(arguments: &'a JsonObject, name: &str) -> &'a str {
    arguments.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
}
