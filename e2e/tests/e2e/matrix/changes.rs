//! What clients hear without a call of theirs: that lists are others now, and that a resource has other contents.

use serde_json::json;

use super::stage::{MATRIX, REFERENCE, Stage};

const WATCHED: &str = "test://watched-resource";

pub(crate) async fn lists(stage: &Stage) {
    let (mut friend, mut other) = (stage.friend(REFERENCE).await, stage.friend(REFERENCE).await);
    friend.listen(None).await;
    other.listen(None).await;
    for there in [true, false] {
        friend.text("test_trigger_tool_change", json!({})).await;
        for client in [&mut friend, &mut other] {
            client.hears("notifications/tools/list_changed").await;
            let tools = client.service.list_all_tools().await.unwrap();
            assert_eq!(tools.iter().any(|tool| tool.name == "test_extra_tool"), there);
        }
        friend.text("test_trigger_prompt_change", json!({})).await;
        for client in [&mut friend, &mut other] {
            client.hears("notifications/prompts/list_changed").await;
            let prompts = client.service.list_all_prompts().await.unwrap();
            assert_eq!(prompts.iter().any(|prompt| prompt.name == "test_extra_prompt"), there);
        }
    }
    let mut friend = stage.friend(MATRIX).await;
    friend.listen(None).await;
    let before = friend.service.list_all_resources().await.unwrap().len();
    friend.text("add_resource", json!({})).await;
    friend.hears("notifications/resources/list_changed").await;
    assert_eq!(friend.service.list_all_resources().await.unwrap().len(), before + 1);
}

pub(crate) async fn resources(stage: &Stage) {
    let (mut friend, mut other) = (stage.friend(REFERENCE).await, stage.friend(REFERENCE).await);
    friend.listen(Some(WATCHED)).await;
    other.listen(None).await;
    other.text("test_trigger_resource_update", json!({})).await;
    assert_eq!(friend.hears("notifications/resources/updated").await["uri"], WATCHED);
    // What comes next would come after it.
    other.text("test_trigger_tool_change", json!({})).await;
    friend.hears("notifications/tools/list_changed").await;
    other.hears("notifications/tools/list_changed").await;
    friend.forget(WATCHED).await;
    other.text("test_trigger_resource_update", json!({})).await;
    other.text("test_trigger_tool_change", json!({})).await;
    friend.hears("notifications/tools/list_changed").await;
    other.hears("notifications/tools/list_changed").await;
}
