//! What a catalog shows, and how things are found in it.

use super::*;
use crate::call::Wanted;
use crate::connection::listing::Remarks;
use crate::pins::Mark;

/// Lists of one server: each kind with the names in it.
type Lists<'a> = &'a [(Kind, &'a [&'a str])];

fn listing(lists: Lists<'_>) -> Arc<Listing> {
    let list = |wanted: Kind| {
        let names = lists.iter().filter(|(kind, _)| *kind == wanted).flat_map(|(_, names)| names.iter());
        names
            .map(|name| {
                let definition = format!(r#"{{"{}":"{name}","x":1.0}}"#, wanted.key());
                Listed::read(wanted, definition.into()).unwrap()
            })
            .collect()
    };
    let mut declared: Vec<String> =
        lists.iter().map(|(kind, _)| format!(r#""{}":{{}}"#, kind.capability())).collect();
    declared.dedup();
    Arc::new(Listing {
        tools: list(Kind::Tools),
        prompts: list(Kind::Prompts),
        resources: list(Kind::Resources),
        templates: list(Kind::Templates),
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

fn found(catalog: &Catalog, wanted: &Wanted) -> Result<String, String> {
    let found = catalog.find(wanted);
    found.map(|target| format!("{} {}", target.server, target.name)).map_err(|error| error.to_string())
}

fn tool(catalog: &Catalog, name: &str) -> Result<String, String> {
    found(catalog, &Wanted::Named(name.to_owned()))
}

fn resource(catalog: &Catalog, uri: &str) -> Result<String, String> {
    found(catalog, &Wanted::Resource(uri.to_owned()))
}

fn text(bytes: &Bytes) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn tools_and_prompts_are_found_by_public_name_and_by_bare_name_if_unique() {
    let lists: [Lists<'_>; 2] = [
        &[(Kind::Tools, &["log", "push"]), (Kind::Prompts, &["ask"])],
        &[(Kind::Tools, &["log"]), (Kind::Prompts, &["ask", "log"])],
    ];
    let catalog = catalog(&[("b", lists[0]), ("a", lists[1])]);
    assert_eq!(tool(&catalog, "b__log").unwrap(), "b log");
    assert_eq!(tool(&catalog, "push").unwrap(), "b push");
    assert_eq!(tool(&catalog, "log").unwrap_err(), "several servers have a tool `log`: `a__log`, `b__log`");
    assert_eq!(tool(&catalog, "nope").unwrap_err(), "Unknown tool: nope");
    assert_eq!(tool(&catalog, "ask").unwrap_err(), "Unknown tool: ask");
    let prompt = |name: &str| found(&catalog, &Wanted::Prompt(name.to_owned()));
    assert_eq!(prompt("b__ask").unwrap(), "b ask");
    assert_eq!(prompt("log").unwrap(), "a log");
    assert_eq!(prompt("ask").unwrap_err(), "several servers have a prompt `ask`: `a__ask`, `b__ask`");
    assert_eq!(prompt("push").unwrap_err(), "Unknown prompt: push");
}

#[test]
fn order_is_servers_by_name_then_their_own() {
    let catalog = catalog(&[
        ("b", &[(Kind::Tools, &["z", "a", "z"]), (Kind::Prompts, &["p"])]),
        ("a", &[(Kind::Tools, &["m"])]),
    ]);
    let names: Vec<&str> = catalog.tools().iter().map(|tool| &*tool.public_name).collect();
    assert_eq!(names, ["a__m", "b__z", "b__a"]);
    assert_eq!(
        text(&catalog.rendered(Kind::Tools, None)),
        r#"[{"name":"a__m","x":1.0},{"name":"b__z","x":1.0},{"name":"b__a","x":1.0}]"#
    );
    assert_eq!(
        text(&catalog.rendered(Kind::Tools, Some(&id("b")))),
        r#"[{"name":"z","x":1.0},{"name":"a","x":1.0},{"name":"z","x":1.0}]"#
    );
    assert_eq!(text(&catalog.rendered(Kind::Prompts, None)), r#"[{"name":"b__p","x":1.0}]"#);
    assert_eq!(text(&catalog.rendered(Kind::Resources, None)), "[]");
    assert_eq!(text(&catalog.rendered(Kind::Tools, Some(&id("c")))), "[]");
}

#[test]
fn a_near_miss_on_one_server_is_looked_for_on_that_server_only() {
    let catalog =
        catalog(&[("git", &[(Kind::Tools, &["git_log"])]), ("time", &[(Kind::Tools, &["git_lag"])])]);
    let near = |tool: &str| catalog.near(&Wanted::On("git".parse().unwrap(), tool.into()));
    assert_eq!(near("git_lgo"), Some("git_log"));
    assert_eq!((near("git_log"), near("push")), (None, None));
    assert_eq!(catalog.near(&Wanted::Named("git_lgo".into())), None);
}

#[test]
fn a_near_miss_is_named() {
    let catalog = catalog(&[("git", &[(Kind::Tools, &["git_log"]), (Kind::Prompts, &["commit"])])]);
    for (wanted, advice) in [
        (Wanted::Named("git__git_lgo".into()), "did you mean `git__git_log`?"),
        (Wanted::Prompt("comit".into()), "did you mean `commit`?"),
    ] {
        let error = catalog.advise(catalog.find(&wanted).unwrap_err(), &wanted);
        assert_eq!(error.advice(), advice);
    }
}

#[test]
fn a_resource_that_two_servers_have_is_listed_with_its_server() {
    let catalog = catalog(&[
        ("a", &[(Kind::Resources, &["x://1", "x://2"]), (Kind::Templates, &["x://{id}", "y://{id}"])]),
        ("b", &[(Kind::Resources, &["x://2", "x://2", "toolcrib://a/z"]), (Kind::Templates, &["y://{id}"])]),
    ]);
    assert_eq!(
        text(&catalog.rendered(Kind::Resources, None)),
        r#"[{"uri":"x://1","x":1.0},{"uri":"toolcrib://a/x%3A%2F%2F2","x":1.0},{"uri":"toolcrib://b/x%3A%2F%2F2","x":1.0},{"uri":"toolcrib://b/toolcrib%3A%2F%2Fa%2Fz","x":1.0}]"#
    );
    assert_eq!(
        text(&catalog.rendered(Kind::Templates, None)),
        r#"[{"uriTemplate":"x://{id}","x":1.0},{"uriTemplate":"toolcrib://a/y://{id}","x":1.0},{"uriTemplate":"toolcrib://b/y://{id}","x":1.0}]"#
    );
    assert_eq!(
        text(&catalog.rendered(Kind::Resources, Some(&id("b")))),
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
        // There is no server `c`, and only `b` lists anything of that scheme.
        ("toolcrib://c/z", "b toolcrib://c/z"),
    ] {
        assert_eq!(resource(&catalog, uri).unwrap(), target, "{uri}");
    }
    for (uri, why) in [
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
        assert_eq!(resource(&catalog, uri).unwrap_err(), why, "{uri}");
    }
}

#[test]
fn an_address_that_nobody_lists_goes_to_the_one_that_may_know_it() {
    let alone = catalog(&[("a", &[(Kind::Resources, &[])]), ("b", &[(Kind::Tools, &["t"])])]);
    assert_eq!(resource(&alone, "x://9").unwrap(), "a x://9");
    let kin = catalog(&[
        ("a", &[(Kind::Resources, &["x://1", "y://1"])]),
        ("b", &[(Kind::Resources, &["y://2"]), (Kind::Templates, &["z://{id}/end"])]),
    ]);
    assert_eq!(resource(&kin, "x://9").unwrap(), "a x://9");
    assert_eq!(resource(&kin, "z://9").unwrap(), "b z://9");
    assert_eq!(resource(&kin, "y://9").unwrap_err(), "Resource not found: y://9");
    assert!(kin.find_listed(&Wanted::Resource("x://9".into())).is_err());
    assert_eq!(resource(&catalog(&[]), "x://9").unwrap_err(), "Resource not found: x://9");
}

#[test]
fn what_is_handed_out_leads_back() {
    let catalog = catalog(&[
        ("a", &[(Kind::Resources, &["x://1", "s://1"]), (Kind::Templates, &["t://{id}"])]),
        ("b", &[(Kind::Resources, &["y://1", "s://1"]), (Kind::Templates, &["t://{id}"])]),
        ("c", &[(Kind::Tools, &["t"])]),
    ]);
    for server in ["a", "b"].map(id) {
        for own in ["x://1", "s://1", "y://1", "t://1", "y://9", "q://1", "toolcrib://a/x", "toolcrib://q/x"]
        {
            let public = catalog.public_uri(&server, own);
            assert_eq!(resource(&catalog, &public).unwrap(), format!("{server} {own}"), "{public}");
        }
    }
    assert_eq!(catalog.public_uri(&id("a"), "x://1"), "x://1");
    assert_eq!(catalog.public_uri(&id("b"), "x://1"), "toolcrib://b/x%3A%2F%2F1");
    assert_eq!(catalog.public_uri(&id("c"), "x://1"), "x://1");
}

#[test]
fn a_tools_page_is_an_address_too() {
    let pages = |uri: &str| {
        let definition = format!(
            r#"{{"name":"t","_meta":{{"ui":{{"resourceUri":"{uri}","n":1.0}},"ui/resourceUri":"{uri}"}}}}"#
        );
        let mut listing = Listing::clone(&listing(&[(Kind::Resources, &[uri])]));
        listing.tools.push(Listed::read(Kind::Tools, definition.into()).unwrap());
        Some(Arc::new(listing))
    };
    let same = [(id("a"), pages("ui://x")), (id("b"), pages("ui://x"))];
    let shown = Catalog::build(1, &same.into()).rendered(Kind::Tools, None);
    assert!(
        text(&shown).starts_with(
            r#"[{"name":"a__t","_meta":{"ui":{"resourceUri":"toolcrib://a/ui%3A%2F%2Fx","n":1.0},"ui/resourceUri":"toolcrib://a/ui%3A%2F%2Fx"}},"#
        ),
        "{shown:?}"
    );
    let apart = [(id("a"), pages("ui://x")), (id("b"), pages("ui://y"))];
    let shown = Catalog::build(1, &apart.into()).rendered(Kind::Tools, None);
    assert!(!text(&shown).contains("toolcrib:"), "{shown:?}");
}

#[test]
fn a_task_is_known_by_its_server_and_any_id() {
    let catalog = catalog(&[("a-b", &[]), ("a", &[])]);
    for own in ["1", "", "__x", "_", "a.b/c d", "x__y"] {
        let public = Catalog::public_task(&id("a-b"), own);
        assert_eq!(found(&catalog, &Wanted::Task(public)).unwrap(), format!("a-b {own}"));
    }
    for unknown in ["1", "c__1", "A__1", ""] {
        let error = found(&catalog, &Wanted::Task(unknown.into())).unwrap_err();
        assert_eq!(error, format!("Task not found: {unknown}"));
    }
}

#[test]
fn a_long_list_comes_in_pages_and_a_short_one_as_it_was_written() {
    let names: Vec<String> = (0..PAGE).map(|number| format!("t{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let whole = catalog(&[("a", &[(Kind::Tools, &names)])]);
    let page = whole.page(Kind::Tools, None, Era::Session, None).unwrap();
    assert_eq!((page.next, page.items.as_ptr()), (None, whole.rendered(Kind::Tools, None).as_ptr()));
    let more = catalog(&[("a", &[(Kind::Tools, &names)]), ("b", &[(Kind::Tools, &["last"])])]);
    let next = more.page(Kind::Tools, None, Era::Session, None).unwrap().next.unwrap();
    let last = Page { items: r#"[{"name":"b__last","x":1.0}]"#.into(), next: None };
    assert_eq!(more.page(Kind::Tools, None, Era::Session, Some(&next)).unwrap(), last);
    for (kind, of) in [(Kind::Prompts, None), (Kind::Tools, Some(id("a")))] {
        let refused = more.page(kind, of.as_ref(), Era::Session, Some(&next)).unwrap_err();
        assert_eq!(refused.to_string(), "this cursor was not given out here");
        assert_eq!(refused.kind().facts().code, -32602);
    }
    assert!(more.page(Kind::Tools, Some(&id("nobody")), Era::Session, None).is_err());
}

#[test]
fn a_server_is_shown_as_it_declared_itself_once_it_was_seen() {
    let mut seen = Listing::clone(&listing(&[(Kind::Prompts, &[])]));
    seen.instructions = Some("be kind".into());
    let listings = [(id("a"), Some(Arc::new(seen))), (id("b"), None)];
    let catalog = Catalog::build(1, &listings.into());
    assert_eq!(catalog.servers().map(ServerId::as_str).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(catalog.strangers().map(ServerId::as_str).collect::<Vec<_>>(), ["b"]);
    assert_eq!(catalog.capabilities_of(&id("a")).map(text), Some(r#"{"prompts":{}}"#));
    assert_eq!(catalog.capabilities_of(&id("b")), None);
    assert_eq!(
        (catalog.instructions_of(&id("a")), catalog.instructions_of(&id("b"))),
        (Some("be kind"), None)
    );
}

#[test]
fn each_era_sees_of_a_tool_what_that_era_has() {
    let written = [
        r#"{"name":"plain","outputSchema":{"type":"object"},"description":"execution of an outputSchema"}"#,
        r#"{"name":"later","execution":{"taskSupport":"optional"},"x":1.0}"#,
        r#"{"name":"words","outputSchema":{"type":"string"}}"#,
        r#"{"name":"any","outputSchema":{"anyOf":[{"type":"object"}]}}"#,
    ];
    let shown = |written: &[&'static str], era| {
        let tools = written
            .iter()
            .map(|tool| Listed::read(Kind::Tools, Bytes::from_static(tool.as_bytes())).unwrap());
        let listing = Arc::new(Listing { tools: tools.collect(), ..Listing::default() });
        let catalog = Catalog::build(1, &[(id("a"), Some(listing))].into());
        let own = catalog.page(Kind::Tools, Some(&id("a")), era, None).unwrap().items;
        let all = catalog.page(Kind::Tools, None, era, None).unwrap().items;
        assert_eq!(text(&all).replace("a__", ""), text(&own));
        let same = own.as_ptr() == catalog.rendered(Kind::Tools, Some(&id("a"))).as_ptr();
        (text(&own).to_owned(), same)
    };
    let list = |tools: &[&str]| format!("[{}]", tools.join(","));
    let [plain, later, words, any] = written;
    assert_eq!(
        shown(&written, Era::Session),
        (list(&[plain, later, r#"{"name":"words"}"#, r#"{"name":"any"}"#]), false)
    );
    assert_eq!(
        shown(&written, Era::Stateless),
        (list(&[plain, r#"{"name":"later","x":1.0}"#, words, any]), false)
    );
    assert_eq!(shown(&[plain, later], Era::Session), (list(&[plain, later]), true), "the very same bytes");
    assert_eq!(shown(&[plain, words], Era::Stateless), (list(&[plain, words]), true), "the very same bytes");
}

#[test]
fn a_tool_has_the_name_that_it_was_given_here_and_its_server_keeps_its_own() {
    let names = [("log", "history"), ("push", "log")].map(|(own, new)| (own.to_owned(), new.to_owned()));
    let remarks = Arc::new(Remarks { names: names.into(), marks: vec![("log".into(), Mark::Changed)] });
    let git = listing(&[(Kind::Tools, &["log", "push", "history", "tag"]), (Kind::Prompts, &["log"])]);
    let git = Arc::new(Listing { remarks, ..Listing::clone(&git) });
    let other = listing(&[(Kind::Tools, &["history"])]);
    let whole = Catalog::build(1, &[(id("git"), Some(git)), (id("other"), Some(other))].into());
    for catalog in [&whole, &whole.narrowed(|_| true, |_, _| true)] {
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
        assert_eq!(found_on(catalog, "git", "push"), "git push");
        let own = catalog.rendered(Kind::Tools, Some(&id("git")));
        assert!(text(&own).starts_with(r#"[{"name":"log","x":1.0},{"name":"push""#), "{}", text(&own));
        assert_eq!(catalog.prompts()[0].public_name, "git__log".into());
        let marks: Vec<Option<Mark>> = catalog.tools().iter().map(|tool| tool.mark).collect();
        assert_eq!(marks, [Some(Mark::Changed), None, None, None, None]);
    }
}

fn found_on(catalog: &Catalog, server: &str, own: &str) -> String {
    found(catalog, &Wanted::On(id(server), own.to_owned())).unwrap()
}
