//! `toolcrib status [SERVER]`: prints the state of the servers.

mod server_page;

use anyhow::Result;
use serde_json::Value;

use crate::cli::StatusArgs;
use crate::client::GatewayClient;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::Report as _;
use crate::report::clients::ShownServerReport;
use crate::report::server::ServerReport;
use crate::report::status::{ClientCostReport, GatewayReport, LimitReport, StoreReport};
use server_page::PageContext;

/// The number of unapproved tools that a warning lists.
const MAX_LISTED_TOOLS: usize = 5;

/// The number of servers whose cost is shown per client.
const MAX_LISTED_SERVERS: usize = 3;

/// Prints a table of all servers of the running gateway, or one server in detail.
pub(crate) async fn run(args: &StatusArgs, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let client = GatewayClient::require(paths).await?;
    let Some(name) = &args.server else {
        let status = client.get("/api/v1/status").await?;
        if out.json {
            out.print_json(&status)?;
        } else {
            print_all(&GatewayReport::from_json(&status), out)?;
        }
        return Ok(ExitStatus::Success);
    };
    let server = super::mark_unknown_server(client.get(&super::server_path(name)).await)?;
    if out.json {
        out.print_json(&server)?;
    } else {
        let server = ServerReport::from_json(&server);
        for line in server_page::render(&server, &PageContext::find(name, paths)) {
            out.print_line(&line)?;
        }
        print_warnings(&server, out)?;
    }
    Ok(ExitStatus::Success)
}

/// A warning about a server and the next command.
#[derive(Debug, PartialEq, Eq)]
struct ServerWarning {
    message: String,
    hint: String,
}

fn print_all(status: &GatewayReport, out: &mut Output) -> std::io::Result<()> {
    let mut rows: Vec<Vec<String>> = status.servers.iter().map(server_row).collect();
    let mut headings =
        vec!["NAME", "STATE", "PID", "UPTIME", "TOOLS", "CALLS", "ERRORS", "P50", "RESTARTS", "ERA"];
    if status.servers.iter().any(|server| server.title.is_some()) {
        headings.push("TITLE");
        let titles = status.servers.iter().map(|server| server.title.clone().unwrap_or_default());
        rows.iter_mut().zip(titles).for_each(|(row, title)| row.push(title));
    }
    out.print_table(&headings, &rows)?;
    let limits: Vec<Vec<String>> = status.quota.iter().map(limit_row).collect();
    if !limits.is_empty() {
        out.print_table(&["CALLER", "LIMIT", "CALLS", "PER", "LEFT", "FREE IN"], &limits)?;
    }
    let clients: Vec<Vec<String>> = status.clients.iter().map(client_row).collect();
    if !clients.is_empty() {
        out.print_table(
            &["CLIENT", "CALLER", "EXPOSE", "TOOLS", "TOKENS", "INSTRUCTIONS", "TOKENS BY SERVER"],
            &clients,
        )?;
    }
    let GatewayReport { version, pid, .. } = status;
    let uptime = format_seconds(Some(status.uptime));
    out.print_note(&format!("gateway {version} (pid {pid}), up {uptime}"))?;
    let is_starting = |server: &&ServerReport| server.tools.is_none() && server.state == "starting";
    let starting: Vec<String> =
        status.servers.iter().filter(is_starting).map(|server| format!("`{}`", server.name)).collect();
    if !starting.is_empty() {
        out.print_note(&format!("not available yet: {}", starting.join(", ")))?;
    }
    if let Some(store) = &status.store {
        print_store(store, out)?;
    }
    for problem in &status.config.problems {
        out.warn(&problem.to_string(), problem.hint.as_deref())?;
    }
    status.servers.iter().try_for_each(|server| print_warnings(server, out))
}

/// Prints the state of the shared store, and what its absence means.
fn print_store(store: &StoreReport, out: &mut Output) -> std::io::Result<()> {
    let StoreReport { url, state, error, since, address } = store;
    let since = format_seconds(Some(*since));
    let Some(error) = error else {
        let replica = address.as_ref().map(|address| format!("; this replica is `{address}`"));
        return out
            .print_note(&format!("store `{url}` is {state}, for {since}{}", replica.unwrap_or_default()));
    };
    let message = format!("the store `{url}` has been down for {since}: {error}");
    let hint = "start it, or correct `store.url`; calls with limits are refused unless `on-store-failure` is \"allow\"";
    out.warn(&message, Some(hint))
}

fn print_warnings(server: &ServerReport, out: &mut Output) -> std::io::Result<()> {
    let unusable = unavailable_warning(server).or_else(|| login_warning(server));
    let warnings = unusable.into_iter().chain(unapproved_warning(server));
    let mut warnings = warnings.chain(definition_warning(server)).chain(listing_warnings(server));
    warnings.try_for_each(|warning| out.warn(&warning.message, Some(&warning.hint)))
}

