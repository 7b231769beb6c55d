//! Search for tools: what a caller may call, without starting a server.

use serde_json::json;
use toolcrib::access::policy::{Policy, Rules};
use toolcrib::{Caller, Crib, SearchField, ServerCard, ServerSpec, Toolbox};

use crate::support::id;

fn toolbox(tools: &[(&str, &str)]) -> Toolbox {
    tools.iter().fold(Toolbox::new(), |toolbox, (name, description)| {
        toolbox.tool(name, description, &json!({"type": "object"}), |_| async { Ok(String::new()) })
    })
}

async fn found(crib: &Crib, caller: &Caller, query: &str) -> Vec<String> {
    let hits = crib.search_for(caller, query, 10).await;
    hits.iter().map(|hit| hit.tool.public_name.to_string()).collect()
}

#[tokio::test(start_paused = true)]
async fn search_finds_what_a_caller_may_call_and_follows_changes() {
    let files = toolbox(&[("read_file", "Reads a file."), ("delete_file", "Removes a file.")]);
    let card = ServerCard::new().tag("disk");
    let crib = Crib::builder().server(ServerSpec::in_process(id("files"), files).card(card)).build().unwrap();
    let local = Caller::local();
    assert!(found(&crib, &local, "file").await.is_empty(), "a search starts nothing");
    crib.list().await;
    assert_eq!(found(&crib, &local, "remove a file").await, ["files__delete_file", "files__read_file"]);
    assert_eq!(found(&crib, &local, "disk").await.len(), 2, "by a tag of the card");
    let hits = crib.search("reading", 1).await;
    assert_eq!(hits[0].fields, [SearchField::Name, SearchField::Summary]);
    assert!(hits[0].score > 0.0);

    let deny = Rules::default().denying(["files.delete_file".parse().unwrap()]);
    crib.set_policy(Policy::for_everyone(deny));
    assert_eq!(found(&crib, &local, "remove a file").await, ["files__read_file"]);

    let mail = ServerSpec::in_process(id("mail"), toolbox(&[("send", "Sends a file to a person.")]));
    crib.add(mail).await.unwrap();
    crib.list().await;
    assert_eq!(found(&crib, &local, "send").await, ["mail__send"]);
    let on_server = crib.search_server_for(&local, &id("mail"), "file", 10).await;
    assert_eq!(on_server.len(), 1);
}
