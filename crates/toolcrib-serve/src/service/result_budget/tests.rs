//! Tests of result budgets: what is sent instead of a large result, and how it is read.

use toolcrib::spec::ToolsSpec;
use toolcrib::{Client, Crib, ExposeMode, ExposeSettings, ServerLimits, ServerSpec, ToolContext, Toolbox};

use super::*;

const TOKENS: usize = 500;

/// A server whose tools return `text`, or an object as structured content.
fn server(name: &str, text: String, result_tokens: Option<usize>) -> ServerSpec {
    let any = json!({"type": "object"});
    let rows = vec!["row"; 2000];
    let structured = move |_: Value, _: ToolContext| {
        let rows = rows.clone();
        async move { Ok(json!({"rows": rows})) }
    };
    let toolbox = Toolbox::new()
        .tool("log", "", &any, move |_| {
            let text = text.clone();
            async move { Ok(text) }
        })
        .typed_tool("rows", "", &any, structured);
    let limits = ServerLimits { result_tokens, ..ServerLimits::default() };
    ServerSpec::in_process(name.parse().unwrap(), toolbox).limits(limits)
}

async fn service(text: &str, result_tokens: Option<usize>) -> McpService {
    let crib = Crib::builder().server(server("disk", text.to_owned(), result_tokens)).build().unwrap();
    crib.list().await;
    McpService::new(crib)
}

fn context(era: Era) -> RequestContext {
    let client = Client { era, ..Client::without_capabilities() };
    RequestContext {
        scope: EndpointScope::local(),
        client,
        client_context: None,
        updates: None,
        has_extensions: false,
    }
}

async fn ask_as(service: &McpService, context: RequestContext, method: &str, params: Value) -> Value {
    let params = Object::parse(&params.to_string().into()).unwrap();
    match service.plan(context, method, Some(params)).respond().await {
        ResponsePayload::Result(result) => serde_json::from_slice(&result).unwrap(),
        ResponsePayload::Error(error) => json!({"error": serde_json::from_slice::<Value>(&error).unwrap()}),
        other => panic!("{other:?}"),
    }
}

async fn call(service: &McpService, name: &str, arguments: Value) -> Value {
    ask_as(service, context(Era::Session), "tools/call", json!({"name": name, "arguments": arguments})).await
}

async fn read(service: &McpService, uri: &str) -> Value {
    ask_as(service, context(Era::Session), "resources/read", json!({"uri": uri})).await
}

