//! Resources, a resource template, a prompt and its completion.

use rmcp::ErrorData;
use rmcp::model::{
    CompleteResult, CompletionInfo, ContentBlock, GetPromptResult, JsonObject, Prompt, PromptArgument,
    PromptMessage, ReadResourceResult, Resource, ResourceContents, ResourceTemplate, Role,
};
use serde_json::Value;

use crate::internal_error;

/// The resource that the tool `update` reports as changed.
pub(crate) const TEXT: &str = "matrix://text";

pub(crate) fn resources(added: usize) -> Vec<Resource> {
    let added =
        (1..=added).map(|number| Resource::new(format!("matrix://item/{number}"), format!("item {number}")));
    std::iter::once(Resource::new(TEXT, "text")).chain(added).collect()
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    vec![ResourceTemplate::new("matrix://item/{id}", "item")]
}

pub(crate) fn read(uri: &str) -> ReadResourceResult {
    let text = match uri.strip_prefix("matrix://item/") {
        Some(id) => format!("item {id}"),
        None => "the text".to_owned(),
    };
    ReadResourceResult::new(vec![ResourceContents::text(text, uri)])
}

pub(crate) fn prompts() -> Vec<Prompt> {
    let name = PromptArgument::new("name").with_required(true);
    vec![Prompt::new("greeting", None::<String>, Some(vec![name]))]
}

pub(crate) fn prompt(arguments: Option<&JsonObject>) -> GetPromptResult {
    let name = arguments.and_then(|all| all.get("name")).and_then(Value::as_str).unwrap_or_default();
    GetPromptResult::new(vec![PromptMessage::new(Role::User, ContentBlock::text(format!("Hello, {name}!")))])
}

pub(crate) fn complete(prefix: &str) -> Result<CompleteResult, ErrorData> {
    let names = ["ada", "alan"].into_iter().filter(|name| name.starts_with(prefix));
    let values = CompletionInfo::with_all_values(names.map(str::to_owned).collect());
    values.map(CompleteResult::new).map_err(|error| internal_error(&error))
}
