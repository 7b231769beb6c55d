//! The admin API: status, tools, logs, start, restart, stop, reload, approvals, calls, events, clients, config,
//! rules and audit.
//!
//! Produces JSON and is independent of connections; access is checked before a request gets here.

mod approvals;
mod errors;
mod history;
mod inspect;
mod recorded_action;
mod routes;
#[cfg(test)]
mod tests;
mod tool_summaries;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hyper::{Method, StatusCode};
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use toolcrib::oauth::LoginState;
use toolcrib::util::clock::wall_time;
use toolcrib::util::encoding;
use toolcrib::util::format::format_timestamp;
use toolcrib::util::maps::collect_map;
use toolcrib::{Caller, Crib, Error, Selector, ServerId, ServerStatus, StderrLine};
use toolcrib_serve::{
    AdminEvents, AdminReply, AdminReplyFuture, AdminRequest, AdminRoutes, MetricsFuture, MetricsText,
    query_value,
};

use self::errors::{error_reply, failure_reply, forbidden_reply};
use self::recorded_action::RecordedAction;
use crate::environment::digest_value;
use crate::gateway::GatewayHandle;
use crate::report::server::{ServerReport, to_short_json};
use crate::report::status::{ClientCostReport, GatewayReport, LimitReport, StoreReport};
use crate::report::tools::{FailureReport, ToolLookupReport, ToolReport};
use crate::report::{LogLineReport, Report as _};
use crate::telemetry::TextFormat;
use crate::tool_listing::{self, ToolsQuery, ToolsWait};

/// Time after which a request that waits for log lines returns without any.
const LOG_WAIT: Duration = Duration::from_secs(20);
/// The segment with the name of a server or the id of a call, as in `/api/v1/servers/NAME`.
const NAME_SEGMENT: usize = 3;

/// Splits a path into its segments. Only the name of a server or the id of a call is decoded: a route has one spelling.
pub(crate) fn parse_path(path: &str) -> Vec<Cow<'_, str>> {
    let segments = path.strip_prefix('/').unwrap_or_default().split('/').enumerate();
    let decode = |(index, segment)| match index {
        NAME_SEGMENT => encoding::percent_decode_lossy(segment),
        _ => Cow::Borrowed(segment),
    };
    segments.map(decode).collect()
}

/// The admin API of a gateway.
pub(crate) struct Admin {
    gateway: GatewayHandle,
}

/// Without fields: a derived form would compile the debug output of every type that a gateway consists of.
impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin").finish_non_exhaustive()
    }
}

impl AdminRoutes for Admin {
    fn respond<'a>(&'a self, request: AdminRequest<'a>) -> AdminReplyFuture<'a> {
        Box::pin(self.route_recorded(request))
    }

    fn metrics<'a>(&'a self, accept: Option<&'a str>) -> MetricsFuture<'a> {
        Box::pin(self.metrics_text(TextFormat::from_accept(accept)))
    }

    fn open_events(&self, request: &AdminRequest<'_>) -> Option<Result<AdminEvents, AdminReply>> {
        let is_stream = request.path == "/api/v1/events" && request.method == Method::GET;
        is_stream.then(|| self.event_stream(request))
    }
}

impl Admin {
    /// Creates the admin API of a gateway.
    pub(crate) fn new(gateway: GatewayHandle) -> Self {
        Self { gateway }
    }

    /// Creates the admin API in the form that [`Gateway::open`](crate::gateway::Gateway::open) needs.
    pub(crate) fn routes(gateway: GatewayHandle) -> Arc<dyn AdminRoutes> {
        Arc::new(Self::new(gateway))
    }

    fn crib(&self) -> &Crib {
        self.gateway.crib()
    }

    /// Handles one request. What changes something is recorded in the audit file.
    async fn route_recorded(&self, request: AdminRequest<'_>) -> AdminReply {
        let mut action = RecordedAction::new(self.gateway.audit(), &request);
        let reply = self.route(request).await;
        if let Some(action) = &mut action {
            action.end_with(reply.status);
        }
        reply
    }

    async fn route(&self, request: AdminRequest<'_>) -> AdminReply {
        let AdminRequest { caller, method, path, query, .. } = request;
        let segments = parse_path(path);
        let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
        let get = method == Method::GET;
        let post = method == Method::POST;
        if !request.is_admin && !routes::is_own_data(&segments) {
            return forbidden_reply("only an admin may do this");
        }
        match segments.as_slice() {
            ["healthz"] if get => AdminReply::ok(json!({"status": "ok"})),
            ["readyz"] if get => self.readiness(),
            ["api", "v1", "status"] if get => AdminReply::ok(self.status(query).await),
            ["api", "v1", "gateway"] if get => AdminReply::ok(self.gateway_info(&request)),
            ["api", "v1", "tools"] if get => AdminReply::ok(self.tools(caller, query).await),
            ["api", "v1", "reload"] if post => self.reload_reply().await,
            ["api", "v1", "handover"] if post => self.accept_handover().await,
            ["api", "v1", "servers", server] if get => self.server(server).await,
            ["api", "v1", "servers", server, "logs"] if get => self.logs(server, query).await,
            ["api", "v1", "servers", server, action @ ("start" | "restart" | "stop")] if post => {
                self.run_action(server, action, query).await
            }
            segments => self.route_others(&request, segments).await,
        }
    }

