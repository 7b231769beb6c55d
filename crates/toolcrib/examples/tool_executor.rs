//! An agent's tool executor: its own tools and those of MCP servers in one namespace, with a fallback for unknown names.
//!
//! ```text
//! cargo run -p toolcrib --example tool_executor
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use toolcrib::{Caller, Crib, Outcome, SchemaFormat, ServerSpec, ToolCall, ToolExecutor, Toolbox};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let text = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    let own = Toolbox::new().tool("shout", "Returns the text in upper case", &text, |arguments| async move {
        match arguments["text"].as_str() {
            Some(text) => Ok(text.to_uppercase()),
            None => Err("`text` is missing".to_owned()),
        }
    });
    let crib = Crib::builder()
        .server(ServerSpec::in_process("own".parse()?, own))
        // .server(ServerSpec::command("git".parse()?, CommandSpec::new("mcp-server-git")))
        .fallback(|call| async move {
            let text = format!("no tool `{}` for `{}`, call {}", call.name, call.caller.as_str(), call.id);
            Ok(Outcome::result(&json!({"content": [{"type": "text", "text": text}], "isError": true})))
        })
        .build()?;

    let caller = Caller::new("example");
    for definition in crib.schemas(SchemaFormat::Anthropic, &caller).await {
        println!("{definition}");
    }
    let executor: &dyn ToolExecutor = &crib;
    let calls =
        [("own__shout", json!({"text": "hello"})), ("shout", json!({})), ("weather", json!({"city": "Ulm"}))];
    for (number, (tool, arguments)) in calls.into_iter().enumerate() {
        let call = ToolCall::new(tool, arguments).id(format!("call-{number}")).caller(caller.clone());
        let deadline = Instant::now() + Duration::from_secs(10);
        match executor.execute(call.deadline(deadline)).await?.into_result() {
            Ok(outcome) => println!("{tool}: {}", outcome.text()),
            Err(failure) => println!("{tool} failed: {failure}"),
        }
    }
    crib.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
