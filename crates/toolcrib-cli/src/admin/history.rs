//! Calls, events, statistics and clients in the admin API.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hyper::Method;
use toolcrib::access::expose::estimate_tokens;
use toolcrib::config::units::parse_duration;
use toolcrib::util::clock::wall_time;
use toolcrib::util::format::format_timestamp;
use toolcrib::util::maps::collect_map;
use toolcrib::util::time_id::to_time_id;
use toolcrib::{CallId, Caller, Catalog, ServerId};
use toolcrib_serve::{
    AdminEvents, AdminReply, AdminRequest, ClientKind, ConnectedClient, HttpGateway, ShownTools, query_value,
};

use super::Admin;
use super::errors::{invalid_reply, missing_reply, overloaded_reply, unreadable_reply};
use crate::history::{CallFilter, CallOutcome, ClientCalls, EventFilter, StatsQuery, parse_time};
use crate::report::Report as _;
use crate::report::clients::{ClientReport, ClientsReport, ShownServerReport};
use crate::report::events::EVENT_KINDS;
use crate::report::stats::{CostReport, ToolCost};

/// Calls of one page if the request does not say how many.
const DEFAULT_LIMIT: usize = 100;
/// Most calls of one page.
const MAX_LIMIT: usize = 1000;
/// Period of statistics if the request does not say which.
const DEFAULT_PERIOD: Duration = Duration::from_secs(60 * 60);
/// Clients and definitions in one response.
const MAX_ROWS: usize = 1000;

impl Admin {
    /// Handles a request about what is recorded, or about clients; `None` for any other path.
    pub(super) async fn respond_history(
        &self,
        request: &AdminRequest<'_>,
        path: &[&str],
    ) -> Option<AdminReply> {
        if request.method != Method::GET {
            return None;
        }
        let reply = match path {
            ["api", "v1", "clients"] => return Some(AdminReply::ok(self.clients(request).await.to_json())),
            ["api", "v1", "calls"] => self.calls(request).await,
            ["api", "v1", "calls", id] => self.call(request, id).await,
            ["api", "v1", "stats"] => self.stats(request).await,
            _ => return None,
        };
        Some(reply.unwrap_or_else(|refusal| refusal))
    }

    /// Returns the response to a request for records if there are none.
    fn check_recording(&self) -> Result<(), AdminReply> {
        match self.gateway.history().is_recording() {
            true => Ok(()),
            false => Err(missing_reply("calls are not recorded", "set `history.enabled = true`")),
        }
    }

    async fn calls(&self, request: &AdminRequest<'_>) -> Result<AdminReply, AdminReply> {
        self.check_recording()?;
        let value = |name| query_value(request.query, name);
        let outcome = value("outcome").map(|name| {
            let hint = "use `ok`, `error` or `denied`";
            CallOutcome::parse(&name).ok_or_else(|| invalid_reply("`outcome` is invalid", hint))
        });
        let limit = value("limit").map(|limit| {
            let parsed = limit.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
            parsed.ok_or_else(|| invalid_reply("`limit` is invalid", "use a number from 1 to 1000"))
        });
        let filter = CallFilter {
            from: parse_since(request)?.map_or(0, to_time_id),
            before: value("before").map(|id| parse_id("before", &id)).transpose()?,
            server: value("server"),
            tool: value("tool"),
            caller: own_caller(request).or_else(|| value("caller")),
            outcome: outcome.transpose()?,
            limit: limit.transpose()?.unwrap_or(DEFAULT_LIMIT),
        };
        let calls = self.gateway.history().calls(filter).await.map_err(|error| read_error(&error))?;
        Ok(AdminReply::ok(calls.to_json()))
    }

    async fn call(&self, request: &AdminRequest<'_>, id: &str) -> Result<AdminReply, AdminReply> {
        self.check_recording()?;
        let unknown = || missing_reply(&format!("unknown call `{id}`"), "GET /api/v1/calls lists the calls");
        let call_id = id.parse().map_err(|_| unknown())?;
        let call = self.gateway.history().call(call_id, own_caller(request)).await;
        let call = call.map_err(|error| read_error(&error))?.ok_or_else(unknown)?;
        Ok(AdminReply::ok(call.to_json()))
    }

    async fn stats(&self, request: &AdminRequest<'_>) -> Result<AdminReply, AdminReply> {
        self.check_recording()?;
        let until = wall_time();
        let step = query_value(request.query, "step").map(|step| {
            let parsed = parse_duration(&step).filter(|step| !step.is_zero());
            parsed.ok_or_else(|| invalid_reply("`step` is not a duration", "use `10s`, `1m` or `1h`"))
        });
        let query = StatsQuery {
            since: parse_since(request)?.unwrap_or(until - DEFAULT_PERIOD).min(until),
            until,
            step: step.transpose()?,
            caller: own_caller(request),
            with_cost: query_value(request.query, "cost").is_some_and(|cost| cost == "1"),
        };
        let stats = self.gateway.history().stats(query).await;
        let mut stats = stats.map_err(|error| read_error(&error))?;
        if let Some(cost) = &mut stats.cost {
            self.add_definitions(cost, request);
        }
        Ok(AdminReply::ok(stats.to_json()))
    }