/// Returns the warning for a server that does not accept calls now: the reason and the time of the next attempt.
fn unavailable_warning(server: &ServerReport) -> Option<ServerWarning> {
    let ServerReport { name, state, .. } = server;
    if !matches!(state.as_str(), "ejected" | "backing_off" | "tripped") {
        return None;
    }
    let error = server.last_error.as_ref();
    let reason = error.map_or("it failed too often", |error| &error.message);
    let class = server.class.as_ref().map_or_else(String::new, |class| format!(" ({class})"));
    let next = match server.next_attempt_in {
        None => String::new(),
        wait => format!("; next attempt in {}", format_seconds(wait)),
    };
    let error_hint = error.and_then(|error| error.hint.as_deref());
    let hint = match (state.as_str(), error_hint) {
        ("ejected", Some(hint)) if server.class.as_deref() == Some("misconfigured") => hint.to_owned(),
        ("ejected", _) => format!("toolcrib restart {name}"),
        (_, hint) => hint.map_or_else(|| format!("toolcrib logs {name}"), str::to_owned),
    };
    Some(ServerWarning { message: format!("`{name}` is {state}{class}: {reason}{next}"), hint })
}

/// Returns the warning for a server that runs, but whose login cannot be used.
fn login_warning(server: &ServerReport) -> Option<ServerWarning> {
    let name = &server.name;
    let message = match server.login.as_str() {
        "expired" => format!("the login to `{name}` has expired"),
        "needed" => format!("`{name}` needs a login, or one with more scopes"),
        _ => return None,
    };
    Some(ServerWarning { message, hint: format!("toolcrib login {name}") })
}

/// Returns the warning for a server with tools or other definitions that differ from what was approved.
fn unapproved_warning(server: &ServerReport) -> Option<ServerWarning> {
    let ServerReport { name, unapproved: tools, .. } = server;
    if tools.is_empty() {
        return None;
    }
    let listed: Vec<String> = tools
        .iter()
        .take(MAX_LISTED_TOOLS)
        .map(|changed| format!("{} ({})", changed.label(), changed.change))
        .collect();
    let more = match tools.len().saturating_sub(MAX_LISTED_TOOLS) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    let subject = if tools.iter().all(|item| item.kind.is_none()) { "tools" } else { "definitions" };
    let consequence = if server.pin == "strict" { " (withheld)" } else { "" };
    let message = format!(
        "{subject} of `{name}` differ from what was approved{consequence}: {}{more}",
        listed.join(", ")
    );
    Some(ServerWarning { message, hint: format!("toolcrib approve {name}") })
}

/// Returns the warning for a server whose lists are not passed on as they are.
fn definition_warning(server: &ServerReport) -> Option<ServerWarning> {
    let ServerReport { name, problems, .. } = server;
    if problems.is_empty() {
        return None;
    }
    let listed: Vec<&str> = problems.iter().take(MAX_LISTED_TOOLS).map(String::as_str).collect();
    let more = match problems.len().saturating_sub(MAX_LISTED_TOOLS) {
        0 => String::new(),
        count => format!("; and {count} more"),
    };
    let message = format!(
        "`{name}` lists definitions that clients would reject or that exceed a limit, which are repaired or left out: {}{more}",
        listed.join("; ")
    );
    let hint =
        format!("report it to the author of the server; `toolcrib status {name} --json` lists all of them");
    Some(ServerWarning { message, hint })
}

/// Returns the warnings for the lists that a server could not tell.
fn listing_warnings(server: &ServerReport) -> impl Iterator<Item = ServerWarning> {
    let name = &server.name;
    server.listing_errors.iter().map(move |error| {
        let code = error.code.map_or_else(String::new, |code| format!(" (code {code})"));
        let data = match &error.data {
            Value::Null => String::new(),
            data => format!(" {data}"),
        };
        ServerWarning {
            message: format!("`{name}` does not answer `{}`: {}{code}{data}", error.list, error.message),
            hint: format!("see `toolcrib logs {name}`; the list is requested again by itself"),
        }
    })
}

fn server_row(server: &ServerReport) -> Vec<String> {
    vec![
        server.name.clone(),
        server.state.clone(),
        format_count(server.pid),
        format_seconds(server.uptime),
        format_count(server.tools),
        server.calls.to_string(),
        server.errors.to_string(),
        format_seconds(server.p50),
        server.restarts.to_string(),
        format_eras(&server.eras),
    ]
}

