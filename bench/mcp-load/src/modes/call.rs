//! `call`: one tool, many times.

use anyhow::Result;
use serde_json::{Value, json};

use super::merge;
use crate::cli::CallOptions;
use crate::client::{Opener, tool_name};
use crate::drive::measure;
use crate::work::Route;

pub(crate) async fn run(options: CallOptions) -> Result<Value> {
    let load = options.load.on_one_server();
    let opener = Opener::new(&options.connect, &options.command).await?;
    let mut first = opener.open().await?;
    let tool = tool_name(&mut first, &load, &load.own_tool_name()).await?;
    let route = Route::new(tool.clone(), load.call_template.clone());
    let mut value = measure(&opener, &options.connect, &load, vec![route], first).await?;
    merge(&mut value, json!({"mode": "call", "tool": tool}));
    Ok(value)
}
