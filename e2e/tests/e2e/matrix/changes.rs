//! Notifications outside of calls: changed lists and updated resources.

use serde_json::json;

use super::setup::{MATRIX, REFERENCE, Setup};

const WATCHED: &str = "test://watched-resource";

pub(crate) async fn lists(setup: &Setup) {
    let mut client = setup.connect(REFERENCE).await;
    let mut other = setup.connect(REFERENCE).await;
    client.listen(None).await;
    other.listen(None).await;
    for listed in [true, false] {
        client.text("test_trigger_tool_change", json!({})).await;
        for client in [&mut client, &mut other] {
            client.expect("notifications/tools/list_changed").await;
            let tools = client.service.list_all_tools().await.unwrap();
            assert_eq!(tools.iter().any(|tool| tool.name == "test_extra_tool"), listed);
        }
        client.text("test_trigger_prompt_change", json!({})).await;
        for client in [&mut client, &mut other] {
            client.expect("notifications/prompts/list_changed").await;
            let prompts = client.service.list_all_prompts().await.unwrap();
            assert_eq!(prompts.iter().any(|prompt| prompt.name == "test_extra_prompt"), listed);
        }
    }
    let mut client = setup.connect(MATRIX).await;
    client.listen(None).await;
    let before = client.service.list_all_resources().await.unwrap().len();
    client.text("add_resource", json!({})).await;
    client.expect("notifications/resources/list_changed").await;
    assert_eq!(client.service.list_all_resources().await.unwrap().len(), before + 1);
}

pub(crate) async fn resources(setup: &Setup) {
    let mut client = setup.connect(REFERENCE).await;
    let mut other = setup.connect(REFERENCE).await;
    client.listen(Some(WATCHED)).await;
    other.listen(None).await;
    other.text("test_trigger_resource_update", json!({})).await;
    assert_eq!(client.expect("notifications/resources/updated").await["uri"], WATCHED);
    // Another update would arrive before the next notification.
    other.text("test_trigger_tool_change", json!({})).await;
    client.expect("notifications/tools/list_changed").await;
    other.expect("notifications/tools/list_changed").await;
    client.unsubscribe(WATCHED).await;
    other.text("test_trigger_resource_update", json!({})).await;
    other.text("test_trigger_tool_change", json!({})).await;
    client.expect("notifications/tools/list_changed").await;
    other.expect("notifications/tools/list_changed").await;
}
