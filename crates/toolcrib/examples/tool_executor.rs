//! An agent's tool executor: its own tools and those of MCP servers in one namespace, with a fallback for unknown names.
//!
//! ```text
//! cargo run -p toolcrib --example tool_executor
//! ```
#![expect(clippy::print_stdout, reason = "an example shows what it got")]

use std::error::Error;
use std::time::Duration;

use serde_json::json;
use toolcrib::{Call, Caller, Crib, Outcome, ServerSpec, Toolbox};

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
            let text = format!("no tool `{}` for caller {}", call.name(), call.get_caller().as_str());
            Ok(Outcome::result(&json!({"content": [{"type": "text", "text": text}], "isError": true})))
        })
        .build()?;

    for tool in crib.list().await.tools() {
        println!("{}: {}", tool.public_name, tool.description().unwrap_or_default());
    }
    let calls =
        [("own__shout", json!({"text": "hello"})), ("shout", json!({})), ("weather", json!({"city": "Ulm"}))];
    for (tool, arguments) in calls {
        let call = Call::tool(tool)
            .arguments(&arguments)
            .caller(Caller::new("example"))
            .timeout(Duration::from_secs(10));
        match crib.call(call).await {
            Ok(outcome) if outcome.is_error() => println!("{tool} failed: {}", outcome.text()),
            Ok(outcome) => println!("{tool}: {}", outcome.text()),
            Err(error) => println!("{tool}: {error}\n  hint: {}", error.hint()),
        }
    }
    crib.shutdown(Duration::from_secs(1)).await;
    Ok(())
}
