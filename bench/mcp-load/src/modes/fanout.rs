//! `fanout`: calls that go to every server behind a gateway in turn.
//!
//! Each server answers with its id, so a call that a gateway sends to the wrong server is detected.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::merge;
use crate::cli::{FanoutOptions, Kind, Load};
use crate::client::{Channel, Opener, resolve_all};
use crate::drive::measure;
use crate::rpc;
use crate::work::Route;

pub(crate) async fn run(options: FanoutOptions) -> Result<Value> {
    let load = Load { kind: Kind::Whoami, ..options.load };
    let opener = Opener::new(&options.connect, &options.command).await?;
    let mut first = opener.open().await?;
    let mut routes = match options.servers.is_empty() {
        true => listed_routes(&mut first, &load).await?,
        false => options.servers.iter().map(|server| named_route(server, &load)).collect(),
    };
    let servers = learn_servers(&mut first, &mut routes).await?;
    let as_expected = options.expect_servers.is_none_or(|expected| expected == servers);
    if servers != routes.len() || !as_expected {
        let expected = options.expect_servers;
        bail!("{} whoami tools lead to {servers} servers, expected {expected:?}", routes.len());
    }
    let mut value = measure(&opener, &options.connect, &load, routes, first).await?;
    merge(&mut value, json!({"mode": "fanout", "servers": servers}));
    Ok(value)
}

async fn listed_routes(channel: &mut Channel, load: &Load) -> Result<Vec<Route>> {
    let listing = channel.list().await?;
    let tools = resolve_all(&listing.names, "whoami");
    Ok(tools.into_iter().map(|tool| Route::new(tool, load.call_template.clone())).collect())
}

fn named_route(server: &str, load: &Load) -> Route {
    match &load.call_template {
        Some(template) => Route::new("whoami".to_owned(), Some(template.replace("$SERVER", server))),
        None => Route::new(format!("{server}/whoami"), None),
    }
}

/// Calls each tool once to learn the id of its server; returns the number of distinct servers.
async fn learn_servers(channel: &mut Channel, routes: &mut [Route]) -> Result<usize> {
    let mut names = Vec::new();
    for route in routes {
        let answer = channel.call(&route.tool, r#"{"text":"learn"}"#, route.template.as_deref()).await?;
        let end = answer
            .text
            .find(":learn")
            .with_context(|| format!("unexpected whoami answer {}", rpc::shorten(&answer.text)))?;
        route.answer_prefix = answer.text[..=end].to_owned();
        names.push(route.answer_prefix.clone());
    }
    names.sort();
    names.dedup();
    Ok(names.len())
}
