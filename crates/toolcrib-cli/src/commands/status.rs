//! `toolcrib status [S]`: what is running, and how well.

use anyhow::Result;
use serde_json::Value;

use crate::cli::Status;
use crate::client::Client;
use crate::exit::Exit;
use crate::output::{Output, problem_line};
use crate::place::Place;

/// What people look for first.
const FIRST: [&str; 10] =
    ["name", "state", "pid", "uptime", "tools", "calls", "errors", "class", "last_error", "next_attempt_in"];

/// Shows every server of the running gateway, or one in full.
pub(crate) async fn run(args: &Status, place: &Place, out: &mut Output) -> Result<Exit> {
    let client = Client::demand(place).await?;
    let Some(name) = &args.server else {
        let status = client.get("/api/v1/status").await?;
        return if out.json {
            out.value(&status).map(|()| Exit::Fine).map_err(Into::into)
        } else {
            table(&status, out)
        };
    };
    let server = super::about_server(client.get(&super::server_path(name)).await)?;
    if out.json {
        out.value(&server)?;
    } else {
        one(&server, out)?;
    }
    Ok(Exit::Fine)
}

fn table(status: &Value, out: &mut Output) -> Result<Exit> {
    let servers = status["servers"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<Vec<String>> = servers.iter().map(row).collect();
    out.rows(&["NAME", "STATE", "PID", "UPTIME", "TOOLS", "CALLS", "ERRORS", "P50", "RESTARTS"], &rows)?;
    let limits: Vec<Vec<String>> = status["quota"].as_array().into_iter().flatten().map(limit).collect();
    if !limits.is_empty() {
        out.rows(&["CALLER", "LIMIT", "CALLS", "PER", "LEFT", "ROOM IN"], &limits)?;
    }
    let pid = plain(&status["pid"]);
    out.say(&format!("gateway {} (pid {pid}), up {}", plain(&status["version"]), time(&status["uptime"])))?;
    for problem in status["config"]["problems"].as_array().into_iter().flatten() {
        out.warn(&problem_line(problem), problem["hint"].as_str())?;
    }
    for (trouble, hint) in
        servers.iter().flat_map(|server| trouble(server).into_iter().chain(unapproved(server)))
    {
        out.warn(&trouble, hint.as_deref())?;
    }
    Ok(Exit::Fine)
}

/// What is wrong with a server that cannot be asked now, when it will be tried again, and what to type.
fn trouble(server: &Value) -> Option<(String, Option<String>)> {
    let (name, state) = (plain(&server["name"]), server["state"].as_str()?);
    if !matches!(state, "ejected" | "backing_off" | "tripped") {
        return None;
    }
    let why = server["last_error"]["message"].as_str().unwrap_or("it failed too often");
    let class = server["class"].as_str().map_or_else(String::new, |class| format!(" ({class})"));
    let next = match &server["next_attempt_in"] {
        Value::Null => String::new(),
        wait => format!("; next attempt in {}", time(wait)),
    };
    let told = server["last_error"]["hint"].as_str();
    let hint = match (state, told) {
        ("ejected", Some(hint)) if server["class"] == "misconfigured" => hint.to_owned(),
        ("ejected", _) => format!("toolcrib restart {name}"),
        (_, hint) => hint.map_or_else(|| format!("toolcrib logs {name}"), str::to_owned),
    };
    Some((format!("`{name}` is {state}{class}: {why}{next}"), Some(hint)))
}

/// Which of a server's tools are not what was approved.
fn unapproved(server: &Value) -> Option<(String, Option<String>)> {
    let tools = server["unapproved"].as_array().filter(|tools| !tools.is_empty())?;
    let (name, shown) = (plain(&server["name"]), tools.iter().take(5));
    let shown: Vec<String> = shown
        .map(|tool| format!("`{}` ({})", plain(&tool["tool"]).escape_debug(), plain(&tool["change"])))
        .collect();
    let more = if tools.len() > 5 { format!(" and {} more", tools.len() - 5) } else { String::new() };
    let then = if server["pin"] == "strict" { "withheld" } else { "marked" };
    let message = format!("tools of `{name}` not as approved, and {then}: {}{more}", shown.join(", "));
    Some((message, Some(format!("toolcrib approve {name}"))))
}

fn row(server: &Value) -> Vec<String> {
    let counts = ["tools", "calls", "errors"].map(|field| plain(&server[field]));
    let mut row =
        vec![plain(&server["name"]), plain(&server["state"]), plain(&server["pid"]), time(&server["uptime"])];
    row.extend(counts);
    row.extend([time(&server["p50"]), plain(&server["restarts"])]);
    row
}

fn limit(standing: &Value) -> Vec<String> {
    let [caller, limit, calls, left] =
        ["caller", "limit", "calls", "left"].map(|field| plain(&standing[field]));
    vec![caller, limit, calls, time(&standing["per"]), left, time(&standing["room_in"])]
}

fn one(server: &Value, out: &mut Output) -> Result<()> {
    let durations = ["uptime", "next_attempt_in", "p50", "p99"];
    let rank = |field: &str| FIRST.iter().position(|first| *first == field).unwrap_or(FIRST.len());
    let mut fields: Vec<(&String, &Value)> = server.as_object().into_iter().flatten().collect();
    fields.retain(|(field, _)| !["stderr_tail", "instances_list", "unapproved"].contains(&field.as_str()));
    fields.sort_by_key(|(field, _)| rank(field));
    let shown = |(field, value): &(&String, &Value)| {
        let value = if durations.contains(&field.as_str()) { time(value) } else { plain(value) };
        vec![field.to_string(), value]
    };
    let rows: Vec<Vec<String>> = fields.iter().map(shown).collect();
    out.rows(&["FIELD", "VALUE"], &rows)?;
    let instances = server["instances_list"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !instances.is_empty() {
        let rows: Vec<Vec<String>> = instances.iter().map(instance).collect();
        out.rows(&["INSTANCE OF", "STATE", "PID", "UPTIME", "CALLS", "ERRORS", "RESTARTS"], &rows)?;
    }
    for (trouble, hint) in trouble(server).into_iter().chain(unapproved(server)) {
        out.warn(&trouble, hint.as_deref())?;
    }
    for line in server["stderr_tail"].as_array().into_iter().flatten() {
        out.say(&format!("  {}", plain(line)))?;
    }
    Ok(())
}

fn instance(instance: &Value) -> Vec<String> {
    let [key, state, pid, calls, errors, restarts] =
        ["key", "state", "pid", "calls", "errors", "restarts"].map(|field| plain(&instance[field]));
    vec![key, state, pid, time(&instance["uptime"]), calls, errors, restarts]
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A duration in seconds, in the unit that suits it.
fn time(seconds: &Value) -> String {
    match seconds.as_f64() {
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
    use serde_json::json;

    use super::*;

    #[test]
    fn durations_are_shown_in_a_unit_that_suits_them() {
        let shown: Vec<String> =
            [json!(null), json!(0.000_25), json!(0.0123), json!(59.7), json!(600.0), json!(90_000)]
                .iter()
                .map(time)
                .collect();
        assert_eq!(shown, ["-", "250µs", "12.3ms", "60s", "10m", "25h"]);
    }

    #[test]
    fn what_cannot_be_asked_now_says_why_when_next_and_what_to_type() {
        let server = |state: &str, class: &str, next: Value| {
            let error = json!({"message": "it is gone", "hint": "repair it"});
            trouble(
                &json!({"name": "git", "state": state, "class": class, "next_attempt_in": next, "last_error": error}),
            )
        };
        let said = |text: &str, hint: &str| Some((text.to_owned(), Some(hint.to_owned())));
        assert_eq!(
            server("ejected", "crashed", json!(null)),
            said("`git` is ejected (crashed): it is gone", "toolcrib restart git")
        );
        assert_eq!(
            server("ejected", "misconfigured", json!(null)),
            said("`git` is ejected (misconfigured): it is gone", "repair it")
        );
        assert_eq!(
            server("tripped", "rate_limited", json!(7.0)),
            said("`git` is tripped (rate_limited): it is gone; next attempt in 7s", "repair it")
        );
        assert_eq!(server("ready", "crashed", json!(null)), None);
    }
}
