//! Tests of catalog contents and lookup.

use serde_json::{Value, json};

use super::*;
use crate::model::listing::DeclaredToolFacts;
use crate::model::pin_status::PinStatus;
use crate::model::selector::Selector;
use crate::protocol::json::object;

/// The lists of one server: each kind with its names.
type Lists<'a> = &'a [(ListKind, &'a [&'a str])];

/// Parses a short definition and treats it as correct.
fn item(kind: ListKind, definition: impl Into<Bytes>) -> ListedItem {
    ListedItem { repaired: None, ..ListedItem::parse(kind, definition.into()).unwrap() }
}

fn listing(lists: Lists<'_>) -> Arc<Listing> {
    let list = |listed: ListKind| {
        let names = lists.iter().filter(|(kind, _)| *kind == listed).flat_map(|(_, names)| names.iter());
        names
            .map(|name| {
                let definition = format!(r#"{{"{}":"{name}","x":1.0}}"#, listed.id_member());
                item(listed, definition)
            })
            .collect()
    };
    let mut declared: Vec<String> =
        lists.iter().map(|(kind, _)| format!(r#""{}":{{}}"#, kind.capability())).collect();
    declared.dedup();
    Arc::new(Listing {
        tools: list(ListKind::Tools),
        prompts: list(ListKind::Prompts),
        resources: list(ListKind::Resources),
        templates: list(ListKind::Templates),
        capabilities: format!("{{{}}}", declared.join(",")).into(),
        ..Listing::default()
    })
}

fn catalog(servers: &[(&str, Lists<'_>)]) -> Catalog {
    let listings = servers.iter().map(|(server, lists)| (id(server), Some(listing(lists))));
    Catalog::build(1, &listings.collect())
}

fn id(name: &str) -> ServerId {
    name.parse().unwrap()
}

fn find(catalog: &Catalog, selector: &Selector) -> Result<String, String> {
    let found = catalog.find(selector);
    found.map(|target| format!("{} {}", target.server, target.name)).map_err(|error| error.to_string())
}

fn tool(catalog: &Catalog, name: &str) -> Result<String, String> {
    find(catalog, &Selector::Tool(name.to_owned()))
}

fn resource(catalog: &Catalog, uri: &str) -> Result<String, String> {
    find(catalog, &Selector::Resource(uri.to_owned()))
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn find_accepts_public_names_and_unique_bare_names() {
    let lists: [Lists<'_>; 2] = [
        &[(ListKind::Tools, &["log", "push"]), (ListKind::Prompts, &["ask"])],
        &[(ListKind::Tools, &["log"]), (ListKind::Prompts, &["ask", "log"])],
    ];
    let catalog = catalog(&[("b", lists[0]), ("a", lists[1])]);
    assert_eq!(tool(&catalog, "b__log").unwrap(), "b log");
    assert_eq!(tool(&catalog, "push").unwrap(), "b push");
    assert_eq!(tool(&catalog, "log").unwrap_err(), "several servers have a tool `log`: `a__log`, `b__log`");
    assert_eq!(tool(&catalog, "nope").unwrap_err(), "Unknown tool: nope");
    assert_eq!(tool(&catalog, "ask").unwrap_err(), "Unknown tool: ask");
    let prompt = |name: &str| find(&catalog, &Selector::Prompt(name.to_owned()));
    assert_eq!(prompt("b__ask").unwrap(), "b ask");
    assert_eq!(prompt("log").unwrap(), "a log");
    assert_eq!(prompt("ask").unwrap_err(), "several servers have a prompt `ask`: `a__ask`, `b__ask`");
    assert_eq!(prompt("push").unwrap_err(), "Unknown prompt: push");
}

#[test]
fn items_are_ordered_by_server_then_own_order() {
    let catalog = catalog(&[
        ("b", &[(ListKind::Tools, &["z", "a", "z"]), (ListKind::Prompts, &["p"])]),
        ("a", &[(ListKind::Tools, &["m"])]),
    ]);
    let names: Vec<&str> = catalog.tools().iter().map(|tool| &*tool.public_name).collect();
    assert_eq!(names, ["a__m", "b__z", "b__a"]);
    assert_eq!(
        text(&catalog.list_json(ListKind::Tools, None)),
        r#"[{"name":"a__m","x":1.0},{"name":"b__z","x":1.0},{"name":"b__a","x":1.0}]"#
    );
    assert_eq!(
        text(&catalog.list_json(ListKind::Tools, Some(&id("b")))),
        r#"[{"name":"z","x":1.0},{"name":"a","x":1.0},{"name":"z","x":1.0}]"#
    );
    assert_eq!(text(&catalog.list_json(ListKind::Prompts, None)), r#"[{"name":"b__p","x":1.0}]"#);
    assert_eq!(text(&catalog.list_json(ListKind::Resources, None)), "[]");
    assert_eq!(text(&catalog.list_json(ListKind::Tools, Some(&id("c")))), "[]");
}

#[test]
fn suggest_tool_searches_the_selected_server_only() {
    let catalog =
        catalog(&[("git", &[(ListKind::Tools, &["git_log"])]), ("time", &[(ListKind::Tools, &["git_lag"])])]);
    let suggestion =
        |tool: &str| catalog.suggest_tool(&Selector::OnServer("git".parse().unwrap(), tool.into()));
    assert_eq!(suggestion("git_lgo"), Some("git_log"));
    assert_eq!((suggestion("git_log"), suggestion("push")), (None, None));
    assert_eq!(catalog.suggest_tool(&Selector::Tool("git_lgo".into())), None);
}

#[test]
fn unknown_name_error_suggests_the_nearest() {
    let catalog = catalog(&[("git", &[(ListKind::Tools, &["git_log"]), (ListKind::Prompts, &["commit"])])]);
    for (selector, hint) in [
        (Selector::Tool("git__git_lgo".into()), "did you mean `git__git_log`?"),
        (Selector::Prompt("comit".into()), "did you mean `commit`?"),
    ] {
        let error = catalog.add_suggestion(catalog.find(&selector).unwrap_err(), &selector);
        assert_eq!(error.hint(), hint);
    }
}

#[test]
fn resource_of_two_servers_is_listed_with_its_server() {
    let catalog = catalog(&[
        (
            "a",
            &[(ListKind::Resources, &["x://1", "x://2"]), (ListKind::Templates, &["x://{id}", "y://{id}"])],
        ),
        (
            "b",
            &[
                (ListKind::Resources, &["x://2", "x://2", "toolcrib://a/z"]),
                (ListKind::Templates, &["y://{id}"]),
            ],
        ),
    ]);
    assert_eq!(
        text(&catalog.list_json(ListKind::Resources, None)),
        r#"[{"uri":"x://1","x":1.0},{"uri":"toolcrib://a/x%3A%2F%2F2","x":1.0},{"uri":"toolcrib://b/x%3A%2F%2F2","x":1.0},{"uri":"toolcrib://b/toolcrib%3A%2F%2Fa%2Fz","x":1.0}]"#
    );
    assert_eq!(
        text(&catalog.list_json(ListKind::Templates, None)),
        r#"[{"uriTemplate":"x://{id}","x":1.0},{"uriTemplate":"toolcrib://a/y://{id}","x":1.0},{"uriTemplate":"toolcrib://b/y://{id}","x":1.0}]"#
    );
    assert_eq!(
        text(&catalog.list_json(ListKind::Resources, Some(&id("b")))),
        r#"[{"uri":"x://2","x":1.0},{"uri":"x://2","x":1.0},{"uri":"toolcrib://a/z","x":1.0}]"#
    );
    for (uri, target) in [
        ("x://1", "a x://1"),
        ("toolcrib://b/x%3A%2F%2F2", "b x://2"),
        ("toolcrib://b/x%3A%2F%2Funlisted", "b x://unlisted"),
        ("toolcrib://b/toolcrib%3A%2F%2Fa%2Fz", "b toolcrib://a/z"),
        ("toolcrib://b/y://%2F", "b y://%2F"),
        ("toolcrib://b/y://{id}", "b y://{id}"),
        ("x://{id}", "a x://{id}"),
        ("x://7", "a x://7"),
        // There is no server `c`, and only `b` lists URIs of that scheme.
        ("toolcrib://c/z", "b toolcrib://c/z"),
    ] {
        assert_eq!(resource(&catalog, uri).unwrap(), target, "{uri}");
    }
    for (uri, error) in [
        (
            "x://2",
            "several servers have a resource `x://2`: `toolcrib://a/x%3A%2F%2F2`, `toolcrib://b/x%3A%2F%2F2`",
        ),
        (
            "y://7",
            "several servers have a resource `y://7`: `toolcrib://a/y%3A%2F%2F7`, `toolcrib://b/y%3A%2F%2F7`",
        ),
        ("z://7", "Resource not found: z://7"),
    ] {
        assert_eq!(resource(&catalog, uri).unwrap_err(), error, "{uri}");
    }
}

#[test]
fn unlisted_uri_goes_to_the_only_possible_server() {
    let single = catalog(&[("a", &[(ListKind::Resources, &[])]), ("b", &[(ListKind::Tools, &["t"])])]);
    assert_eq!(resource(&single, "x://9").unwrap(), "a x://9");
    let several = catalog(&[
        ("a", &[(ListKind::Resources, &["x://1", "y://1"])]),
        ("b", &[(ListKind::Resources, &["y://2"]), (ListKind::Templates, &["z://{id}/end"])]),
    ]);
    assert_eq!(resource(&several, "x://9").unwrap(), "a x://9");
    assert_eq!(resource(&several, "z://9").unwrap(), "b z://9");
    assert_eq!(resource(&several, "y://9").unwrap_err(), "Resource not found: y://9");
    assert!(several.find_listed(&Selector::Resource("x://9".into())).is_err());
    assert_eq!(resource(&catalog(&[]), "x://9").unwrap_err(), "Resource not found: x://9");
}

#[test]
fn public_uri_resolves_to_its_server() {
    let catalog = catalog(&[
        ("a", &[(ListKind::Resources, &["x://1", "s://1"]), (ListKind::Templates, &["t://{id}"])]),
        ("b", &[(ListKind::Resources, &["y://1", "s://1"]), (ListKind::Templates, &["t://{id}"])]),
        ("c", &[(ListKind::Tools, &["t"])]),
    ]);
    for server in ["a", "b"].map(id) {
        for own_uri in
            ["x://1", "s://1", "y://1", "t://1", "y://9", "q://1", "toolcrib://a/x", "toolcrib://q/x"]
        {
            let public = catalog.public_uri(&server, own_uri);
            assert_eq!(resource(&catalog, &public).unwrap(), format!("{server} {own_uri}"), "{public}");
        }
    }
    assert_eq!(catalog.public_uri(&id("a"), "x://1"), "x://1");
    assert_eq!(catalog.public_uri(&id("b"), "x://1"), "toolcrib://b/x%3A%2F%2F1");
    assert_eq!(catalog.public_uri(&id("c"), "x://1"), "x://1");
}

/// Returns a listing with these resources, and a tool whose page has this address.
fn listing_with_page(page: &str, resources: &[&str], templates: &[&str]) -> Option<Arc<Listing>> {
    let definition = format!(
        r#"{{"name":"t","_meta":{{"ui":{{"resourceUri":"{page}","n":1.0}},"ui/resourceUri":"{page}"}}}}"#
    );
    let listed = [(ListKind::Resources, resources), (ListKind::Templates, templates)];
    let mut listing = Listing::clone(&listing(&listed));
    listing.capabilities = Bytes::from_static(br#"{"tools":{},"resources":{}}"#);
    listing.tools.push(item(ListKind::Tools, definition));
    Some(Arc::new(listing))
}

#[test]
fn ui_pages_keep_their_scheme_and_name_their_server() {
    let listings = [
        (id("a"), listing_with_page("ui://x/p.html", &["ui://x/p.html"], &["ui://x/{id}"])),
        (id("b"), listing_with_page("ui://x/p.html", &["ui://x/p.html"], &["ui://x/{id}"])),
        (id("c"), listing_with_page("ui://c/unlisted", &[], &[])),
        (id("x"), listing_with_page("ui://b/page", &[], &[])),
    ];
    let catalog = Catalog::build(1, &listings.into());
    let tools = catalog.list_json(ListKind::Tools, None);
    assert!(
        text(&tools).starts_with(
            r#"[{"name":"a__t","_meta":{"ui":{"resourceUri":"ui://toolcrib/a/x/p.html","n":1.0},"ui/resourceUri":"ui://toolcrib/a/x/p.html"}},"#
        ),
        "{tools:?}"
    );
    for (server, own, public) in [
        ("a", "ui://x/p.html", "ui://toolcrib/a/x/p.html"),
        ("b", "ui://x/p.html", "ui://toolcrib/b/x/p.html"),
        ("c", "ui://c/unlisted", "ui://toolcrib/c/c/unlisted"),
        ("x", "ui://b/page", "ui://toolcrib/x/b/page"),
        ("a", "ui://x/7", "ui://toolcrib/a/x/7"),
        ("a", "ui://q?%20#ü", "ui://toolcrib/a/q?%20#ü"),
    ] {
        assert_eq!(catalog.public_uri(&id(server), own), public);
        assert_eq!(resource(&catalog, public).unwrap(), format!("{server} {own}"), "{public}");
    }
    let listed = text(&catalog.list_json(ListKind::Resources, None)).to_owned();
    assert!(listed.contains("ui://toolcrib/a/x/p.html") && listed.contains("ui://toolcrib/b/x/p.html"));
    let templates = text(&catalog.list_json(ListKind::Templates, None)).to_owned();
    assert!(templates.contains("ui://toolcrib/b/x/{id}"), "{templates}");
}

#[test]
fn ui_addresses_do_not_depend_on_other_servers() {
    let alone = Catalog::build(1, &[(id("a"), listing_with_page("ui://x", &["ui://x"], &[]))].into());
    assert_eq!(alone.public_uri(&id("a"), "ui://x"), "ui://toolcrib/a/x");
    assert_eq!(resource(&alone, "ui://x").unwrap(), "a ui://x", "the own address of a listed page");
    let one = text(&alone.list_json(ListKind::Resources, Some(&id("a")))).to_owned();
    assert!(one.contains(r#""ui://x""#), "the endpoint of one server keeps the bytes: {one}");
    let nested = listing_with_page("ui://toolcrib/a/x", &["ui://toolcrib/a/x"], &[]);
    let servers = [(id("a"), listing_with_page("ui://x", &["ui://x"], &[])), (id("b"), nested)];
    let catalog = Catalog::build(1, &servers.into());
    assert_eq!(resource(&catalog, "ui://toolcrib/a/x").unwrap(), "a ui://x", "never another server's page");
    assert_eq!(resource(&catalog, "ui://toolcrib/b/toolcrib/a/x").unwrap(), "b ui://toolcrib/a/x");
}

#[test]
fn task_is_found_by_server_and_any_id() {
    let catalog = catalog(&[("a-b", &[]), ("a", &[])]);
    for own_id in ["1", "", "__x", "_", "a.b/c d", "x__y"] {
        let public = Catalog::public_task_id(&id("a-b"), own_id);
        assert_eq!(find(&catalog, &Selector::Task(public)).unwrap(), format!("a-b {own_id}"));
    }
    for unknown in ["1", "c__1", "A__1", ""] {
        let error = find(&catalog, &Selector::Task(unknown.into())).unwrap_err();
        assert_eq!(error, format!("Task not found: {unknown}"));
    }
}

#[test]
fn page_with_all_items_has_the_result_for_sessions() {
    for names in [&[][..], &["one"], &["one", "two"]] {
        let catalog = catalog(&[("a", &[(ListKind::Tools, names)])]);
        for server in [None, Some(id("a"))] {
            let mut page = catalog.page(ListKind::Tools, server.as_ref(), Era::Session, None).unwrap();
            let expected = format!(r#"{{"tools":{}}}"#, str::from_utf8(&page.items).unwrap());
            assert_eq!(page.session_result().unwrap(), expected.as_bytes());
            let stateless = catalog.page(ListKind::Tools, server.as_ref(), Era::Stateless, None).unwrap();
            assert_eq!(stateless.session_result(), None);
            let mut items: Vec<Value> = serde_json::from_slice(&page.items).unwrap();
            page.insert_first("7,8");
            items.splice(0..0, [json!(7), json!(8)]);
            assert_eq!(serde_json::from_slice::<Vec<Value>>(&page.items).unwrap(), items);
            assert_eq!(page.session_result(), None, "the result has other items");
        }
    }
}

#[test]
fn long_list_is_paged_and_short_list_is_shared() {
    let names: Vec<String> = (0..PAGE_SIZE).map(|number| format!("t{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let whole = catalog(&[("a", &[(ListKind::Tools, &names)])]);
    let page = whole.page(ListKind::Tools, None, Era::Session, None).unwrap();
    assert_eq!(
        (page.next_cursor, page.items.as_ptr()),
        (None, whole.list_json(ListKind::Tools, None).as_ptr())
    );
    let more = catalog(&[("a", &[(ListKind::Tools, &names)]), ("b", &[(ListKind::Tools, &["last"])])]);
    let next = more.page(ListKind::Tools, None, Era::Session, None).unwrap().next_cursor.unwrap();
    let last = more.page(ListKind::Tools, None, Era::Session, Some(&next)).unwrap();
    assert_eq!((last.session_result(), &last.own_result), (None, &None));
    assert_eq!((&*last.items, last.next_cursor), (&br#"[{"name":"b__last","x":1.0}]"#[..], None));
    for (kind, server) in [(ListKind::Prompts, None), (ListKind::Tools, Some(id("a")))] {
        let error = more.page(kind, server.as_ref(), Era::Session, Some(&next)).unwrap_err();
        assert_eq!(error.to_string(), "unknown cursor");
        assert_eq!(error.kind().facts().code, -32602);
    }
    assert!(more.page(ListKind::Tools, Some(&id("unknown")), Era::Session, None).is_err());
}

#[test]
fn listed_server_shows_capabilities_and_instructions() {
    let mut listed = Listing::clone(&listing(&[(ListKind::Prompts, &[])]));
    listed.instructions = Some("be kind".into());
    let listings = [(id("a"), Some(Arc::new(listed))), (id("b"), None)];
    let catalog = Catalog::build(1, &listings.into());
    assert_eq!(catalog.servers().map(ServerId::as_str).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(catalog.undiscovered().map(ServerId::as_str).collect::<Vec<_>>(), ["b"]);
    assert_eq!(catalog.server_capabilities(&id("a")).map(text), Some(r#"{"prompts":{}}"#));
    assert_eq!(catalog.server_capabilities(&id("b")), None);
    assert_eq!(
        (catalog.server_instructions(&id("a")), catalog.server_instructions(&id("b"))),
        (Some("be kind"), None)
    );
}

#[test]
fn tools_are_adapted_to_the_era() {
    let definitions = [
        r#"{"name":"plain","outputSchema":{"type":"object"},"description":"execution of an outputSchema"}"#,
        r#"{"name":"task","execution":{"taskSupport":"optional"},"x":1.0}"#,
        r#"{"name":"text","outputSchema":{"type":"string"}}"#,
        r#"{"name":"union","outputSchema":{"anyOf":[{"type":"object"}]}}"#,
    ];
    let list_for = |definitions: &[&'static str], era| {
        let tools = definitions.iter().map(|tool| item(ListKind::Tools, *tool));
        let listing = Arc::new(Listing { tools: tools.collect(), ..Listing::default() });
        let catalog = Catalog::build(1, &[(id("a"), Some(listing))].into());
        let own = catalog.page(ListKind::Tools, Some(&id("a")), era, None).unwrap().items;
        let all = catalog.page(ListKind::Tools, None, era, None).unwrap().items;
        assert_eq!(text(&all).replace("a__", ""), text(&own));
        let is_shared = own.as_ptr() == catalog.list_json(ListKind::Tools, Some(&id("a"))).as_ptr();
        (text(&own).to_owned(), is_shared)
    };
    let list = |tools: &[&str]| format!("[{}]", tools.join(","));
    let [plain, task, text_result, union] = definitions;
    assert_eq!(
        list_for(&definitions, Era::Session),
        (list(&[plain, task, r#"{"name":"text"}"#, r#"{"name":"union"}"#]), false)
    );
    assert_eq!(
        list_for(&definitions, Era::Stateless),
        (list(&[plain, r#"{"name":"task","x":1.0}"#, text_result, union]), false)
    );
    assert_eq!(list_for(&[plain, task], Era::Session), (list(&[plain, task]), true), "shares the bytes");
    assert_eq!(
        list_for(&[plain, text_result], Era::Stateless),
        (list(&[plain, text_result]), true),
        "shares the bytes"
    );
}

#[test]
fn renamed_tool_keeps_its_own_name_at_its_server() {
    let names = [("log", "history"), ("push", "log")].map(|(own, new)| (own.to_owned(), new.to_owned()));
    let tool_facts = Arc::new(DeclaredToolFacts {
        public_names: names.into(),
        pin_statuses: [("log".into(), PinStatus::Changed)].into(),
    });
    let git =
        listing(&[(ListKind::Tools, &["log", "push", "history", "tag"]), (ListKind::Prompts, &["log"])]);
    let git = Arc::new(Listing { tool_facts, ..Listing::clone(&git) });
    let other = listing(&[(ListKind::Tools, &["history"])]);
    let whole = Catalog::build(1, &[(id("git"), Some(git)), (id("other"), Some(other))].into());
    for catalog in [&whole, &whole.filtered(|_| true, |_, _| true)] {
        let names: Vec<&str> = catalog.tools().iter().map(|tool| &*tool.public_name).collect();
        assert_eq!(
            names,
            ["git__history", "git__log", "git__history_259aa8ef", "git__tag", "other__history"]
        );
        let found = ["git__history", "git__log", "git__history_259aa8ef", "log"]
            .map(|name| tool(catalog, name).unwrap());
        assert_eq!(found, ["git log", "git push", "git history", "git push"]);
        assert_eq!(tool(catalog, "git__push").unwrap_err(), "Unknown tool: git__push");
        assert_eq!(tool(catalog, "push").unwrap_err(), "Unknown tool: push");
        assert!(tool(catalog, "history").unwrap_err().contains("several servers have a tool `history`"));
        assert_eq!(find_on(catalog, "git", "push"), "git push");
        let own = catalog.list_json(ListKind::Tools, Some(&id("git")));
        assert!(text(&own).starts_with(r#"[{"name":"log","x":1.0},{"name":"push""#), "{}", text(&own));
        assert_eq!(catalog.prompts()[0].public_name, "git__log".into());
        let statuses: Vec<Option<PinStatus>> = catalog.tools().iter().map(|tool| tool.pin_status).collect();
        assert_eq!(statuses, [Some(PinStatus::Changed), None, None, None, None]);
    }
}

fn find_on(catalog: &Catalog, server: &str, own_name: &str) -> String {
    find(catalog, &Selector::OnServer(id(server), own_name.to_owned())).unwrap()
}

#[test]
fn definitions_that_clients_reject_are_repaired_only_where_servers_share_a_list() {
    let good = r#"{ "name":"good", "inputSchema":{"type":"object"},"x":1.0 }"#;
    let bad = r#"{"name":"bad","description":null,"inputSchema":null}"#;
    let raw = format!(r#"[{good},{bad},{{"name":5}},7]"#);
    let parsed = ListedItem::parse_all(ListKind::Tools, &Bytes::from(raw), 1000).unwrap();
    assert_eq!((parsed.items.len(), parsed.unusable, parsed.too_large), (2, 2, 0));
    let listing = Listing { tools: parsed.items, ..Listing::default() };
    assert_eq!(
        listing.problems(),
        ["tool `bad`: `description` has a wrong type", "tool `bad`: `inputSchema` is not an object"]
    );
    let catalog = Catalog::build(1, &[(id("a"), Some(Arc::new(listing)))].into());
    let own = catalog.list_json(ListKind::Tools, Some(&id("a")));
    assert_eq!(text(&own), format!("[{good},{bad}]"));
    let repaired = r#"{"name":"a__bad","inputSchema":{"type":"object"}}"#;
    let public = r#"{"name":"a__good","inputSchema":{"type":"object"},"x":1.0}"#;
    assert_eq!(text(&catalog.list_json(ListKind::Tools, None)), format!("[{public},{repaired}]"));
}

#[test]
fn public_name_replaces_the_name_wherever_it_is() {
    let list = |definition: &str| {
        let listing =
            Listing { tools: vec![item(ListKind::Tools, definition.to_owned())], ..Listing::default() };
        let catalog = Catalog::build(1, &[(id("a"), Some(Arc::new(listing)))].into());
        text(&catalog.list_json(ListKind::Tools, None)).to_owned()
    };
    for (definition, expected) in [
        (r#"{"name":"b","x":1.0}"#, r#"[{"name":"a__b","x":1.0}]"#),
        (r#"{"name":"b"}"#, r#"[{"name":"a__b"}]"#),
        (r#"{"name":"b", "x":[ ]}"#, r#"[{"name":"a__b", "x":[ ]}]"#),
        (r#"{"x":1.0,"name":"b"}"#, r#"[{"x":1.0,"name":"a__b"}]"#),
        (r#"{"name":"\u0062","x":1}"#, r#"[{"name":"a__b","x":1}]"#),
        (r#"{"n\u0061me":"b","x":1}"#, r#"[{"name":"a__b","x":1}]"#),
        (
            r#"{"name":"b","_meta":{"ui":{"resourceUri":"ui://x"}}}"#,
            r#"[{"name":"a__b","_meta":{"ui":{"resourceUri":"ui://toolcrib/a/x"}}}]"#,
        ),
    ] {
        assert_eq!(list(definition), expected, "{definition}");
    }
    for own in ["b\"", "b\\", "\\\"", "b\",\"x\":\""] {
        let definition = format!(r#"{{"name":{},"x":1}}"#, text(&object::to_json_string(own)));
        let public = public_name::public_name(&id("a"), own);
        assert_eq!(list(&definition), format!(r#"[{{"name":"{public}","x":1}}]"#));
    }
}