fn link(result: &Value) -> String {
    result["content"][2]["uri"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

fn text(value: &Value) -> &str {
    value["text"].as_str().unwrap_or_else(|| panic!("{value}"))
}

fn log(lines: usize) -> String {
    (0..lines).map(|number| format!("{number}\t\"GET /\" é {}\n", number * 7)).collect()
}

#[tokio::test]
async fn large_text_is_replaced_and_every_byte_is_read_back() {
    let log = log(5000);
    let service = service(&log, Some(TOKENS)).await;
    let result = call(&service, "disk__log", json!({})).await;
    assert!(result.to_string().len() <= TOKENS * BYTES_PER_TOKEN, "{} bytes", result.to_string().len());
    assert!(log.starts_with(text(&result["content"][0])), "{result}");
    let explanation = text(&result["content"][1]);
    assert!(explanation.contains(&format!("{} bytes in 5000 lines", log.len())), "{explanation}");
    assert_eq!(result["content"][2]["size"], log.len());

    let uri = link(&result);
    assert_eq!(text(&read(&service, &uri).await["contents"][0]), log);
    let lines = read(&service, &format!("{uri}?lines=4999-")).await;
    assert_eq!(text(&lines["contents"][0]), log.split_inclusive('\n').skip(4998).collect::<String>());
    let mut pages = String::new();
    for page in 1.. {
        let answer = call(&service, "read_result", json!({"uri": uri, "page": page})).await;
        assert!(answer.to_string().len() <= TOKENS * BYTES_PER_TOKEN, "{answer}");
        pages.push_str(text(&answer["content"][0]));
        if text(&answer["content"][1]).ends_with("the last one.]") {
            break;
        }
    }
    assert_eq!(pages, log);
    assert!(log.starts_with(text(&read(&service, &format!("{uri}?page=1")).await["contents"][0])));
}

#[tokio::test]
async fn read_result_is_listed_only_with_a_budget() {
    let names = async |service: &McpService, era| {
        let listed = ask_as(service, context(era), "tools/list", json!({})).await;
        let tools = listed["tools"].as_array().unwrap().clone();
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let without = service("x", None).await;
    assert_eq!(names(&without, Era::Session).await, ["disk__log", "disk__rows"]);
    assert_eq!(call(&without, "read_result", json!({})).await["error"]["code"], -32602);
    let digests = without.list_digests(&EndpointScope::local());
    without.crib.replace(server("disk", "x".to_owned(), Some(TOKENS))).await.unwrap();
    assert_eq!(names(&without, Era::Stateless).await, ["read_result", "disk__log", "disk__rows"]);
    assert_ne!(without.list_digests(&EndpointScope::local())[0], digests[0], "clients are notified");
    let one = EndpointScope { view: CatalogScope::One("disk".parse().unwrap()), ..EndpointScope::local() };
    let at_server = RequestContext { scope: one, ..context(Era::Session) };
    let listed = ask_as(&without, at_server, "tools/list", json!({})).await;
    assert_eq!(listed["tools"].as_array().unwrap().len(), 2);

    let mut expose = ExposeSettings::default();
    expose.mode = ExposeMode::Search;
    without.crib.set_expose(expose);
    assert_eq!(names(&without, Era::Session).await[0], "read_result");
    let page = call(&without, "call_tool", json!({"name": "read_result", "arguments": {"id": "x"}})).await;
    assert!(text(&page["content"][0]).starts_with("Resource not found: "), "{page}");
}

/// Returns whether a client gets the log in full.
async fn gets_all(service: &McpService, client: &str) -> bool {
    let scope = EndpointScope { client_name: Some(client.into()), ..EndpointScope::local() };
    let context = RequestContext { scope, ..context(Era::Session) };
    let result = ask_as(service, context, "tools/call", json!({"name": "disk__log"})).await;
    result["content"].as_array().unwrap().len() == 1
}

#[tokio::test]
async fn budget_is_that_of_the_client_else_of_the_tool_else_of_the_server() {
    let log = log(500);
    let tokens = log.len();
    let server = |server_tokens, tool_tokens: Option<usize>| {
        let tool_tokens = tool_tokens.map(|tokens| ("lo*".parse().unwrap(), tokens));
        let tools = ToolsSpec { result_tokens: tool_tokens.into_iter().collect(), ..ToolsSpec::default() };
        server("disk", log.clone(), server_tokens).tools(tools)
    };
    let crib = Crib::builder().server(server(None, None)).build().unwrap();
    crib.list().await;
    let service = McpService::new(crib);
    for (server_tokens, tool_tokens, client_tokens, is_whole) in [
        (None, None, None, true),
        (Some(TOKENS), None, None, false),
        (Some(TOKENS), Some(tokens), None, true),
        (Some(TOKENS), Some(0), None, true),
        (None, Some(TOKENS), None, false),
        (Some(TOKENS), Some(TOKENS), Some(tokens), true),
        (Some(TOKENS), Some(TOKENS), Some(0), true),
        (None, Some(0), Some(TOKENS), false),
    ] {
        service.crib.replace(server(server_tokens, tool_tokens)).await.unwrap();
        let mut expose = ExposeSettings::default();
        expose.result_tokens.extend(client_tokens.map(|tokens| ("ide".to_owned(), tokens)));
        service.crib.set_expose(expose);
        let case = format!("{server_tokens:?} {tool_tokens:?} {client_tokens:?}");
        assert_eq!(gets_all(&service, "ide").await, is_whole, "{case}");
        assert!(gets_all(&service, "toolcrib-cli").await, "{case}");
        let scope = EndpointScope { client_name: Some("ide".into()), ..EndpointScope::local() };
        let may_be_cut = client_tokens.or(tool_tokens.filter(|tokens| *tokens > 0)).or(server_tokens);
        assert_eq!(service.lists_read_result(&scope), may_be_cut.is_some_and(|tokens| tokens > 0), "{case}");
    }
}

#[tokio::test]
async fn other_results_pass_unchanged() {
    let log = log(500);
    let service = service(&log, Some(TOKENS)).await;
    let rows = call(&service, "disk__rows", json!({})).await;
    assert_eq!(rows["structuredContent"]["rows"].as_array().unwrap().len(), 2000);
    let scopes = [
        EndpointScope { view: CatalogScope::One("disk".parse().unwrap()), ..EndpointScope::local() },
        EndpointScope { client_name: Some("toolcrib-cli".into()), ..EndpointScope::local() },
    ];
    for (scope, name) in scopes.into_iter().zip(["log", "disk__log"]) {
        let context = RequestContext { scope, ..context(Era::Session) };
        let result = ask_as(&service, context, "tools/call", json!({"name": name})).await;
        assert_eq!(text(&result["content"][0]), log);
    }
    let image = r#"{"content":[{"type":"text","text":"TEXT"},{"type":"image","data":"AA","mimeType":"x"}]}"#;
    let image: Bytes = image.replace("TEXT", &"x".repeat(5000)).into();
    assert!(LargeResult::parse(&image, "s".parse().unwrap(), 2000).is_none());
}

#[tokio::test]
async fn results_are_read_only_by_their_caller_and_mistakes_are_explained() {
    let rows: Vec<Value> = (0..500).map(|id| json!({"id": id, "name": "x"})).collect();
    let service = service(&json!({"rows": rows, "total": 1.0}).to_string(), Some(TOKENS)).await;
    let result = call(&service, "disk__log", json!({})).await;
    let explanation = text(&result["content"][1]);
    assert!(explanation.contains("a JSON object with the keys rows, total"), "{explanation}");
    let uri = link(&result);
    let id = uri.strip_prefix(URI_PREFIX).unwrap();
    let value = call(&service, "read_result", json!({"id": id, "pointer": "/rows/499"})).await;
    assert_eq!(text(&value["content"][0]), r#"{"id":499,"name":"x"}"#);
    for (arguments, expected) in [
        (json!({"id": id, "pointer": "/cols"}), "the result has no `cols`"),
        (json!({"id": id, "page": 900}), "there is no such page: the text has "),
        (json!({"id": id, "page": "two"}), "`page` must be a whole number from 1, not `two`"),
        (json!({"id": "0123"}), "Resource not found: toolcrib://_results/0123"),
        (json!({}), "`id` must be the id of a stored result"),
    ] {
        let answer = call(&service, "read_result", arguments).await;
        assert!(text(&answer["content"][0]).starts_with(expected), "{answer}");
        assert_eq!(answer["isError"], true);
    }
    assert_eq!(read(&service, &format!("{uri}?lines=x")).await["error"]["code"], -32602);

    let scope = EndpointScope::trusted(Caller::new("bob"));
    let other = RequestContext { scope, ..context(Era::Session) };
    let refused = ask_as(&service, other, "resources/read", json!({"uri": uri})).await;
    assert_eq!(refused["error"]["code"], -32002, "{refused}");
    service.crib.set_policy(toolcrib::access::policy::Policy::default());
    service.crib.remove(&"disk".parse().unwrap()).await.unwrap();
    assert!(read(&service, &uri).await["error"].is_object());
}

#[test]
fn several_blocks_are_stored_separately_and_the_answer_fits() {
    let keys: String = (0..40).map(|number| format!(r#""{}{number}":1,"#, "\\\"".repeat(60))).collect();
    let nasty = format!("{{{keys}\"last\":\"{}\"}}", "\\n".repeat(4000));
    for texts in [vec![format!("[{nasty}]")], vec![nasty.clone()], vec!["\u{1}".repeat(900), nasty]] {
        let blocks: Vec<Value> = texts.iter().map(|text| json!({"type": "text", "text": text})).collect();
        let result: Bytes = json!({"content": blocks, "isError": true}).to_string().into();
        let server = "s".repeat(32).parse().unwrap();
        let large = LargeResult::parse(&result, server, 2000).unwrap();
        let content = large.summary.to_content(&"0".repeat(32));
        assert!(content.len() <= 2000, "{} bytes: {content}", content.len());
        assert_eq!(read_texts(&large.stored, &PartSelector::default()).unwrap(), texts);
        let selector = PartSelector::from_query("lines=1-").unwrap();
        assert_eq!(read_texts(&large.stored, &selector).unwrap(), [texts.join("\n")]);
    }
}
