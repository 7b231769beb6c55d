//! Questions of a server: wanted as long as a call is under way that they can belong to, and until it takes them back.

use bytes::Bytes;
use tokio::sync::mpsc;

use super::*;
use crate::told::{Ask, Told};
use crate::wire::dialect::party::{Abilities, Client};

const QUESTION: &str = r#"{"jsonrpc":"2.0","id":"q","method":"roots/list"}"#;

/// A call of one client that has roots, and what it hears.
fn begin(
    connection: &Arc<Connection>,
    calls: &mut JoinSet<Result<Outcome, Error>>,
    tool: &'static str,
    lines: &[&str],
) -> mpsc::Receiver<Told> {
    let (sink, told) = mpsc::channel(8);
    let abilities = Abilities::read(&Bytes::from_static(br#"{"roots":{}}"#));
    let client = Client { key: 1, abilities, ..Client::silent() };
    let mut call = Call::tool(tool).arguments(&json!({ "lines": lines })).tell(sink).of(client);
    let connection = connection.clone();
    calls.spawn(async move { connection.call(&mut call, tool, Instant::now()).await });
    told
}

async fn asked(told: &mut mpsc::Receiver<Told>) -> Ask {
    let Some(Told::Asked(ask)) = told.recv().await else { panic!("nothing was asked") };
    ask
}

#[tokio::test(start_paused = true)]
async fn a_question_outlives_the_newest_call_if_it_can_belong_to_an_older_one() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    let _older = begin(&connection, &mut calls, "hold", &[]);
    breath().await;
    let mut newer =
        begin(&connection, &mut calls, "say", &[QUESTION, r#"{"jsonrpc":"2.0","id":$ID,"result":{}}"#]);
    let ask = asked(&mut newer).await;
    calls.join_next().await.unwrap().unwrap().unwrap();
    let _newest = begin(&connection, &mut calls, "hang", &[]);
    breath().await;
    assert!(!ask.is_over(), "the older call may wait for it");
    fake.open(true);
    calls.join_next().await.unwrap().unwrap().unwrap();
    assert!(ask.is_over(), "a call that began later does not");
    drop(ask);
    breath().await;
    assert!(fake.replies()[0]["error"].is_object(), "every question has its answer");
}

#[tokio::test(start_paused = true)]
async fn a_question_that_its_server_takes_back_is_over_and_gets_no_answer() {
    let fake = Fake::new();
    let connection = connected(&spec(&fake)).await;
    let mut calls = JoinSet::new();
    let never_mind = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"q"}}"#;
    let mut told = begin(&connection, &mut calls, "say", &[QUESTION, never_mind]);
    let ask = asked(&mut told).await;
    assert!(matches!(told.recv().await, Some(Told::Unasked)));
    assert!(ask.is_over());
    ask.answer(Answer::Result(Bytes::from_static(b"{}")));
    breath().await;
    assert!(fake.replies().is_empty());
}
