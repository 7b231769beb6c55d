//! `toolcrib tools [QUERY]`: everything on offer.

use anyhow::Result;
use serde_json::Value;

use toolcrib::Caller;

use crate::cli::Tools;
use crate::client::Client;
use crate::exit::Exit;
use crate::offer::Offer;
use crate::output::Output;
use crate::place::Place;

/// Lists tools, of the running gateway or of servers started for the purpose.
pub(crate) async fn run(args: &Tools, place: &Place, out: &mut Output) -> Result<Exit> {
    let asked = match Client::find(place).await? {
        Some(client) => super::until_interrupted(client.get("/api/v1/tools")).await?.transpose()?,
        None => {
            let offer = super::alone(place, out, super::Waits::ForAll, async |crib| {
                Offer::of(&crib, &Caller::local()).await.to_json()
            })
            .await?;
            offer.map(|offer| advised(offer, place))
        }
    };
    match asked {
        Some(offer) => show(&offer, args.query.as_deref(), out),
        None => Ok(Exit::Interrupted),
    }
}

fn advised(mut offer: Value, place: &Place) -> Value {
    for error in offer["failed"].as_array_mut().into_iter().flatten() {
        let hint =
            error["hint"].as_str().map(|hint| super::advice_alone(hint, error["server"].as_str(), place));
        error["hint"] = hint.into();
    }
    offer
}

fn show(offer: &Value, query: Option<&str>, out: &mut Output) -> Result<Exit> {
    let all = offer["tools"].as_array().map(Vec::as_slice).unwrap_or_default();
    let failed = offer["failed"].as_array().map(Vec::as_slice).unwrap_or_default();
    let found: Vec<&Value> =
        all.iter().filter(|tool| query.is_none_or(|query| matches(tool, query))).collect();
    if out.json {
        out.value(&found.iter().map(|tool| (*tool).clone()).collect())?;
    } else {
        let rows: Vec<Vec<String>> = found.iter().map(|tool| row(tool)).collect();
        out.rows(&["NAME", "DESCRIPTION"], &rows)?;
    }
    for error in failed {
        out.warn(error["message"].as_str().unwrap_or("?"), error["hint"].as_str())?;
    }
    for server in offer["unapproved"].as_array().into_iter().flatten() {
        let (name, count) = (server["server"].as_str().unwrap_or("?"), &server["tools"]);
        let then = if server["withheld"] == true { "withheld" } else { "marked" };
        let tools = if *count == 1 { "tool" } else { "tools" };
        let message = format!("{count} {tools} of `{name}` not as approved, and {then}");
        out.warn(&message, Some(&format!("toolcrib approve {name}")))?;
    }
    if found.is_empty() && failed.is_empty() {
        out.say(match query {
            Some(_) => "no tool matches",
            None => "no server offers a tool",
        })?;
    }
    Ok(if all.is_empty() && !failed.is_empty() { Exit::Unreachable } else { Exit::Fine })
}

fn matches(tool: &Value, query: &str) -> bool {
    let query = query.to_lowercase();
    let texts = [&tool["name"], &tool["tool"], &tool["description"]];
    texts.into_iter().filter_map(Value::as_str).any(|text| text.to_lowercase().contains(&query))
}

fn row(tool: &Value) -> Vec<String> {
    let description = tool["description"].as_str().unwrap_or_default();
    let first = description.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let change = tool["change"].as_str().map_or_else(String::new, |change| format!("[{change}] "));
    vec![tool["name"].as_str().unwrap_or_default().to_owned(), change + &first.replace('\t', " ")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_query_looks_at_names_and_descriptions_whatever_their_case() {
        let tool =
            json!({"name": "git__git_log", "tool": "git_log", "description": "\n  Shows Commits.\nMore."});
        assert!(matches(&tool, "GIT_l") && matches(&tool, "commit"));
        assert!(!matches(&tool, "push"));
        assert_eq!(row(&tool), ["git__git_log", "Shows Commits."]);
        let changed = json!({"name": "git__git_log", "description": "Shows.", "change": "changed"});
        assert_eq!(row(&changed), ["git__git_log", "[changed] Shows."]);
    }
}