    /// Adds what definitions cost now: by tool, and by client.
    fn add_definitions(&self, cost: &mut CostReport, request: &AdminRequest<'_>) {
        let catalog = match request.is_admin {
            true => self.crib().catalog(),
            false => self.crib().catalog_for(request.caller),
        };
        cost.definitions = definition_costs(&catalog, std::mem::take(&mut cost.definitions));
        let Some(http) = self.gateway.http() else { return };
        let clients = http.clients();
        let mut shown = ShownToolsMemo::new(&http);
        for day in &mut cost.days {
            // Records have no profile and no groups; a client that is still known has them.
            let is_same = |client: &&ConnectedClient| {
                client.caller.as_str() == day.caller
                    && client.name.as_deref() == day.client.as_deref()
                    && client.server.is_none()
            };
            let known = clients.iter().find(is_same).map(|client| client.caller.clone());
            let caller = known.unwrap_or_else(|| Caller::new(&day.caller));
            let client = ClientScope::new(&caller, day.client.as_deref(), None);
            let tokens: usize = shown.get(&caller, client).iter().map(ShownTools::tokens).sum();
            day.definition_tokens = Some(tokens as u64);
        }
    }

    async fn clients(&self, request: &AdminRequest<'_>) -> ClientsReport {
        let Some(http) = self.gateway.http() else { return ClientsReport::default() };
        let mut clients = http.clients();
        if !request.is_admin {
            clients.retain(|client| client.caller == *request.caller);
        }
        clients.sort_by_key(|client| std::cmp::Reverse(client.since));
        clients.truncate(MAX_ROWS);
        let first = clients.iter().map(|client| client.since).min();
        let history = self.gateway.history();
        let calls = match first.filter(|_| history.is_recording()) {
            // The clients are reported without the number of their calls.
            Some(first) => history.client_calls(first).await.inspect_err(log_read_error).ok(),
            None => None,
        };
        let mut shown = ShownToolsMemo::new(&http);
        let report = |client: &ConnectedClient| {
            let scope = ClientScope::new(&client.caller, client.name.as_deref(), client.server.as_ref());
            client_report(client, &shown.get(&client.caller, scope), calls.as_ref())
        };
        ClientsReport { clients: clients.iter().map(report).collect() }
    }

    /// Opens the stream of events.
    pub(super) fn event_stream(&self, request: &AdminRequest<'_>) -> Result<AdminEvents, AdminReply> {
        let kinds: Vec<String> = query_value(request.query, "kind")
            .map(|kinds| kinds.split(',').map(str::to_owned).collect())
            .unwrap_or_default();
        if let Some(unknown) = kinds.iter().find(|kind| !EVENT_KINDS.contains(&kind.as_str())) {
            let hint = format!("use {}", EVENT_KINDS.join(", "));
            return Err(invalid_reply(&format!("unknown kind `{unknown}`"), &hint));
        }
        let after = match request.last_event_id {
            Some(id) => Some(parse_id("Last-Event-ID", id)?.number()),
            None => parse_since(request)?.map(|since| to_time_id(since).saturating_sub(1)),
        };
        let filter = EventFilter {
            after,
            kinds,
            server: query_value(request.query, "server"),
            caller: own_caller(request),
            follow: query_value(request.query, "follow").is_none_or(|follow| follow != "0"),
        };
        let closing = self.gateway.closing().clone();
        let stream = self.gateway.history().open_stream(request.caller.as_str(), filter, closing);
        stream.ok_or_else(|| {
            overloaded_reply("too many event streams of this caller are open", "close one of them")
        })
    }
}

/// Returns the caller whose calls a request may see, if it may not see all.
fn own_caller(request: &AdminRequest<'_>) -> Option<String> {
    (!request.is_admin).then(|| request.caller.as_str().to_owned())
}

/// Returns the time in `since`: a timestamp, or a duration before now.
fn parse_since(request: &AdminRequest<'_>) -> Result<Option<SystemTime>, AdminReply> {
    let Some(text) = query_value(request.query, "since") else { return Ok(None) };
    match parse_time(&text, wall_time()) {
        Some(since) => Ok(Some(since)),
        None => {
            Err(invalid_reply("`since` is not a time", "use `15m`, `2h`, `1d` or `2026-05-01T12:30:00Z`"))
        }
    }
}

