//! Tool definitions in the forms that agents pass to model APIs.

use serde_json::{Map, Value, json};

use super::Catalog;
use super::index::Tool;
use crate::protocol::list_kind::ListKind;

/// The form of a tool definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SchemaFormat {
    /// A tool of the MCP specification: `name`, `description`, `inputSchema` and everything else that the server sent.
    Mcp,
    /// A function tool of OpenAI's chat completions: `{"type": "function", "function": {"name", "description",
    /// "parameters"}}`.
    OpenAi,
    /// A tool of Anthropic's messages: `{"name", "description", "input_schema"}`.
    Anthropic,
}

impl Catalog {
    /// Returns the definitions of all tools under their public names, sorted by these names, so that the order does not
    /// change with the order in which servers list. A missing description is empty; a missing schema accepts any object.
    pub fn schemas(&self, format: SchemaFormat) -> Vec<Value> {
        let mut tools: Vec<&Tool> = self.tools().iter().collect();
        tools.sort_by(|one, other| one.public_name.cmp(&other.public_name));
        tools.into_iter().map(|tool| self.schema(tool, format)).collect()
    }

    fn schema(&self, tool: &Tool, format: SchemaFormat) -> Value {
        let name = &*tool.public_name;
        match format {
            SchemaFormat::Mcp => {
                let definition = self.public_definition(ListKind::Tools, tool);
                let mut definition: Map<String, Value> =
                    serde_json::from_slice(&definition).unwrap_or_default();
                definition.insert("name".to_owned(), name.into());
                definition.insert("inputSchema".to_owned(), tool.input_schema());
                Value::Object(definition)
            }
            SchemaFormat::OpenAi => {
                let mut parameters = object_schema(tool);
                // The API refuses an object schema without properties.
                parameters.entry("properties").or_insert_with(|| json!({}));
                let description = tool.description().unwrap_or_default();
                let function = json!({"name": name, "description": description, "parameters": parameters});
                json!({"type": "function", "function": function})
            }
            SchemaFormat::Anthropic => {
                let description = tool.description().unwrap_or_default();
                json!({"name": name, "description": description, "input_schema": object_schema(tool)})
            }
        }
    }
}

/// Returns the schema of a tool's arguments with the `type` that model APIs require.
fn object_schema(tool: &Tool) -> Map<String, Value> {
    let mut schema = match tool.input_schema() {
        Value::Object(schema) => schema,
        _ => Map::new(),
    };
    schema.entry("type").or_insert_with(|| "object".into());
    schema
}
