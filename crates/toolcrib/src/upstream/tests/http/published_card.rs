//! The card that a remote server publishes.

use std::sync::OnceLock;

use super::*;
use crate::spec::ServerCard;
use crate::upstream::launch::launch;

/// Connects to a server and returns the place for its card.
async fn connect_with_card(server: &RemoteServer) -> (Connection, Arc<OnceLock<ServerCard>>) {
    let card = Arc::new(OnceLock::new());
    let mut context = launch_context(None);
    context.published_card = Some(card.clone());
    let plan = HandshakePlan::Prefer(Era::Session);
    let connection = launch(&http(&server.url), plan, &context, true).await.unwrap().connection;
    (connection, card)
}

async fn wait_for(condition: impl Fn() -> bool) {
    let waited = timeout(10 * SECOND, async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    });
    waited.await.expect("within the limit");
}

#[tokio::test]
async fn texts_of_the_published_card_are_kept() {
    let server = RemoteServer::start(|request| match (request.method(), request.path.as_str()) {
        ("GET", path) if path.ends_with("/server-card") => {
            let card = json!({"title": "Tracker", "description": "Issues", "tools": [{"name": "ghost"}]});
            Reply::text(200, "application/mcp-server-card+json", card.to_string())
        }
        _ => stateless(request),
    });
    let server = server.await;
    let (_connection, card) = connect_with_card(&server).await;
    wait_for(|| card.get().is_some()).await;
    assert_eq!(card.get(), Some(&ServerCard::new().title("Tracker").description("Issues")));
    assert_eq!(server.requests("GET").len(), 1);
}

#[tokio::test]
async fn server_without_a_card_is_asked_once_and_works() {
    let server = RemoteServer::start(stateless).await;
    let (connection, card) = connect_with_card(&server).await;
    wait_for(|| server.requests("GET").len() == 1).await;
    for _ in 0..3 {
        assert_eq!(text(call(&connection, "echo", json!({})).await), "echo");
    }
    assert_eq!((card.get(), server.requests("GET").len()), (None, 1));
}
