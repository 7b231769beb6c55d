//! The resources and their template.

use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde_json::json;

use crate::content::PNG;

/// The resource that `test_trigger_resource_update` reports as changed.
pub(crate) const WATCHED: &str = "test://watched-resource";

pub(crate) fn list() -> Vec<Resource> {
    let resource = |uri: &str, name: &str, kind: &str| {
        Resource::new(uri, name).with_description(format!("The {name} for testing")).with_mime_type(kind)
    };
    vec![
        resource("test://static-text", "static text", "text/plain"),
        resource("test://static-binary", "static binary", "image/png"),
        resource(WATCHED, "watched resource", "text/plain"),
    ]
}

pub(crate) fn templates() -> Vec<ResourceTemplate> {
    let template = ResourceTemplate::new("test://template/{id}/data", "template");
    vec![template.with_description("The template for testing").with_mime_type("application/json")]
}

pub(crate) fn read(uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let contents = match uri {
        "test://static-text" => {
            let text = "This is the content of the static text resource.";
            ResourceContents::text(text, uri).with_mime_type("text/plain")
        }
        "test://static-binary" => ResourceContents::blob(PNG, uri).with_mime_type("image/png"),
        WATCHED => ResourceContents::text("Watch me.", uri).with_mime_type("text/plain"),
        _ => from_template(uri)?,
    };
    Ok(ReadResourceResult::new(vec![contents]))
}

fn from_template(uri: &str) -> Result<ResourceContents, ErrorData> {
    let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
    let missing = || ErrorData::resource_not_found("Resource not found", Some(json!({"uri": uri})));
    let id = id.ok_or_else(missing)?;
    let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
    Ok(ResourceContents::text(data.to_string(), uri).with_mime_type("application/json"))
}
