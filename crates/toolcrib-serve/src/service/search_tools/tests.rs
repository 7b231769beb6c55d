//! Tests of search mode: what is listed, found, described and called.

use std::sync::Mutex;

use toolcrib::access::policy::{Policy, Rules};
use toolcrib::model::event::CallRecord;
use toolcrib::util::locks::IgnorePoison as _;
use toolcrib::{
    Caller, Client, Crib, CribBuilder, ExposeMode, ExposeSettings, Observer, ServerSpec, Toolbox, UsageLimits,
};

use super::*;

fn expose(mode: ExposeMode) -> ExposeSettings {
    let mut settings = ExposeSettings::default();
    settings.mode = mode;
    settings
}

/// A server whose tools return their arguments.
fn server(name: &str, tools: &[(&str, &str)]) -> ServerSpec {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}, "depth": {"type": "integer"}},
        "required": ["path"]});
    let toolbox = tools.iter().fold(Toolbox::new(), |toolbox, (tool, description)| {
        toolbox.tool(tool, description, &schema, |arguments| async move { Ok(format!("{arguments:?}")) })
    });
    ServerSpec::in_process(name.parse().unwrap(), toolbox)
}

fn builder(mode: ExposeMode) -> CribBuilder {
    let files = [
        ("read_file", "Reads a file. Fast."),
        ("delete_file", "Removes a file."),
        ("find_tools", "Hammers."),
    ];
    Crib::builder().server(server("disk", &files)).expose(expose(mode))
}

/// A service whose servers have been listed.
async fn service(builder: CribBuilder) -> McpService {
    let service = McpService::new(builder.build().unwrap());
    service.crib.list().await;
    service
}

fn context(client: &str, era: Era) -> RequestContext {
    let scope = EndpointScope { client_name: Some(client.into()), ..EndpointScope::local() };
    let client = Client { era, ..Client::without_capabilities() };
    RequestContext { scope, client, client_context: None, updates: None, has_extensions: false }
}

fn object(value: &Value) -> Object {
    Object::parse(&value.to_string().into()).unwrap()
}

/// Returns the result or the error of a request.
async fn ask(service: &McpService, method: &str, params: Value) -> Value {
    ask_as(service, context("any", Era::Session), method, params).await
}

async fn ask_as(service: &McpService, context: RequestContext, method: &str, params: Value) -> Value {
    match service.plan(context, method, Some(object(&params))).respond().await {
        ResponsePayload::Result(result) => serde_json::from_slice(&result).unwrap(),
        ResponsePayload::Error(error) => json!({"error": serde_json::from_slice::<Value>(&error).unwrap()}),
        other => panic!("{other:?}"),
    }
}

async fn call(service: &McpService, name: &str, arguments: Value) -> Value {
    ask(service, "tools/call", json!({"name": name, "arguments": arguments})).await
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{result}"))
}