fn format_eras(eras: &[String]) -> String {
    if eras.is_empty() { "-".to_owned() } else { eras.join(", ") }
}

fn limit_row(limit: &LimitReport) -> Vec<String> {
    vec![
        limit.caller.clone(),
        limit.limit.clone(),
        limit.calls.to_string(),
        format_seconds(Some(limit.per)),
        limit.left.to_string(),
        format_seconds(limit.room_in),
    ]
}

/// Returns the cells of a client: what its list of tools costs, and which servers cost the most.
fn client_row(client: &ClientCostReport) -> Vec<String> {
    let caller = match &client.profile {
        Some(profile) => format!("{} ({profile})", client.caller),
        None => client.caller.clone(),
    };
    let cost = |cost: &ShownServerReport| {
        format!("{} {}", cost.server.as_deref().unwrap_or("toolcrib"), cost.tokens)
    };
    let mut servers: Vec<String> = client.servers.iter().take(MAX_LISTED_SERVERS).map(cost).collect();
    if client.servers.len() > MAX_LISTED_SERVERS {
        servers.push(format!("{} more", client.servers.len() - MAX_LISTED_SERVERS));
    }
    vec![
        client.name.clone().unwrap_or_else(|| "-".to_owned()),
        caller,
        client.expose.clone(),
        client.tools_shown.to_string(),
        client.tokens_shown.to_string(),
        client.instruction_tokens.to_string(),
        servers.join(", "),
    ]
}

fn format_count(count: Option<u64>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

/// Formats a number of seconds in a suitable unit.
fn format_seconds(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.001 => format!("{:.0}µs", seconds * 1e6),
        Some(seconds) if seconds < 1.0 => format!("{:.1}ms", seconds * 1e3),
        Some(seconds) if seconds < 120.0 => format!("{seconds:.0}s"),
        Some(seconds) if seconds < 7200.0 => format!("{:.0}m", seconds / 60.0),
        Some(seconds) => format!("{:.0}h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::server::{LastErrorReport, ListingErrorReport};

    #[test]
    fn format_seconds_picks_suitable_unit() {
        let durations = [None, Some(0.000_25), Some(0.0123), Some(59.7), Some(600.0), Some(90_000.0)];
        assert_eq!(durations.map(format_seconds), ["-", "250µs", "12.3ms", "60s", "10m", "25h"]);
    }

    #[test]
    fn unavailable_warning_has_reason_next_attempt_and_hint() {
        let server = |state: &str, class: &str, next_attempt_in: Option<f64>| {
            let error = LastErrorReport {
                message: "process exited".to_owned(),
                hint: Some("repair it".to_owned()),
                ..LastErrorReport::default()
            };
            unavailable_warning(&ServerReport {
                name: "git".to_owned(),
                state: state.to_owned(),
                class: Some(class.to_owned()),
                next_attempt_in,
                last_error: Some(error),
                ..ServerReport::default()
            })
        };
        let warning = |message: &str, hint: &str| {
            Some(ServerWarning { message: message.to_owned(), hint: hint.to_owned() })
        };
        assert_eq!(
            server("ejected", "crashed", None),
            warning("`git` is ejected (crashed): process exited", "toolcrib restart git")
        );
        assert_eq!(
            server("ejected", "misconfigured", None),
            warning("`git` is ejected (misconfigured): process exited", "repair it")
        );
        assert_eq!(
            server("tripped", "rate_limited", Some(7.0)),
            warning("`git` is tripped (rate_limited): process exited; next attempt in 7s", "repair it")
        );
        assert_eq!(server("ready", "crashed", None), None);
    }

    #[test]
    fn login_warning_names_the_command() {
        let warning = |login: &str| {
            let (name, login) = ("linear".to_owned(), login.to_owned());
            login_warning(&ServerReport { name, login, ..ServerReport::default() })
        };
        let expired = warning("expired").unwrap();
        assert_eq!(expired.message, "the login to `linear` has expired");
        assert_eq!(expired.hint, "toolcrib login linear");
        assert!(warning("needed").is_some());
        assert_eq!(["", "none", "ok"].map(warning), [None, None, None]);
    }

    #[test]
    fn listing_warning_has_the_error_of_the_server() {
        let error = ListingErrorReport {
            list: "tools/list".to_owned(),
            code: Some(-32603),
            message: "no token".to_owned(),
            data: serde_json::json!({"login": 1}),
        };
        let server =
            ServerReport { name: "git".to_owned(), listing_errors: vec![error], ..ServerReport::default() };
        let messages: Vec<String> = listing_warnings(&server).map(|warning| warning.message).collect();
        assert_eq!(messages, [r#"`git` does not answer `tools/list`: no token (code -32603) {"login":1}"#]);
    }
}
