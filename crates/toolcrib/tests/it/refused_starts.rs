//! Calls that name a server and a tool are checked before the server is started, as far as the name tells.

use std::time::Duration;

use tokio::time::Instant;
use toolcrib::access::policy::{Policy, Rules};
use toolcrib::{
    Call, Caller, Crib, CribBuilder, Error, ErrorKind, FirstListingSettings, GuardVerdict, Selector, Sharing,
};

use crate::fake::{FakeServer, FakeStart};
use crate::support::{SECOND, crib, id, on, settle, spec, status};

fn denying(rule: &str) -> Policy {
    Policy::for_everyone(Rules::default().denying([rule.parse().unwrap()]))
}

fn allowing(rule: &str) -> Policy {
    Policy::for_everyone(Rules::default().allowing([rule.parse().unwrap()]))
}

/// Calls a tool in every way that names its server, each on a crib of its own, and returns the errors.
async fn refusals(fake: &FakeServer, tool: &str, build: impl Fn(CribBuilder) -> CribBuilder) -> Vec<Error> {
    let crib = || build(Crib::builder().server(spec("a", fake))).build().unwrap();
    let public = format!("a__{tool}");
    let local = Caller::local();
    let selector = Selector::OnServer(id("a"), tool.to_owned());
    // The command line looks for the tool first.
    let by_command_line = async |selector: &Selector| {
        let crib = crib();
        let _ = crib.find_at_first_failure(&local, selector).await;
        let call = match selector {
            Selector::OnServer(server, tool) => Call::tool_on(server.clone(), tool),
            named => Call::tool(named.name()),
        };
        crib.call(call).await.unwrap_err()
    };
    vec![
        crib().call(on("a", tool)).await.unwrap_err(),
        crib().call(Call::tool(&public)).await.unwrap_err(),
        by_command_line(&selector).await,
        by_command_line(&Selector::Tool(public)).await,
    ]
}

#[tokio::test(start_paused = true)]
async fn denied_tool_does_not_start_its_server() {
    let fake = FakeServer::with_tools(&["main", "side"]);
    let guard = |_: &Caller, _: &_, name: Option<&str>| match name {
        Some("side") => GuardVerdict::Deny("no".to_owned()),
        _ => GuardVerdict::Allow,
    };
    let by_rule = refusals(&fake, "side", |builder| builder.policy(denying("a.side"))).await;
    let by_list = refusals(&fake, "side", |builder| builder.policy(allowing("a.main"))).await;
    let by_guard = refusals(&fake, "side", |builder| builder.guard(guard)).await;
    for refused in by_rule.iter().chain(&by_list).chain(&by_guard) {
        assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
        assert!(refused.to_string().contains("side"), "{refused}");
    }
    assert_eq!(fake.starts(), 0);
}

#[tokio::test(start_paused = true)]
async fn renamed_tool_is_denied_by_its_own_name() {
    let fake = FakeServer::with_tools(&["main", "side"]);
    let mut renamed = spec("a", &fake);
    renamed.tools.rename.insert("side".to_owned(), "front".to_owned());
    let crib = Crib::builder().server(renamed).policy(denying("a.side")).build().unwrap();
    let error = crib.call(Call::tool("a__front")).await.unwrap_err();
    assert_eq!((error.kind(), fake.starts()), (ErrorKind::Denied, 0), "{error}");
}

#[tokio::test(start_paused = true)]
async fn name_that_only_the_listing_explains_is_allowed_by_it() {
    let fake = FakeServer::with_tools(&["odd.name"]);
    let crib = Crib::builder().server(spec("a", &fake)).policy(allowing("a.odd*")).build().unwrap();
    let public = toolcrib::catalog::public_name::public_name(&id("a"), "odd.name");
    crib.call(Call::tool(public)).await.unwrap();
    assert_eq!(fake.called_tools(), ["odd.name"]);
}

#[tokio::test(start_paused = true)]
async fn unasked_discovery_starts_what_needs_no_caller_and_is_not_denied() {
    let names = ["known", "own", "denied", "partly"];
    let fakes: Vec<FakeServer> = names.iter().map(|_| FakeServer::with_tools(&["main", "side"])).collect();
    let mut servers: Vec<_> = names.iter().zip(&fakes).map(|(name, fake)| spec(name, fake)).collect();
    servers[1].sharing = Sharing::PerCaller;
    let rules = ["denied.*", "partly.side"].map(|rule| rule.parse().unwrap());
    let crib = servers.into_iter().fold(Crib::builder(), CribBuilder::server);
    let crib = crib.policy(Policy::for_everyone(Rules::default().denying(rules))).build().unwrap();
    crib.list_server(&id("known")).await.unwrap();
    crib.begin_discovery();
    settle().await;
    let starts: Vec<usize> = fakes.iter().map(FakeServer::starts).collect();
    assert_eq!(starts, [1, 0, 0, 1]);
    let before = Instant::now();
    assert_eq!(crib.list().await.tools().len(), 5, "`own` is started for its caller");
    assert_eq!(before.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn unasked_discovery_is_off_if_no_list_waits_for_it() {
    let fake = FakeServer::with_tools(&["main"]);
    let settings = FirstListingSettings::new(Duration::ZERO);
    let crib = Crib::builder().server(spec("a", &fake)).first_listing(settings).build().unwrap();
    crib.begin_discovery();
    settle().await;
    assert_eq!(fake.starts(), 0);
    assert!(crib.list().await.tools().is_empty(), "a list does not wait, and asks for the listing");
    settle().await;
    assert_eq!(crib.list().await.tools().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn server_that_failed_is_awaited_again_after_a_restart_or_a_reload() {
    let hung = FakeServer::new().default_start(FakeStart::Silent);
    let crib = crib(&[("hung", &hung)]);
    let waited = async || {
        let before = Instant::now();
        crib.list().await;
        before.elapsed()
    };
    assert_eq!(waited().await, 8 * SECOND);
    assert_eq!(waited().await, Duration::ZERO);
    crib.restart(&id("hung")).await.unwrap_err();
    assert_eq!(status(&crib, "hung").tools, None);
    let settings = toolcrib::Settings::new(crib.roster());
    crib.apply(settings).await.unwrap();
    assert_eq!(waited().await, 8 * SECOND, "what was wrong may have been corrected");
    assert_eq!(waited().await, Duration::ZERO);
}
