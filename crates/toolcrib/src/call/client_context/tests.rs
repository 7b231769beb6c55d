//! Tests of instance keys and projects.

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::model::selector::Selector;
use crate::protocol::era::capabilities::Client;

fn capabilities(text: &'static str) -> ClientCapabilities {
    ClientCapabilities::parse(&Bytes::from_static(text.as_bytes()))
}

fn call(caller: &str, number: u64, declared: &'static str, folder: Option<&str>) -> Call {
    let client =
        Client { key: number, capabilities: capabilities(declared), ..Client::without_capabilities() };
    let context = ClientContext::default().project(folder.and_then(|folder| Project::from_roots([folder])));
    Call::request("tools/call", Selector::Tool("x".into()), Object::default())
        .caller(Caller::new(caller))
        .client(client)
        .client_context(Arc::new(context))
}

fn key(sharing: Sharing, call: &Call) -> InstanceKey {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(call.instance_key(sharing))
}

proptest! {
    #[test]
    fn calls_share_an_instance_if_their_sharing_key_is_equal(
        first in (0..3_u8, 0..3_u64, 0..2_usize, 0..3_usize),
        second in (0..3_u8, 0..3_u64, 0..2_usize, 0..3_usize),
    ) {
        let make_call = |(caller, number, declared, folder): (u8, u64, usize, usize)| {
            let declared = ["{}", r#"{"sampling":{}}"#][declared];
            call(&caller.to_string(), number, declared, [None, Some("/a"), Some("/b")][folder])
        };
        let is_shared = |sharing| key(sharing, &make_call(first)) == key(sharing, &make_call(second));
        let is_same_client = (first.1, first.2) == (second.1, second.2);
        prop_assert!(is_shared(Sharing::Shared));
        prop_assert_eq!(is_shared(Sharing::PerCaller), first.0 == second.0);
        prop_assert_eq!(is_shared(Sharing::PerClient), is_same_client);
        let is_same_project = first.3 > 0 && (first.0, first.3) == (second.0, second.3);
        let has_no_project = first.3 == 0 && second.3 == 0;
        prop_assert_eq!(is_shared(Sharing::PerProject), is_same_project || (has_no_project && is_same_client));
    }

    #[test]
    fn project_ignores_order_and_duplicates_of_roots(mut roots in prop::collection::vec("/[a-c]{1,2}", 1..5)) {
        let project = Project::from_roots(&roots);
        roots.reverse();
        roots.extend(roots.clone());
        prop_assert_eq!(project, Project::from_roots(&roots));
    }
}

#[test]
fn folder_path_and_file_uri_are_the_same_project() {
    let folder = Project::from_roots(["/a b/c"]);
    for spelling in ["file:///a%20b/c", "file://localhost/a%20b/c/", "/a b/c/"] {
        assert_eq!(Project::from_roots([spelling]), folder, "{spelling}");
    }
    assert_eq!(Project::from_roots(["/"]).unwrap().folder(), Some(Path::new("/")));
    assert_eq!(Project::from_roots(["https://x/y"]).unwrap().folder(), None);
    assert_eq!(Project::from_roots(["/a", "/b"]).unwrap().folder(), None);
    assert_eq!(Project::from_roots([""]), None);
}

#[tokio::test]
async fn roots_of_a_client_choose_no_folder() {
    let (sink, mut updates) = tokio::sync::mpsc::channel(1);
    let context = Arc::new(ClientContext::default());
    let asking = call("a", 1, r#"{"roots":{}}"#, None).client_context(context).update_sink(Arc::new(sink));
    let asking = Call { client: Client { era: Era::Session, ..asking.client.clone() }, ..asking };
    let answer = async {
        let Some(CallUpdate::Request(request)) = updates.recv().await else { panic!("a request") };
        request.answer(ResponsePayload::Result(r#"{"roots":[{"uri":"file:///tmp"}]}"#.into()));
    };
    let (key, ()) = tokio::join!(asking.instance_key(Sharing::PerProject), answer);
    let InstanceKey::Project { caller, project } = key else { panic!("{key:?}") };
    assert_eq!((caller, project.folder()), (Caller::new("a"), None));
    assert_ne!(Some(project), Project::from_roots(["/tmp"]), "it does not share the instance started there");
}

#[test]
fn session_capabilities_win_over_those_of_the_call() {
    let context = Arc::new(ClientContext::default().capabilities(capabilities(r#"{"roots":{}}"#)));
    let with_roots = call("a", 1, r#"{"roots":{}}"#, None).client_context(context.clone());
    let without_roots = call("a", 1, "{}", None).client_context(context);
    assert_eq!(key(Sharing::PerClient, &with_roots), key(Sharing::PerClient, &without_roots));
}

#[test]
fn instance_is_visible_to_its_owners() {
    let context = ClientContext::default().project(Project::from_roots(["/a"]));
    let other = ClientContext::default();
    let me = Caller::new("me");
    let own = InstanceKey::Client { number: 7, capabilities: Bytes::from_static(b"{}") };
    assert!(other.can_see_instance(&own, 7, &me) && !other.can_see_instance(&own, 8, &me));
    let project = Project::from_roots(["/a"]).unwrap();
    let project = InstanceKey::Project { caller: me.clone(), project };
    assert!(context.can_see_instance(&project, 8, &me) && !other.can_see_instance(&project, 8, &me));
    assert!(!context.can_see_instance(&project, 8, &Caller::new("you")), "another caller in the same folder");
    assert!(other.can_see_instance(&InstanceKey::Shared, 8, &me));
    assert!(!other.can_see_instance(&InstanceKey::Caller(Caller::new("you")), 8, &me));
}