    async fn route_others(&self, request: &AdminRequest<'_>, segments: &[&str]) -> AdminReply {
        if let Some(reply) = self.respond_approvals(request, segments).await {
            return reply;
        }
        if let Some(reply) = self.respond_history(request, segments).await {
            return reply;
        }
        if let Some(reply) = self.respond_inspection(request, segments).await {
            return reply;
        }
        let AdminRequest { method, path, .. } = request;
        match routes::has_path(segments) {
            true => {
                error_reply(StatusCode::METHOD_NOT_ALLOWED, &format!("`{path}` does not support {method}"))
            }
            false => error_reply(StatusCode::NOT_FOUND, &format!("unknown path `{path}`")),
        }
    }

    /// Returns what a client of the gateway compares with its own process. Digests of variables are not for requests that any
    /// program on this machine can make.
    fn gateway_info(&self, request: &AdminRequest<'_>) -> Value {
        let salt = query_value(request.query, "salt").filter(|_| request.can_approve);
        let environment = salt.map(|salt| -> Map<String, Value> {
            let names = self.gateway.used_variables().into_iter();
            collect_map(names.map(|name| (name.clone(), json!(digest_value(&name, &salt)))))
        });
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "auto_started": self.gateway.is_auto_started(),
            "environment": environment,
        })
    }

    fn readiness(&self) -> AdminReply {
        match self.gateway.closing().is_cancelled() {
            false => AdminReply::ok(json!({"status": "ready"})),
            true => AdminReply::new(StatusCode::SERVICE_UNAVAILABLE, json!({"status": "shutting_down"})),
        }
    }

    /// Returns the metrics, unless they are switched off. Runs on a blocking thread, because it reads memory and CPU use from
    /// the system.
    async fn metrics_text(&self, format: TextFormat) -> Option<MetricsText> {
        if !self.gateway.telemetry().serves_metrics() {
            return None;
        }
        let gateway = self.gateway.clone();
        let formatting = tokio::task::spawn_blocking(move || format.format(&gateway.collect_metrics()));
        Some(MetricsText { content_type: format.content_type(), text: formatting.await.unwrap_or_default() })
    }

    /// Returns the status of every server. Runs on a blocking thread, because it reads memory use from the system.
    async fn server_statuses(&self) -> Vec<ServerStatus> {
        let crib = self.crib().clone();
        tokio::task::spawn_blocking(move || crib.status()).await.unwrap_or_default()
    }

    /// Returns the status of the gateway; with `brief=1`, without the stderr and the instances of servers; with `short=1`, in addition
    /// without members of servers that have no value.
    async fn status(&self, query: Option<&str>) -> Value {
        let revision = self.crib().catalog().revision();
        let mut servers = self.server_statuses().await;
        let is_set = |name| query_value(query, name).as_deref() == Some("1");
        let is_short = is_set("short");
        if is_short || is_set("brief") {
            for server in &mut servers {
                server.stderr_tail.clear();
                server.instances.clear();
            }
        }
        let reported = if is_short { &[] } else { &*servers };
        let report = GatewayReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id().into(),
            uptime: self.gateway.uptime().as_secs_f64(),
            config: self.gateway.config_report(),
            servers: reported.iter().map(|status| self.report(status, revision)).collect(),
            quota: self.crib().limit_status().await.iter().map(LimitReport::new).collect(),
            clients: self.gateway.service().client_list_costs().iter().map(ClientCostReport::new).collect(),
            store: self.store_report(),
        };
        let mut json = report.to_json();
        if is_short {
            json["servers"] =
                servers.iter().map(|status| to_short_json(status, self.login_state(status))).collect();
        }
        json
    }

    fn store_report(&self) -> Option<StoreReport> {
        let address = self.crib().replica().map(|replica| replica.address());
        self.gateway.store_status().map(|status| StoreReport::new(&status, address))
    }

    fn login_state(&self, status: &ServerStatus) -> Option<LoginState> {
        self.crib().login(&status.server).map(|login| login.state(wall_time()))
    }

    fn report(&self, status: &ServerStatus, revision: u64) -> ServerReport {
        ServerReport::new(status, self.login_state(status), revision)
    }

    async fn server(&self, name: &str) -> AdminReply {
        let revision = self.crib().catalog().revision();
        match self.server_statuses().await.iter().find(|status| status.server.as_str() == name) {
            Some(status) => AdminReply::ok(self.report(status, revision).to_json()),
            None => failure_reply(&self.crib().catalog().unknown_server_error(name)),
        }
    }

    /// Lists the tools that a caller sees; with `wait=1`, after every server was listed or has failed; with `refresh=1`, after
    /// the running servers were asked again; with `q`, those of a server or those that match a query, best first. With `name`, and optionally
    /// `server`, returns only that tool, or a similar name; with `start=1`, after its server was started.
    async fn tools(&self, caller: &Caller, query: Option<&str>) -> Value {
        if query_value(query, "brief").as_deref() == Some("1") {
            return tool_summaries::list(self.crib(), caller, query).await;
        }
        let Some(name) = query_value(query, "name") else {
            let is_set = |key| query_value(query, key).as_deref() == Some("1");
            let text = query_value(query, "q").unwrap_or_default();
            let wait = if is_set("wait") { ToolsWait::All } else { ToolsWait::Brief };
            let query = ToolsQuery { text: &text, wait, refreshes: is_set("refresh") };
            let mut report = tool_listing::query_tools(self.crib(), caller, query).await;
            report.add_disabled_servers(&self.gateway.config_report().problems);
            return report.to_json();
        };
        let selector = match query_value(query, "server").map(|server| server.parse()) {
            Some(Ok(server)) => Some(Selector::OnServer(server, name)),
            Some(Err(_)) => None,
            None => Some(Selector::Tool(name)),
        };
        match selector {
            Some(selector) => {
                let starts = query_value(query, "start").is_some_and(|start| start == "1");
                self.look_up_tool(caller, &selector, starts).await.to_json()
            }
            None => ToolLookupReport::default().to_json(),
        }
    }

    async fn look_up_tool(&self, caller: &Caller, selector: &Selector, starts: bool) -> ToolLookupReport {
        let crib = self.crib();
        let mut found = tool_listing::find_tool(crib, caller, selector).await;
        if let Ok(Some(tool)) = &found
            && starts
            && let Err(error) = tool_listing::start_server_of(crib, tool).await
        {
            found = Err(error);
        }
        let near = crib.catalog_for(caller).suggest_tool(selector).map(str::to_owned);
        ToolLookupReport {
            failure: found.as_ref().err().map(FailureReport::new),
            tool: found.ok().flatten().as_ref().map(ToolReport::new),
            near,
        }
    }

    async fn logs(&self, name: &str, query: Option<&str>) -> AdminReply {
        let server = match self.parse_server(name) {
            Ok(server) => server,
            Err(error) => return failure_reply(&error),
        };
        let after = query_value(query, "after").and_then(|after| after.parse().ok()).unwrap_or(0);
        let wait = query_value(query, "wait").is_some_and(|wait| wait == "1");
        let lines = match wait {
            false => self.crib().logs(&server, after),
            true => tokio::select! {
                lines = timeout(LOG_WAIT, self.crib().wait_for_logs(&server, after)) => {
                    lines.unwrap_or_else(|_| Ok(Vec::new()))
                }
                () = self.gateway.closing().cancelled() => Ok(Vec::new()),
            },
        };
        match lines {
            Ok(lines) => {
                let report = |line: StderrLine| LogLineReport {
                    seq: Some(line.number),
                    at: format_timestamp(line.at),
                    line: line.text,
                };
                let lines: Vec<LogLineReport> = lines.into_iter().map(report).collect();
                AdminReply::ok(lines.to_json())
            }
            Err(error) => failure_reply(&error),
        }
    }

    async fn run_action(&self, name: &str, action: &str, query: Option<&str>) -> AdminReply {
        let server = match self.parse_server(name) {
            Ok(server) => server,
            Err(error) => return failure_reply(&error),
        };
        let done = match action {
            // A person asks for it: `toolcrib doctor`, or the dashboard.
            "start" => match self.crib().request_card(&server) {
                Ok(()) => self.crib().start(&server).await,
                Err(error) => Err(error),
            },
            "restart" => {
                self.gateway.history().expect_restart(&server);
                match query_value(query, "caller") {
                    Some(caller) => self.crib().reconnect(&server, &Caller::new(&caller)).await,
                    None => self.crib().restart(&server).await,
                }
            }
            _ => self.crib().stop(&server).await,
        };
        match done {
            Ok(()) => self.server(name).await,
            Err(error) => failure_reply(&error),
        }
    }

    /// Connects to the process that replaces this gateway. Only a process of the same user can listen at the path that is used.
    async fn accept_handover(&self) -> AdminReply {
        match self.gateway.handovers().accept().await {
            Ok(()) => AdminReply::ok(json!({"status": "connected"})),
            Err(reason) => error_reply(StatusCode::CONFLICT, &reason),
        }
    }

    fn parse_server(&self, name: &str) -> Result<ServerId, Error> {
        name.parse().map_err(|_| self.crib().catalog().unknown_server_error(name))
    }

    async fn reload_reply(&self) -> AdminReply {
        match self.gateway.reload().await {
            Ok(report) => AdminReply::ok(report.to_json()),
            Err(error) => AdminReply::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_json()),
        }
    }
}
