//! Tools, resources, prompts and completion, at the servers' own endpoints and at the common one.

use rmcp::model::{GetPromptRequestParams, ReadResourceRequestParams};
use rmcp::service::ServiceError;
use serde_json::{Value, json};

use super::client::text_of;
use super::setup::{ALL, REFERENCE, SEARCH, Setup};

/// Both endpoints, with the prefix of names there.
const ENDPOINTS: [(&str, &str); 2] = [(REFERENCE, ""), (ALL, "reference__")];

/// Returns the code of a JSON-RPC error.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, ServiceError>) -> i32 {
    match result {
        Err(ServiceError::McpError(error)) => error.code.0,
        other => panic!("not a protocol error: {other:?}"),
    }
}

pub(crate) async fn tools(setup: &Setup) {
    for (path, prefix) in ENDPOINTS {
        let client = setup.connect(path).await;
        let tools = client.service.list_all_tools().await.unwrap();
        let find =
            |name: &str| tools.iter().find(|tool| tool.name == format!("{prefix}{name}")).expect("a tool");
        let schema = Value::Object((*find("json_schema_2020_12_tool").input_schema).clone());
        assert_eq!(schema["$defs"]["address"]["$anchor"], "addressDef", "{schema}");
        assert_eq!(find("greet").description.as_deref(), Some("Says hello"));
        let greet = format!("{prefix}greet");
        assert_eq!(client.text(&greet, json!({"name": "Ada"})).await, "Hello, Ada!");
        let image = client.call(&format!("{prefix}test_image_content"), json!({})).await.unwrap();
        assert_eq!(json!(image.content[0])["mimeType"], "image/png");
        let failed = client.call(&format!("{prefix}test_error_handling"), json!({})).await.unwrap();
        assert_eq!(failed.is_error, Some(true));
        let header = format!("{prefix}test_custom_header");
        assert_eq!(client.text(&header, json!({"region": "eu"})).await, "region: eu");
        assert_eq!(code(client.call(&format!("{prefix}absent"), json!({})).await), -32602);
    }
}

pub(crate) async fn search_mode(setup: &Setup) {
    let client = setup.connect(SEARCH).await;
    let listed = client.service.list_all_tools().await.unwrap();
    let names: Vec<&str> = listed.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["find_tools", "describe_tools", "call_tool"]);
    let found = client.call("find_tools", json!({"query": "say hello to a person"})).await.unwrap();
    let first = &found.structured_content.as_ref().unwrap()["tools"][0];
    assert_eq!((&first["name"], &first["description"]), (&json!("reference__greet"), &json!("Says hello")));
    assert_eq!(first["signature"], "reference__greet(name?: string)", "{first}");
    let described = client.call("describe_tools", json!({"names": [first["name"]]})).await.unwrap();
    let described = described.structured_content.unwrap();
    assert_eq!(described["tools"][0]["inputSchema"]["properties"]["name"]["type"], "string", "{described}");
    // A tool that is not listed can be called by its name.
    assert_eq!(client.text("reference__greet", json!({"name": "Ada"})).await, "Hello, Ada!");

    let direct = setup.connect(REFERENCE).await;
    let wrapping = setup.by_call_tool().connect(REFERENCE).await;
    assert_eq!(text_of(&wrapping.call("greet", json!({"name": "Ada"})).await.unwrap()), "Hello, Ada!");
    for tool in ["test_image_content", "test_error_handling", "test_custom_header"] {
        let arguments = json!({"region": "eu"});
        let plain = direct.call(tool, arguments.clone()).await.unwrap();
        assert_eq!(json!(wrapping.call(tool, arguments).await.unwrap()), json!(plain), "{tool}");
    }
    assert_eq!(code(wrapping.call("absent", json!({})).await), -32602);
}

pub(crate) async fn resources(setup: &Setup) {
    for (path, _) in ENDPOINTS {
        let client = setup.connect(path).await;
        let resources = client.service.list_all_resources().await.unwrap();
        let uri = |name: &str| {
            resources.iter().find(|resource| resource.name == name).expect("a resource").uri.clone()
        };
        let read = async |uri: &str| {
            let read = client.service.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap();
            json!(read.contents[0])
        };
        let text = read(&uri("static text")).await;
        assert_eq!(text["text"], "This is the content of the static text resource.");
        let blob = read(&uri("static binary")).await;
        assert!(blob["blob"].as_str().is_some_and(|blob| blob.starts_with("iVBOR")), "{blob}");
        let templates = client.service.list_all_resource_templates().await.unwrap();
        let template = templates.iter().find(|template| template.name == "template").expect("a template");
        let filled = read(&template.uri_template.replace("{id}", "7")).await;
        assert!(filled["text"].as_str().is_some_and(|text| text.contains("Data for ID: 7")), "{filled}");
        let missing = client.service.read_resource(ReadResourceRequestParams::new("test://absent")).await;
        let expected = if client.era == test_support::client::Era::Session { -32002 } else { -32602 };
        assert_eq!(code(missing), expected, "at {path}");
    }
}

pub(crate) async fn prompts(setup: &Setup) {
    for (path, prefix) in ENDPOINTS {
        let client = setup.connect(path).await;
        let name = format!("{prefix}test_prompt_with_arguments");
        let prompts = client.service.list_all_prompts().await.unwrap();
        let prompt = prompts.iter().find(|prompt| prompt.name == name).expect("a prompt");
        assert_eq!(prompt.arguments.as_ref().unwrap().len(), 2);
        let mut params = GetPromptRequestParams::new(name);
        params.arguments = json!({"arg1": "one", "arg2": "two"}).as_object().cloned();
        let got = json!(client.service.get_prompt(params).await.unwrap());
        let expected = "Prompt with arguments: arg1='one', arg2='two'";
        assert_eq!(got["messages"][0]["content"]["text"], expected, "{got}");
        let unknown = client.service.get_prompt(GetPromptRequestParams::new(format!("{prefix}absent"))).await;
        assert_eq!(code(unknown), -32602);
    }
}

pub(crate) async fn completion(setup: &Setup) {
    for (path, prefix) in ENDPOINTS {
        let client = setup.connect(path).await;
        let prompt = format!("{prefix}test_prompt_with_arguments");
        let found = client.service.complete_prompt_simple(prompt, "arg1", "par").await.unwrap();
        assert_eq!(found, ["paris", "park", "party"]);
        let templates = client.service.list_all_resource_templates().await.unwrap();
        let template = templates.iter().find(|template| template.name == "template").expect("a template");
        let uri = template.uri_template.clone();
        let found = client.service.complete_resource_simple(uri, "id", "test").await.unwrap();
        assert_eq!(found, ["test-value"]);
    }
}
