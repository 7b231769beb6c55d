//! What a request means here: which methods there are in which era and view, and whom their parameters name.

use std::borrow::Cow;

use toolcrib::wire::dialect::client::{DISCOVER, HELLO, LISTEN, PING, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE};
use toolcrib::wire::message::{Answer, code};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;
use toolcrib::{Kind, Wanted};

use super::{View, refuse};

/// Methods that go to a server by one of their parameters.
const NAMED: [&str; 9] = [
    "tools/call",
    "prompts/get",
    "resources/read",
    "completion/complete",
    "tasks/get",
    "tasks/update",
    "tasks/result",
    "tasks/cancel",
    "tasks/list",
];

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meant {
    /// A server is to be asked.
    Goes(Wanted),
    /// The catalog knows.
    List(Kind),
    /// Who are we, and what is here?
    Discover,
    /// Nothing but an answer.
    Nothing,
}

/// Methods that only a session has, and those that only the stateless era has.
fn is_of(method: &str, era: Era) -> bool {
    match method {
        HELLO | PING | SET_LEVEL | SUBSCRIBE | UNSUBSCRIBE | "tasks/result" | "tasks/list" => {
            era == Era::Session
        }
        DISCOVER | LISTEN | "tasks/update" => era == Era::Stateless,
        _ => true,
    }
}

/// Methods that the frontends answer with what they remember of the client.
fn is_ours(method: &str) -> bool {
    matches!(method, HELLO | PING | SET_LEVEL | SUBSCRIBE | UNSUBSCRIBE | DISCOVER | LISTEN)
}

pub(super) fn goes_out(view: &View, era: Era, method: &str) -> bool {
    let known = match view {
        View::All => NAMED.contains(&method),
        // What wants no answer by its name is no request, whoever is asked.
        View::One(_) => {
            !is_ours(method) && Kind::of_method(method).is_none() && !method.starts_with("notifications/")
        }
    };
    known && is_of(method, era)
}

/// Reads a request; `Err` is the answer to one that means nothing here.
pub(super) fn meant(view: &View, era: Era, method: &str, params: &Object) -> Result<Meant, Answer> {
    if !is_of(method, era) {
        return Err(unknown(method));
    }
    if let Some(kind) = Kind::of_method(method) {
        return Ok(Meant::List(kind));
    }
    match method {
        DISCOVER => return Ok(Meant::Discover),
        PING => return Ok(Meant::Nothing),
        _ => {}
    }
    if !goes_out(view, era, method) {
        return Err(unknown(method));
    }
    let named = named(method, params)?;
    match (view, named) {
        (View::One(server), Some(named)) => Ok(Meant::Goes(Wanted::On(server.clone(), named_text(named)))),
        (View::One(server), None) => Ok(Meant::Goes(Wanted::On(server.clone(), method.to_owned()))),
        (View::All, Some(named)) => Ok(Meant::Goes(named)),
        (View::All, None) => Err(unknown(method)),
    }
}

fn unknown(method: &str) -> Answer {
    refuse(code::METHOD_NOT_FOUND, &format!("no method `{method}` here"))
}

/// Whom the parameters name; `None` for a method that names nobody.
fn named(method: &str, params: &Object) -> Result<Option<Wanted>, Answer> {
    let text = |of: &Object, key: &str, what: &str| {
        let text = of.string(key).map(Cow::into_owned);
        text.ok_or_else(|| refuse(code::INVALID_PARAMS, &format!("`params.{key}` must be {what}")))
    };
    Ok(Some(match method {
        "tools/call" => {
            let name = text(params, "name", "the name of a tool")?;
            check_arguments(params)?;
            Wanted::Named(name)
        }
        "prompts/get" => {
            let name = text(params, "name", "the name of a prompt")?;
            check_arguments(params)?;
            Wanted::Prompt(name)
        }
        "resources/read" => Wanted::Resource(text(params, "uri", "the address of a resource")?),
        "completion/complete" => {
            let reference = params.get("ref").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
            match reference.string("type").as_deref() {
                Some("ref/prompt") => Wanted::Prompt(text(&reference, "name", "the name of a prompt")?),
                Some("ref/resource") => Wanted::Resource(text(&reference, "uri", "the text of a template")?),
                _ => {
                    return Err(refuse(
                        code::INVALID_PARAMS,
                        "`params.ref` must name a prompt or a resource",
                    ));
                }
            }
        }
        "tasks/get" | "tasks/update" | "tasks/result" | "tasks/cancel" => {
            Wanted::Task(text(params, "taskId", "the name of a task")?)
        }
        _ => return Ok(None),
    }))
}

fn check_arguments(params: &Object) -> Result<(), Answer> {
    match params.get("arguments") {
        Some(raw) if raw.first() != Some(&b'{') && &**raw != b"null" => {
            Err(refuse(code::INVALID_PARAMS, "`params.arguments` must be an object"))
        }
        _ => Ok(()),
    }
}

fn named_text(wanted: Wanted) -> String {
    match wanted {
        Wanted::Named(name) | Wanted::Prompt(name) | Wanted::Resource(name) | Wanted::Task(name) => name,
        Wanted::On(_, name) => name,
    }
}

/// The method without a copy, if it is one of the usual ones.
pub(super) fn fixed(method: &str) -> Cow<'static, str> {
    match NAMED.iter().find(|known| **known == method) {
        Some(known) => Cow::Borrowed(known),
        None => Cow::Owned(method.to_owned()),
    }
}
