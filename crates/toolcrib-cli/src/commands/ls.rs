//! `toolcrib ls` and `toolcrib show S`: the servers that are declared, on or off.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::config::{Config, Declared, Origin, Setting};
use toolcrib::spelling::nearest;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;

/// Lists every declared server.
pub(crate) fn run(place: &Place, out: &mut Output) -> Result<Exit> {
    let config = place.read()?;
    if out.json {
        out.value(&config.declared.iter().map(declared_json).collect())?;
        return Ok(Exit::Fine);
    }
    let row = |server: &Declared| {
        let on = if server.active { "on" } else { "off" };
        let (name, transport) = (server.id.to_string(), server.transport().to_owned());
        vec![name, on.to_owned(), transport, server.target(), server.reason.clone()]
    };
    let rows: Vec<Vec<String>> = config.declared.iter().map(row).collect();
    out.rows(&["NAME", "HERE", "TYPE", "WHERE", "WHY"], &rows)?;
    if rows.is_empty() {
        out.say("no server is declared; `toolcrib add NAME -- COMMAND` adds one")?;
    }
    Ok(Exit::Fine)
}

/// Shows one server with everything that is said of it.
pub(crate) fn show(server: &str, place: &Place, out: &mut Output) -> Result<Exit> {
    if !place.sources().exist() {
        return Err(place.no_config().into());
    }
    let draft = place.sources().draft();
    let config = draft.resolve(&place.sources().facts(&draft));
    let server = find(&config, server)?;
    let settings = draft.settings(&server.id);
    if out.json {
        let mut shown = declared_json(server);
        shown["values"] = settings.iter().map(setting_json).collect();
        out.value(&shown)?;
        return Ok(Exit::Fine);
    }
    out.line(&format!("{}: {}", server.id, server.reason))?;
    settings.iter().try_for_each(|setting| tell(setting, out))?;
    Ok(Exit::Fine)
}

/// One value with the place where it is written, and those it took the place of.
pub(super) fn tell(setting: &Setting, out: &mut Output) -> std::io::Result<()> {
    out.line(&format!("  {} = {}  ({})", setting.key, setting.value, place_of(&setting.origin)))?;
    for (value, origin) in setting.overrides.iter().rev() {
        out.line(&format!("    instead of {value}  ({})", place_of(origin)))?;
    }
    Ok(())
}

/// A declared server by name.
pub(super) fn find<'a>(config: &'a Config, name: &str) -> Result<&'a Declared, Failure> {
    let found = config.declared.iter().find(|server| server.id.as_str() == name);
    found.ok_or_else(|| {
        let failure = Failure::usage(format!("no server is called `{name}`"));
        match nearest(name, config.declared.iter().map(|server| server.id.as_str())) {
            Some(near) => failure.hint(format!("did you mean `{near}`?")),
            None => failure.hint("toolcrib ls"),
        }
    })
}

pub(super) fn place_of(origin: &Origin) -> String {
    format!("{}:{}", origin.file.display(), origin.line)
}

fn declared_json(server: &Declared) -> Value {
    json!({
        "name": server.id.as_str(),
        "active": server.active,
        "enabled": server.enabled,
        "transport": server.transport(),
        "endpoint": server.target(),
        "tags": server.wanted.as_ref().map(toolcrib::config::When::wanted).unwrap_or_default(),
        "origin": {"file": server.origin.file.display().to_string(), "line": server.origin.line},
        "reason": server.reason,
    })
}

pub(super) fn setting_json(setting: &Setting) -> Value {
    let overrides = setting.overrides.iter().map(|(value, origin)| {
        json!({"value": value, "file": origin.file.display().to_string(), "line": origin.line})
    });
    json!({
        "key": setting.key,
        "value": setting.value,
        "file": setting.origin.file.display().to_string(),
        "line": setting.origin.line,
        "overrides": overrides.collect::<Vec<_>>(),
    })
}
