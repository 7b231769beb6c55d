//! What servers offer, at their own endpoints and all together: tools, resources, prompts, and completion.

use rmcp::model::{GetPromptRequestParams, ReadResourceRequestParams};
use rmcp::service::ServiceError;
use serde_json::{Value, json};

use super::stage::{ALL, REFERENCE, Stage};

/// Both endpoints, and what stands before names there.
const VIEWS: [(&str, &str); 2] = [(REFERENCE, ""), (ALL, "reference__")];

/// The code of a JSON-RPC error.
pub(crate) fn code<T: std::fmt::Debug>(result: Result<T, ServiceError>) -> i32 {
    match result {
        Err(ServiceError::McpError(error)) => error.code.0,
        other => panic!("not an error of the protocol: {other:?}"),
    }
}

pub(crate) async fn tools(stage: &Stage) {
    for (path, prefix) in VIEWS {
        let friend = stage.friend(path).await;
        let tools = friend.service.list_all_tools().await.unwrap();
        let named =
            |name: &str| tools.iter().find(|tool| tool.name == format!("{prefix}{name}")).expect("a tool");
        let schema = Value::Object((*named("json_schema_2020_12_tool").input_schema).clone());
        assert_eq!(schema["$defs"]["address"]["$anchor"], "addressDef", "{schema}");
        assert_eq!(named("greet").description.as_deref(), Some("Says hello"));
        let greet = format!("{prefix}greet");
        assert_eq!(friend.text(&greet, json!({"name": "Ada"})).await, "Hello, Ada!");
        let image = friend.call(&format!("{prefix}test_image_content"), json!({})).await.unwrap();
        assert_eq!(json!(image.content[0])["mimeType"], "image/png");
        let failed = friend.call(&format!("{prefix}test_error_handling"), json!({})).await.unwrap();
        assert_eq!(failed.is_error, Some(true));
        let header = format!("{prefix}test_custom_header");
        assert_eq!(friend.text(&header, json!({"region": "eu"})).await, "region: eu");
        assert_eq!(code(friend.call(&format!("{prefix}nonsense"), json!({})).await), -32602);
    }
}

pub(crate) async fn resources(stage: &Stage) {
    for (path, _) in VIEWS {
        let friend = stage.friend(path).await;
        let resources = friend.service.list_all_resources().await.unwrap();
        let uri = |name: &str| {
            resources.iter().find(|resource| resource.name == name).expect("a resource").uri.clone()
        };
        let read = async |uri: &str| {
            let read = friend.service.read_resource(ReadResourceRequestParams::new(uri)).await.unwrap();
            json!(read.contents[0])
        };
        let text = read(&uri("static text")).await;
        assert_eq!(text["text"], "This is the content of the static text resource.");
        let blob = read(&uri("static binary")).await;
        assert!(blob["blob"].as_str().is_some_and(|blob| blob.starts_with("iVBOR")), "{blob}");
        let templates = friend.service.list_all_resource_templates().await.unwrap();
        let template = templates.iter().find(|template| template.name == "template").expect("a template");
        let filled = read(&template.uri_template.replace("{id}", "7")).await;
        assert!(filled["text"].as_str().is_some_and(|text| text.contains("Data for ID: 7")), "{filled}");
        let missing = friend.service.read_resource(ReadResourceRequestParams::new("test://nowhere")).await;
        let wanted = if friend.era == test_support::client::Era::Session { -32002 } else { -32602 };
        assert_eq!(code(missing), wanted, "at {path}");
    }
}

pub(crate) async fn prompts(stage: &Stage) {
    for (path, prefix) in VIEWS {
        let friend = stage.friend(path).await;
        let name = format!("{prefix}test_prompt_with_arguments");
        let prompts = friend.service.list_all_prompts().await.unwrap();
        let prompt = prompts.iter().find(|prompt| prompt.name == name).expect("a prompt");
        assert_eq!(prompt.arguments.as_ref().unwrap().len(), 2);
        let mut params = GetPromptRequestParams::new(name);
        params.arguments = json!({"arg1": "one", "arg2": "two"}).as_object().cloned();
        let got = json!(friend.service.get_prompt(params).await.unwrap());
        let wanted = "Prompt with arguments: arg1='one', arg2='two'";
        assert_eq!(got["messages"][0]["content"]["text"], wanted, "{got}");
        let unknown =
            friend.service.get_prompt(GetPromptRequestParams::new(format!("{prefix}nonsense"))).await;
        assert_eq!(code(unknown), -32602);
    }
}

pub(crate) async fn completion(stage: &Stage) {
    for (path, prefix) in VIEWS {
        let friend = stage.friend(path).await;
        let prompt = format!("{prefix}test_prompt_with_arguments");
        let found = friend.service.complete_prompt_simple(prompt, "arg1", "par").await.unwrap();
        assert_eq!(found, ["paris", "park", "party"]);
        let templates = friend.service.list_all_resource_templates().await.unwrap();
        let template = templates.iter().find(|template| template.name == "template").expect("a template");
        let uri = template.uri_template.clone();
        let found = friend.service.complete_resource_simple(uri, "id", "test").await.unwrap();
        assert_eq!(found, ["test-value"]);
    }
}
