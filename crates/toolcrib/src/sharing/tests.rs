//! Who shares an instance with whom, for all there is to say about a client.

use proptest::prelude::*;

use super::*;
use crate::call::Wanted;
use crate::wire::dialect::party::Client;

fn abilities(text: &'static str) -> Abilities {
    Abilities::read(&Bytes::from_static(text.as_bytes()))
}

fn call(caller: &str, number: u64, declared: &'static str, folder: Option<&str>) -> Call {
    let client = Client { key: number, abilities: abilities(declared), ..Client::silent() };
    let guest = Guest::default().working_in(folder.and_then(|folder| Project::of([folder])));
    Call::request("tools/call", Wanted::Named("x".into()), Object::default())
        .by(Caller::named(caller))
        .of(client)
        .from_guest(Arc::new(guest))
}

fn key(sharing: Sharing, call: &Call) -> SharingKey {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(SharingKey::of(sharing, call))
}

proptest! {
    /// Two calls have one key exactly if everything is the same that the key is made of.
    #[test]
    fn two_calls_share_an_instance_exactly_if_what_counts_is_the_same(
        first in (0..3_u8, 0..3_u64, 0..2_usize, 0..3_usize),
        second in (0..3_u8, 0..3_u64, 0..2_usize, 0..3_usize),
    ) {
        let made = |(caller, number, declared, folder): (u8, u64, usize, usize)| {
            let declared = ["{}", r#"{"sampling":{}}"#][declared];
            call(&caller.to_string(), number, declared, [None, Some("/a"), Some("/b")][folder])
        };
        let same = |sharing| key(sharing, &made(first)) == key(sharing, &made(second));
        let client = (first.1, first.2) == (second.1, second.2);
        prop_assert!(same(Sharing::Shared));
        prop_assert_eq!(same(Sharing::PerCaller), first.0 == second.0);
        prop_assert_eq!(same(Sharing::PerClient), client);
        prop_assert_eq!(same(Sharing::PerProject), first.3 == second.3 && (first.3 > 0 || client));
    }

    /// A project is the set of its places.
    #[test]
    fn a_project_does_not_depend_on_order_or_repetition(mut places in prop::collection::vec("/[a-c]{1,2}", 1..5)) {
        let project = Project::of(&places);
        places.reverse();
        places.extend(places.clone());
        prop_assert_eq!(project, Project::of(&places));
    }
}

#[test]
fn a_folder_is_the_same_however_it_is_written() {
    let folder = Project::of(["/a b/c"]);
    for spelling in ["file:///a%20b/c", "file://localhost/a%20b/c/", "/a b/c/"] {
        assert_eq!(Project::of([spelling]), folder, "{spelling}");
    }
    assert_eq!(Project::of(["/"]).unwrap().folder(), Some(Path::new("/")));
    assert_eq!(Project::of(["https://x/y"]).unwrap().folder(), None);
    assert_eq!(Project::of(["/a", "/b"]).unwrap().folder(), None);
    assert_eq!(Project::of([""]), None);
}

#[test]
fn what_a_session_declared_counts_also_for_a_call_that_nobody_can_be_asked_in() {
    let guest = Arc::new(Guest::default().declaring(abilities(r#"{"roots":{}}"#)));
    let loud = call("a", 1, r#"{"roots":{}}"#, None).from_guest(guest.clone());
    let deaf = call("a", 1, "{}", None).from_guest(guest);
    assert_eq!(key(Sharing::PerClient, &loud), key(Sharing::PerClient, &deaf));
}

#[test]
fn what_an_instance_says_is_for_those_whose_it_is() {
    let (guest, other) = (Guest::default().working_in(Project::of(["/a"])), Guest::default());
    let me = Caller::named("me");
    let own = SharingKey::Client { number: 7, declared: Bytes::from_static(b"{}") };
    assert!(own.concerns(7, &me, &other) && !own.concerns(8, &me, &other));
    let project = SharingKey::Project(Project::of(["/a"]).unwrap());
    assert!(project.concerns(8, &me, &guest) && !project.concerns(8, &me, &other));
    assert!(SharingKey::Shared.concerns(8, &me, &other));
    assert!(!SharingKey::Caller(Caller::named("you")).concerns(8, &me, &other));
}
