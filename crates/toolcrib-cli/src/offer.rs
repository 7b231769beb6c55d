//! What a crib has on offer, as `tools` and `call` want to know it, with a daemon and without.

use serde_json::{Value, json};
use toolcrib::catalog::name::SEPARATOR;
use toolcrib::{Caller, Crib, Error, Mark, Pinning, ServerId, Tool, Wanted};

/// Everything on offer, and why some servers offer nothing.
pub(crate) struct Offer {
    /// Every tool, in order.
    pub(crate) tools: Vec<Tool>,
    /// Servers that could not be asked.
    pub(crate) failed: Vec<Error>,
    /// Servers that offer something else than was approved, how many such tools, and whether those are withheld.
    pub(crate) unapproved: Vec<(ServerId, usize, bool)>,
}

impl Offer {
    /// Asks every server that a caller may know of.
    pub(crate) async fn of(crib: &Crib, caller: &Caller) -> Self {
        let mut offer = Self { tools: Vec::new(), failed: Vec::new(), unapproved: Vec::new() };
        for discovery in crib.discover_for(caller).await {
            match discovery.tools {
                Ok(tools) => offer.tools.extend(tools),
                Err(error) => offer.failed.push(error.at(&discovery.server)),
            }
        }
        let open = crib.status().into_iter().filter(|status| !status.unapproved.is_empty());
        let open = open.map(|status| (status.server, status.unapproved.len(), status.pin == Pinning::Strict));
        offer.unapproved = open.collect();
        offer
    }

    /// As scripts see it.
    pub(crate) fn to_json(&self) -> Value {
        let failed: Vec<Value> = self.failed.iter().map(error_json).collect();
        let open = |(server, count, withheld): &(ServerId, usize, bool)| json!({"server": server.as_str(), "tools": count, "withheld": withheld});
        let unapproved: Vec<Value> = self.unapproved.iter().map(open).collect();
        let tools: Vec<Value> = self.tools.iter().map(tool_json).collect();
        json!({"tools": tools, "failed": failed, "unapproved": unapproved})
    }
}

/// One tool as scripts see it.
pub(crate) fn tool_json(tool: &Tool) -> Value {
    json!({
        "name": &*tool.public_name,
        "server": tool.server.as_str(),
        "tool": &*tool.own_name,
        "description": tool.description(),
        "change": tool.mark.map(Mark::as_str),
        "definition": serde_json::from_slice::<Value>(&tool.definition).unwrap_or_default(),
    })
}

/// An error as the admin API tells it.
pub(crate) fn error_json(error: &Error) -> Value {
    let mut told = error.data();
    told["message"] = error.to_string().into();
    told
}

/// The tool that a caller means, if a server can be found that lists it. Servers that were never seen are asked for it.
pub(crate) async fn look_up(crib: &Crib, caller: &Caller, wanted: &Wanted) -> Option<Tool> {
    if let Some(tool) = known(crib, caller, wanted) {
        return Some(tool);
    }
    let behind: Option<ServerId> = match wanted {
        Wanted::On(server, _) => Some(server.clone()),
        Wanted::Prompt(name) | Wanted::Resource(name) | Wanted::Task(name) | Wanted::Named(name) => {
            name.split_once(SEPARATOR).and_then(|(server, _)| server.parse().ok())
        }
    };
    match (behind.filter(|server| crib.has(server)), wanted) {
        // One that fails to start says so when it is called.
        (Some(server), _) => drop(crib.list_of_for(&server, caller).await),
        (None, Wanted::On(..)) => {}
        (None, _) => drop(crib.list_for(caller).await),
    }
    known(crib, caller, wanted)
}

fn known(crib: &Crib, caller: &Caller, wanted: &Wanted) -> Option<Tool> {
    let catalog = crib.catalog_for(caller);
    let target = catalog.find(wanted).ok()?;
    let mut tools = catalog.tools().iter();
    tools.find(|tool| tool.server == target.server && tool.own_name == target.name).cloned()
}
