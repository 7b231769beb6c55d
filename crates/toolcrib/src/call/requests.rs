//! Calls of methods other than `tools/call`: resources, prompts and completions.

use serde_json::{Value, json};

use crate::call::Call;
use crate::model::selector::Selector;
use crate::protocol::json::object::{Object, to_json_string};

impl Call {
    /// Creates a call that reads a resource by its public URI.
    pub fn read_resource(uri: impl Into<String>) -> Self {
        let uri = uri.into();
        let mut params = Object::default();
        params.set_unchecked("uri", to_json_string(&uri));
        Self::request("resources/read", Selector::Resource(uri), params)
    }

    /// Creates a call that gets a prompt by its public name, or by its bare name if only one server has it. Set the
    /// prompt's arguments with [`Call::arguments`]; their values are strings.
    pub fn get_prompt(name: impl Into<String>) -> Self {
        let name = name.into();
        let mut params = Object::default();
        params.set_unchecked("name", to_json_string(&name));
        Self::request("prompts/get", Selector::Prompt(name), params)
    }

    /// Creates a call that completes the value of one argument of a prompt.
    pub fn complete_prompt(name: impl Into<String>, argument: &str, value: &str) -> Self {
        let name = name.into();
        let reference = json!({"type": "ref/prompt", "name": name});
        Self::complete(Selector::Prompt(name), &reference, argument, value)
    }

    /// Creates a call that completes the value of one variable of a resource template.
    pub fn complete_resource(template: impl Into<String>, variable: &str, value: &str) -> Self {
        let template = template.into();
        let reference = json!({"type": "ref/resource", "uri": template});
        Self::complete(Selector::Resource(template), &reference, variable, value)
    }

    fn complete(selector: Selector, reference: &Value, argument: &str, value: &str) -> Self {
        let mut params = Object::default();
        params.set_unchecked("ref", reference.to_string());
        params.set_unchecked("argument", json!({"name": argument, "value": value}).to_string());
        Self::request("completion/complete", selector, params)
    }
}