fn parse_id(name: &str, text: &str) -> Result<CallId, AdminReply> {
    text.parse().map_err(|error| invalid_reply(&format!("`{name}` is invalid: {error}"), "omit it"))
}

fn log_read_error(error: &io::Error) {
    tracing::warn!("cannot read the history: {error}");
}

fn read_error(error: &io::Error) -> AdminReply {
    log_read_error(error);
    unreadable_reply(&format!("cannot read the history: {error}"))
}

/// What decides which tools a client is listed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ClientScope {
    caller: String,
    profile: Option<String>,
    groups: Vec<String>,
    name: Option<String>,
    server: Option<ServerId>,
}

impl ClientScope {
    fn new(caller: &Caller, name: Option<&str>, server: Option<&ServerId>) -> Self {
        Self {
            caller: caller.as_str().to_owned(),
            profile: caller.profile().map(str::to_owned),
            groups: caller.groups().to_vec(),
            name: name.map(str::to_owned),
            server: server.cloned(),
        }
    }
}

/// The tools that clients are listed, each scope computed once.
struct ShownToolsMemo<'a> {
    http: &'a HttpGateway,
    known: HashMap<ClientScope, Arc<[ShownTools]>>,
}

impl<'a> ShownToolsMemo<'a> {
    fn new(http: &'a HttpGateway) -> Self {
        Self { http, known: HashMap::new() }
    }

    fn get(&mut self, caller: &Caller, scope: ClientScope) -> Arc<[ShownTools]> {
        if let Some(shown) = self.known.get(&scope) {
            return shown.clone();
        }
        let name = scope.name.as_deref().map(Arc::from);
        let shown: Arc<[ShownTools]> = self.http.shown_tools(caller, name, scope.server.as_ref()).into();
        self.known.insert(scope, shown.clone());
        shown
    }
}

fn client_report(
    client: &ConnectedClient,
    shown: &[ShownTools],
    calls: Option<&ClientCalls>,
) -> ClientReport {
    let kind = match client.kind {
        ClientKind::Session => "session",
        ClientKind::Pipe => "pipe",
        _ => "stateless",
    };
    let name = client.name.as_deref();
    let count = |calls: &ClientCalls| match client.kind {
        ClientKind::Stateless => {
            calls.count_by_name(name.unwrap_or_default(), client.caller.as_str(), client.since)
        }
        _ => calls.count_by_key(client.key, client.since),
    };
    ClientReport {
        name: name.map(str::to_owned),
        version: client.version.as_deref().map(str::to_owned),
        protocol_version: client.revision.as_str().to_owned(),
        kind: kind.to_owned(),
        capabilities: serde_json::from_slice(&client.capabilities).unwrap_or_default(),
        caller: client.caller.as_str().to_owned(),
        profile: client.caller.profile().map(str::to_owned),
        server: client.server.as_ref().map(ToString::to_string),
        since: format_timestamp(client.since),
        calls: calls.map(count),
        tools_shown: shown.iter().map(|shown| shown.tools as u64).sum(),
        tokens_shown: shown.iter().map(|shown| shown.tokens() as u64).sum(),
        servers: shown.iter().map(ShownServerReport::new).collect(),
    }
}

/// Returns the cost of all tools that are offered now or were called, the most expensive first.
fn definition_costs(catalog: &Catalog, called: Vec<ToolCost>) -> Vec<ToolCost> {
    let named = called.into_iter().map(|cost| (format!("{}.{}", cost.server, cost.tool), cost));
    let mut called: HashMap<String, ToolCost> = collect_map(named);
    let mut costs: Vec<ToolCost> = Vec::new();
    for tool in catalog.tools() {
        let known = called.remove(&format!("{}.{}", tool.server, tool.own_name)).unwrap_or_default();
        costs.push(ToolCost {
            server: tool.server.to_string(),
            tool: tool.own_name.to_string(),
            definition_tokens: Some(estimate_tokens(tool.listed_bytes()) as u64),
            ..known
        });
    }
    costs.extend(called.into_values());
    let tokens = |cost: &ToolCost| cost.definition_tokens.unwrap_or(0) + cost.result_tokens;
    costs.sort_by(|a, b| {
        let names = || (&a.server, &a.tool).cmp(&(&b.server, &b.tool));
        tokens(b).cmp(&tokens(a)).then_with(names)
    });
    costs.truncate(MAX_ROWS);
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_caller_with_other_profile_or_groups_is_another_scope() {
        let ada = Caller::new("ada");
        let scope = ClientScope::new(&ada, Some("ide"), None);
        assert_eq!(scope, ClientScope::new(&ada, Some("ide"), None));
        let grouped = Caller::with_groups("ada", ["dev".to_owned()]);
        for other in [ada.with_profile("work"), grouped] {
            assert_ne!(scope, ClientScope::new(&other, Some("ide"), None));
        }
    }
}
