//! `toolcrib ls` and `toolcrib show SERVER`: the declared servers.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::config::{Config, DeclaredServer, DeclaredValue, Origin};

use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::output::Output;
use crate::paths::Paths;
use crate::report::declared::{find_declared, is_on, reason, value_json};
use crate::report::list_to_json;
use crate::report::server::ToolChangeReport;

/// Lists every declared server.
pub(crate) fn run(paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    let config = paths.read_config()?;
    if out.json {
        let declared = config.declared.iter().map(|server| declared_json(server, &config, paths));
        out.print_json(&declared.collect())?;
        return check_refused(&config);
    }
    let title_of = |server: &DeclaredServer| server.card.as_ref()?.title.clone();
    let has_titles = config.declared.iter().any(|server| title_of(server).is_some());
    let row = |server: &DeclaredServer| {
        let active = if is_on(server, &config) { "on" } else { "off" };
        let mut row = vec![
            server.id.to_string(),
            active.to_owned(),
            transport(server, &config, paths).to_owned(),
            server.command_or_url(),
            reason(server, &config).to_owned(),
        ];
        if has_titles {
            row.push(title_of(server).unwrap_or_default());
        }
        row
    };
    let rows: Vec<Vec<String>> = config.declared.iter().map(row).collect();
    let mut headings = vec!["NAME", "ACTIVE", "TYPE", "ENDPOINT", "REASON"];
    if has_titles {
        headings.push("TITLE");
    }
    out.print_table(&headings, &rows)?;
    if rows.is_empty() {
        out.print_note("no server is declared; `toolcrib add NAME -- COMMAND` adds one")?;
    }
    check_refused(&config)
}

/// Fails with the problems of a config that is refused as a whole, as the commands that use it do.
pub(super) fn check_refused(config: &Config) -> Result<ExitStatus> {
    match config.is_refused() {
        true => Err(CommandError::invalid_config(config).into()),
        false => Ok(ExitStatus::Success),
    }
}

/// Shows one server with all its values and their origins.
pub(crate) fn show(server: &str, paths: &Paths, out: &mut Output) -> Result<ExitStatus> {
    if !paths.sources().any_exists() {
        return Err(paths.missing_config_error().into());
    }
    let layered = paths.sources().read_layers();
    let config = layered.resolve(&paths.sources().gather_facts(&layered));
    let server = find_declared(&config, server)?;
    let values = layered.server_values(&server.id);
    let unapproved = unapproved(server, &config, paths);
    if out.json {
        let mut object = declared_json(server, &config, paths);
        object["values"] = values.iter().map(value_json).collect();
        object["unapproved"] = list_to_json(&unapproved);
        out.print_json(&object)?;
        return check_refused(&config);
    }
    out.print_line(&format!("{}: {}", server.id, reason(server, &config)))?;
    if let Some(card) = &server.card {
        let texts = [&card.title, &card.description];
        texts.into_iter().flatten().try_for_each(|text| out.print_line(&format!("  {text}")))?;
    }
    values.iter().try_for_each(|value| print_value(value, out))?;
    for changed in &unapproved {
        let message = format!("{} differs from what was approved ({})", changed.label(), changed.change);
        out.warn(&message, Some(&format!("toolcrib approve {}", server.id)))?;
    }
    check_refused(&config)
}

/// Returns what a server offered when it was last listed and that differs from what was approved.
fn unapproved(server: &DeclaredServer, config: &Config, paths: &Paths) -> Vec<ToolChangeReport> {
    let Some(spec) = config.roster.get(&server.id) else { return Vec::new() };
    let found = toolcrib::crib::remembered_unapproved(spec, paths.state_dir(), &paths.pins_dir());
    found.iter().map(ToolChangeReport::new).collect()
}

/// Prints one value with its origin, and the values that it overrides.
pub(super) fn print_value(declared: &DeclaredValue, out: &mut Output) -> std::io::Result<()> {
    let origin = format_origin(&declared.origin);
    out.print_line(&format!("  {} = {}  ({origin})", declared.key, declared.value))?;
    for (value, origin) in declared.overrides.iter().rev() {
        out.print_line(&format!("    overrides {value}  ({})", format_origin(origin)))?;
    }
    print_replaced(&declared.replaces, out)?;
    for DeclaredValue { key, value, origin, .. } in &declared.withheld {
        out.print_line(&format!("    withholds {key} = {value}  ({})", format_origin(origin)))?;
    }
    Ok(())
}

/// Prints the values of another kind of endpoint that a value replaces, from near to far.
fn print_replaced(replaced: &[DeclaredValue], out: &mut Output) -> std::io::Result<()> {
    for DeclaredValue { key, value, origin, .. } in replaced {
        out.print_line(&format!("    replaces {key} = {value}  ({})", format_origin(origin)))?;
    }
    replaced.iter().try_for_each(|value| print_replaced(&value.replaces, out))
}

/// Formats an origin as `FILE:LINE`.
pub(super) fn format_origin(origin: &Origin) -> String {
    format!("{}:{}", origin.file.display(), origin.line)
}

/// Returns the transport of a server: the one that it turned out to have when it was last listed, else the declared one.
fn transport(server: &DeclaredServer, config: &Config, paths: &Paths) -> &'static str {
    let spec = config.roster.get(&server.id);
    let remembered = spec.and_then(|spec| toolcrib::crib::remembered_transport(spec, paths.state_dir()));
    remembered.unwrap_or_else(|| server.transport())
}

fn declared_json(server: &DeclaredServer, config: &Config, paths: &Paths) -> Value {
    json!({
        "name": server.id.as_str(),
        "active": is_on(server, config),
        "enabled": server.enabled,
        "transport": transport(server, config, paths),
        "endpoint": server.command_or_url(),
        "title": server.card.as_ref().and_then(|card| card.title.as_deref()),
        "description": server.card.as_ref().and_then(|card| card.description.as_deref()),
        "card_tags": server.card.as_ref().map(|card| card.tags.as_slice()).unwrap_or_default(),
        "tags": server.when.as_ref().map(toolcrib::config::TagCondition::required_tags).unwrap_or_default(),
        "origin": {"file": server.origin.file.display().to_string(), "line": server.origin.line},
        "reason": reason(server, config),
    })
}
