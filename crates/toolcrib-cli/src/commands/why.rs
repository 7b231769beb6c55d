//! `toolcrib why S`: why a server is on or off here, and who said what of it. Nothing is started or asked.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::config::When;

use super::ls;
use crate::exit::Exit;
use crate::output::Output;
use crate::place::Place;

/// Explains one server.
pub(crate) fn run(server: &str, place: &Place, out: &mut Output) -> Result<Exit> {
    if !place.sources().exist() {
        return Err(place.no_config().into());
    }
    let draft = place.sources().draft();
    let config = draft.resolve(&place.sources().facts(&draft));
    let server = ls::find(&config, server)?;
    let settings = draft.settings(&server.id);
    let active: Vec<&str> = config.tags.active.keys().map(String::as_str).collect();
    if out.json {
        let scopes = config.scopes.iter().map(|scope| {
            json!({"name": scope.name, "matched": scope.matched, "fact": scope.fact, "tags": scope.tags,
                   "file": scope.origin.file.display().to_string(), "line": scope.origin.line})
        });
        out.value(&json!({
            "name": server.id.as_str(),
            "active": server.active,
            "reason": server.reason,
            "scopes": scopes.collect::<Vec<_>>(),
            "tags": {"active": active, "wanted": server.wanted.as_ref().map(when_json)},
            "values": settings.iter().map(ls::setting_json).collect::<Vec<_>>(),
        }))?;
        return Ok(Exit::Fine);
    }
    out.line(&format!("{}: {}", server.id, server.reason))?;
    if let Some(wanted) = &server.wanted {
        out.line(&format!("wants: {}", when_words(wanted)))?;
        out.line(&format!("active tags: {}", active.join(", ")))?;
    }
    for scope in &config.scopes {
        let matches = if scope.matched { "matches" } else { "does not match" };
        let tags = scope.tags.join(", ");
        let place = ls::place_of(&scope.origin);
        out.line(&format!("scope {} {matches}: {} [{tags}]  ({place})", scope.name, scope.fact))?;
    }
    out.line("values:")?;
    settings.iter().try_for_each(|setting| ls::tell(setting, out))?;
    Ok(Exit::Fine)
}

fn when_json(when: &When) -> Value {
    json!({"any": when.any, "all": when.all, "not": when.not})
}

fn when_words(when: &When) -> String {
    let any = when.any.as_ref().map(|tags| format!("any of [{}]", tags.join(", ")));
    let all = (!when.all.is_empty()).then(|| format!("all of [{}]", when.all.join(", ")));
    let not = (!when.not.is_empty()).then(|| format!("none of [{}]", when.not.join(", ")));
    [any, all, not].into_iter().flatten().collect::<Vec<_>>().join(" and ")
}