fn names(result: &Value) -> Vec<&str> {
    result["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

const SEARCH_TOOL_NAMES: [&str; 3] = ["find_tools", "describe_tools", "call_tool"];

#[tokio::test]
async fn search_mode_lists_three_tools_and_those_that_are_always_listed() {
    let service = service(builder(ExposeMode::Search)).await;
    let listed = service.list(context("any", Era::Session), ListKind::Tools, Object::default()).await.0;
    let ResponsePayload::Result(before) = listed else { panic!("{listed:?}") };
    assert_eq!(names(&serde_json::from_slice(&before).unwrap()), SEARCH_TOOL_NAMES);
    assert!(SEARCH_TOOLS.join(",").len() <= 1000, "{} bytes", SEARCH_TOOLS.join(",").len());
    let digests = service.list_digests(&EndpointScope::local());

    // Another server changes neither the bytes nor what clients are notified of.
    service.crib.add(server("aaa", &[("x", "Other.")])).await.unwrap();
    service.crib.list().await;
    let listed = service.list(context("any", Era::Session), ListKind::Tools, Object::default()).await.0;
    let ResponsePayload::Result(after) = listed else { panic!("{listed:?}") };
    assert_eq!(before, after);
    assert_eq!(service.list_digests(&EndpointScope::local()), digests);

    let mut settings = expose(ExposeMode::Search);
    settings.always_list = vec!["disk.read*".parse().unwrap()];
    settings.clients.insert("ide".to_owned(), ExposeMode::All);
    service.crib.set_expose(settings);
    let listed = ask(&service, "tools/list", json!({})).await;
    assert_eq!(names(&listed), ["find_tools", "describe_tools", "call_tool", "disk__read_file"]);
    assert_ne!(service.list_digests(&EndpointScope::local()), digests);
    let listed = ask_as(&service, context("ide", Era::Stateless), "tools/list", json!({})).await;
    assert_eq!(names(&listed).len(), 4, "{listed}");
    assert_eq!(listed["cacheScope"], "private", "{listed}");
    let one = EndpointScope { view: CatalogScope::One("disk".parse().unwrap()), ..EndpointScope::local() };
    let at_server = RequestContext { scope: one, ..context("any", Era::Session) };
    assert_eq!(names(&ask_as(&service, at_server, "tools/list", json!({})).await).len(), 3);
}

#[tokio::test]
async fn auto_searches_above_the_budget_only() {
    let service = service(builder(ExposeMode::Auto)).await;
    assert_eq!(names(&ask(&service, "tools/list", json!({})).await).len(), 3);
    // A real tool is not shadowed while the search tools are not listed.
    assert!(text(&call(&service, "find_tools", json!({"path": "p"})).await).contains("path"));
    assert!(
        text(&call(&service, "describe_tools", json!({"names": ["read_file"]})).await)
            .contains("inputSchema")
    );
    let mut settings = expose(ExposeMode::Auto);
    settings.budget = 10;
    service.crib.set_expose(settings);
    assert_eq!(names(&ask(&service, "tools/list", json!({})).await), SEARCH_TOOL_NAMES);
    let listed = ask_as(&service, context("claude-code", Era::Session), "tools/list", json!({})).await;
    assert_eq!(names(&listed)[0], "disk__read_file");
    service.crib.set_expose(ExposeSettings::default());
    assert!(call(&service, "describe_tools", json!({"names": "x"})).await.get("error").is_some());
}

#[tokio::test]
async fn thousand_tools_cost_little_context() {
    let descriptions =
        "Creates the monthly statement of an account with all its entries and sends it to the owner.";
    let tools: Vec<String> =
        (0..20).map(|index| format!("create_monthly_account_statement_{index}")).collect();
    let tools: Vec<(&str, &str)> = tools.iter().map(|name| (name.as_str(), descriptions)).collect();
    let builder = (0..50).fold(Crib::builder().expose(expose(ExposeMode::Search)), |builder, index| {
        builder.server(server(&format!("accounting-department-{index}"), &tools))
    });
    let service = service(builder).await;
    let found = call(&service, "find_tools", json!({"query": "statement of my account"})).await;
    assert_eq!(names(&found["structuredContent"]).len(), 10);
    assert!(text(&found).len() <= 1200, "{}", text(&found));
    assert!(text(&found).ends_with("100 or more match less well."), "{}", text(&found));
    let initialized = service.initialize_result(&EndpointScope::local(), "2025-06-18".parse().unwrap()).await;
    let initialized: Value = serde_json::from_slice(&initialized).unwrap();
    let instructions = initialized["instructions"].as_str().unwrap();
    assert!(instructions.contains("\n- accounting-department-7\n"), "{instructions}");
    assert!(instructions.len() + SEARCH_TOOLS.join(",").len() <= 4000, "{} bytes", instructions.len());
}

#[tokio::test]
async fn find_tools_returns_signatures_best_first() {
    let service = service(builder(ExposeMode::Search)).await;
    let found = call(&service, "find_tools", json!({"query": "remove a file"})).await;
    assert_eq!(found["isError"], false);
    let tools = &found["structuredContent"]["tools"];
    assert_eq!(names(&found["structuredContent"]), ["disk__delete_file", "disk__read_file"]);
    assert_eq!(tools[1]["description"], "Reads a file.");
    assert_eq!(tools[0]["server"], "disk");
    assert_eq!(tools[0]["signature"], "disk__delete_file(path: string, depth?: integer)");
    assert!(tools[0]["score"].as_f64() > tools[1]["score"].as_f64());
    let line = "disk__delete_file(path: string, depth?: integer) – Removes a file.";
    assert_eq!(text(&found).lines().next().unwrap(), line);
    let both =
        call(&service, "find_tools", json!({"query": ["reading", "hammers", "file"], "limit": 2})).await;
    assert_eq!(names(&both["structuredContent"]), ["disk__read_file", "disk__find_tools"]);
    assert!(text(&both).ends_with("1 more match less well."), "{both}");
    let stateless = context("any", Era::Stateless);
    let params = json!({"name": "find_tools", "arguments": {"query": "read", "server": "disk"}});
    let found = ask_as(&service, stateless, "tools/call", params).await;
    assert_eq!(found["resultType"], "complete", "{found}");
}

#[tokio::test]
async fn wrong_arguments_are_explained() {
    let service = service(builder(ExposeMode::Search)).await;
    let long = "x".repeat(1 << 20);
    let cases = [
        ("find_tools", json!({}), "`query` must be a string, or an array of 1 to 8 strings"),
        ("find_tools", json!({"query": " "}), "`query` is empty"),
        ("find_tools", json!({"query": long}), "`query` has 1048576 characters, at most 4096 are allowed"),
        ("find_tools", json!({"query": vec!["x"; 9]}), "an array of 1 to 8 strings"),
        ("find_tools", json!({"query": "x", "limit": 0}), "`limit` must be a whole number from 1 to 50"),
        ("find_tools", json!({"query": "x", "server": "dsk"}), "dsk"),
        ("find_tools", json!({"query": "x", "server": 7}), "`server` must be a string"),
        ("describe_tools", json!({"names": []}), "`names` must be"),
        ("describe_tools", json!({"names": ["disk__red_file"]}), "disk__read_file"),
        ("call_tool", json!({}), "`name` must be the name of a tool"),
        ("call_tool", json!({"name": "call_tool"}), "call `call_tool` directly"),
        ("call_tool", json!({"name": "describe_tools"}), "call `describe_tools` directly"),
        (
            "call_tool",
            json!({"name": "disk__read_file", "path": "x"}),
            "put the arguments of the tool into `arguments`",
        ),
        (
            "call_tool",
            json!({"name": "disk__read_file", "arguments": "{\"path\":1}"}),
            "not a string that contains one",
        ),
        ("call_tool", json!({"name": "disk__read_file", "arguments": []}), "`arguments` must be an object"),
    ];
    for (tool, arguments, expected) in cases {
        let answer = call(&service, tool, arguments).await;
        assert_eq!(answer["isError"], true, "{tool} {expected}");
        assert!(text(&answer).contains(expected), "{tool}: {}", text(&answer));
    }
    for query in ["天気を調べる", "the of a", "^(a|b)*$", "'; DROP TABLE x; --", "\u{0}"] {
        let answer = call(&service, "find_tools", json!({"query": query})).await;
        assert_eq!(answer["isError"], false, "{query}");
    }
}

/// Returns the items of `tools/list`, as bytes.
async fn list_bytes(service: &McpService) -> String {
    let listed = service.list(context("any", Era::Session), ListKind::Tools, Object::default()).await.0;
    let ResponsePayload::Result(listed) = listed else { panic!("{listed:?}") };
    let listed = Object::parse(&listed).unwrap();
    String::from_utf8(listed.get("tools").unwrap().to_vec()).unwrap()
}

#[tokio::test]
async fn unrelated_servers_do_not_change_what_is_listed_of_others() {
    for mode in [ExposeMode::All, ExposeMode::Search] {
        let mut settings = expose(mode);
        settings.always_list = vec!["disk.*".parse().unwrap()];
        let service = service(builder(mode).expose(settings)).await;
        let before = list_bytes(&service).await;
        let disk = before.trim_matches(['[', ']']);
        // Tools of the same name, of servers before and after it.
        for name in ["aaa", "zzz"] {
            service
                .crib
                .add(server(name, &[("read_file", "Other."), ("call_tool", "Other.")]))
                .await
                .unwrap();
        }
        service.crib.list().await;
        let with_others = list_bytes(&service).await;
        assert!(with_others.contains(disk), "{mode:?}: {with_others}");
        assert_eq!(with_others == before, mode == ExposeMode::Search);
        for name in ["aaa", "zzz"] {
            service.crib.remove(&name.parse().unwrap()).await.unwrap();
        }
        service.crib.list().await;
        assert_eq!(list_bytes(&service).await, before, "{mode:?}");
    }
}

#[tokio::test]
async fn list_costs_are_known_for_each_client_by_server() {
    let service = service(builder(ExposeMode::Auto).server(server("mail", &[("send", "Sends.")]))).await;
    let mut settings = expose(ExposeMode::Search);
    settings.always_list = vec!["mail.*".parse().unwrap()];
    settings.clients.insert("ide".to_owned(), ExposeMode::All);
    service.crib.set_expose(settings);
    assert!(service.client_list_costs().is_empty());
    for client in ["ide", "any", "any"] {
        ask_as(&service, context(client, Era::Session), "tools/list", json!({})).await;
    }
    let costs = service.client_list_costs();
    let summary: Vec<_> = costs.iter().map(|cost| (cost.client.as_deref(), cost.is_search)).collect();
    assert_eq!(summary, [(Some("any"), true), (Some("ide"), false)]);
    let servers = |index: usize| {
        let named = |shown: &crate::ShownTools| (shown.server.as_ref().map(ToString::to_string), shown.tools);
        costs[index].servers.iter().map(named).collect::<Vec<_>>()
    };
    assert_eq!(servers(0), [(None, 3), (Some("mail".to_owned()), 1)]);
    assert_eq!(servers(1), [(Some("disk".to_owned()), 3), (Some("mail".to_owned()), 1)]);
    // The cost is that of the list: brackets, commas and rounding apart.
    let listed = service.crib.catalog_for(&Caller::local()).list_json(ListKind::Tools, None).len();
    let tokens = |index: usize| costs[index].servers.iter().map(crate::ShownTools::tokens).sum::<usize>();
    assert!(tokens(1).abs_diff(listed / 4) <= 4, "{} tokens, {listed} bytes", tokens(1));
    assert!(tokens(0) < 400 && costs[0].instruction_tokens > 0, "{:?}", costs[0]);
}

#[tokio::test]
async fn identical_searches_are_not_stopped_and_identical_calls_are() {
    let limits = UsageLimits { identical_calls: std::num::NonZeroU32::new(2), ..Default::default() };
    let service = service(builder(ExposeMode::Search).limits(limits)).await;
    let client_context = Some(Arc::new(toolcrib::ClientContext::default()));
    let ask = async |name: &str, arguments: Value| {
        let context =
            RequestContext { client_context: client_context.clone(), ..context("any", Era::Session) };
        ask_as(&service, context, "tools/call", json!({"name": name, "arguments": arguments})).await
    };
    for _ in 0..5 {
        assert_eq!(ask("find_tools", json!({"query": "file"})).await["isError"], false);
    }
    let inner = json!({"name": "disk__read_file", "arguments": {"path": "p"}});
    let mut refused = Vec::new();
    for _ in 0..3 {
        refused.push(ask("call_tool", inner.clone()).await["isError"] == true);
    }
    assert_eq!(refused, [false, false, true]);
}

#[test]
fn annotations_of_call_tool_promise_nothing() {
    let call: Value = serde_json::from_str(SEARCH_TOOLS[2]).unwrap();
    assert_eq!((&call["name"], &call["annotations"]), (&json!("call_tool"), &Value::Null));
}

/// Remembers the targets of calls.
#[derive(Debug, Default)]
struct Targets(Mutex<Vec<String>>);

impl Observer for Targets {
    fn call_ended(&self, record: &CallRecord) {
        self.0.lock().ignore_poison().push(record.name.to_string());
    }
}

#[tokio::test]
async fn call_tool_is_the_call_of_the_tool_that_it_names() {
    let targets = Arc::new(Targets::default());
    let deny = Rules::default().denying(["disk.delete_file".parse().unwrap()]);
    let builder = builder(ExposeMode::Search).policy(Policy::for_everyone(deny)).observer(targets.clone());
    let service = service(builder).await;
    for name in
        ["disk__read_file", "disk.read_file", "read_file", "disk__delete_file", "disk__gone", "find_tools"]
    {
        for era in [Era::Session, Era::Stateless] {
            let inner = json!({"name": name, "arguments": {"path": "p", "n": 1.0}, "_meta": {"x": 1}});
            let wrapped = json!({"name": "call_tool", "_meta": {"x": 1},
                "arguments": {"name": name, "arguments": {"path": "p", "n": 1.0}}});
            // At the endpoint of the server, and in a mode without search tools, only real names exist.
            let direct_client = context("claude-code", era);
            service.crib.set_expose(expose(ExposeMode::Auto));
            let mut direct = ask_as(&service, direct_client, "tools/call", inner).await;
            service.crib.set_expose(expose(ExposeMode::Search));
            let mut through = ask_as(&service, context("any", era), "tools/call", wrapped).await;
            // Each call has its own id.
            for answer in [&mut direct, &mut through] {
                answer.pointer_mut("/error/data/call").map(Value::take);
            }
            assert_eq!(direct, through, "{name}");
        }
    }
    let seen = targets.0.lock().ignore_poison().clone();
    assert!(!seen.is_empty() && seen.iter().all(|target| !target.contains("call_tool")), "{seen:?}");
    let denied = call(&service, "find_tools", json!({"query": "remove a file"})).await;
    assert_eq!(names(&denied["structuredContent"]), ["disk__read_file"]);
    let hidden = call(&service, "describe_tools", json!({"names": ["disk__delete_file"]})).await;
    assert_eq!(hidden["isError"], true, "{hidden}");
    assert!(service.crib.search_for(&Caller::local(), "remove", 10).await.is_empty());
}
