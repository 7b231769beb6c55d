//! Classifies requests: which methods exist in which era and scope, and which target their parameters name.

use std::borrow::Cow;

use toolcrib::protocol::era::client::{
    DISCOVER, INITIALIZE, LISTEN, PING, SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE,
};
use toolcrib::protocol::era::extensions::{LIST_SKILLS, is_extension_request};
use toolcrib::protocol::json::object::Object;
use toolcrib::protocol::jsonrpc::{ResponsePayload, code};
use toolcrib::protocol::member_names;
use toolcrib::protocol::versions::Era;
use toolcrib::{ListKind, Selector};

use super::{CatalogScope, reject};

/// Methods that are routed to a server by one of their parameters.
const ROUTED: [&str; 9] = [
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

/// The way a request is handled.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum MethodAction {
    /// Forwarded to a server.
    Forward(Selector),
    /// Forwarded to the server that has the extension of this method.
    Extension,
    /// Answered with the skills of all servers.
    ListSkills,
    /// Answered from the catalog.
    List(ListKind),
    /// Answered with the tasks of the caller, which their servers are asked for.
    ListTasks,
    /// Answered with the gateway's own capabilities.
    Discover,
    /// Answered with an empty result.
    Empty,
}

/// Returns whether a method exists in an era.
fn exists_in(method: &str, era: Era) -> bool {
    match method {
        INITIALIZE | PING | SET_LEVEL | SUBSCRIBE | UNSUBSCRIBE | "tasks/result" | "tasks/list" => {
            era == Era::Session
        }
        DISCOVER | LISTEN | "tasks/update" => era == Era::Stateless,
        _ => true,
    }
}

/// Returns whether a request may be forwarded to a server.
pub(super) fn is_forwarded(era: Era, method: &str) -> bool {
    (ROUTED.contains(&method) || is_extension_request(method)) && exists_in(method, era)
}

/// Classifies a request; the error is the response to an unknown method or to invalid parameters.
pub(super) fn classify(
    view: &CatalogScope,
    era: Era,
    method: &str,
    params: &Object,
) -> Result<MethodAction, ResponsePayload> {
    if !exists_in(method, era) {
        return Err(method_not_found());
    }
    if !is_forwarded(era, method) {
        // The pipeline checks forwarded requests.
        member_names::check_params(params)
            .map_err(|lookalike| reject(code::INVALID_PARAMS, &lookalike.to_string()))?;
    }
    if let Some(kind) = ListKind::from_method(method) {
        return Ok(MethodAction::List(kind));
    }
    match method {
        DISCOVER => return Ok(MethodAction::Discover),
        PING => return Ok(MethodAction::Empty),
        _ => {}
    }
    if !is_forwarded(era, method) {
        return Err(method_not_found());
    }
    if is_extension_request(method) {
        return Ok(match (view, method) {
            (CatalogScope::All, LIST_SKILLS) => MethodAction::ListSkills,
            _ => MethodAction::Extension,
        });
    }
    let selector = match (view, parse_selector(method, params)?) {
        (CatalogScope::One(server), Some(selector)) => {
            Selector::OnServer(server.clone(), into_name(selector))
        }
        (CatalogScope::One(server), None) => Selector::OnServer(server.clone(), method.to_owned()),
        (CatalogScope::All, Some(selector)) => selector,
        (CatalogScope::All, None) if method == "tasks/list" => return Ok(MethodAction::ListTasks),
        (CatalogScope::All, None) => return Err(method_not_found()),
    };
    Ok(MethodAction::Forward(selector))
}

/// Returns the error that most servers send for an unknown method.
pub(super) fn method_not_found() -> ResponsePayload {
    reject(code::METHOD_NOT_FOUND, "Method not found")
}

/// Parses the target that the parameters name; `None` for a method whose parameters name none.
fn parse_selector(method: &str, params: &Object) -> Result<Option<Selector>, ResponsePayload> {
    let text = |object: &Object, key: &str, expected: &str| {
        let text = object.get_string(key).map(Cow::into_owned);
        text.ok_or_else(|| reject(code::INVALID_PARAMS, &format!("`params.{key}` must be {expected}")))
    };
    Ok(Some(match method {
        "tools/call" => {
            let name = text(params, "name", "the name of a tool")?;
            check_arguments(params)?;
            Selector::Tool(name)
        }
        "prompts/get" => {
            let name = text(params, "name", "the name of a prompt")?;
            check_arguments(params)?;
            Selector::Prompt(name)
        }
        "resources/read" => Selector::Resource(text(params, "uri", "the URI of a resource")?),
        "completion/complete" => {
            let reference = params.get("ref").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
            match reference.get_string("type").as_deref() {
                Some("ref/prompt") => Selector::Prompt(text(&reference, "name", "the name of a prompt")?),
                Some("ref/resource") => {
                    Selector::Resource(text(&reference, "uri", "the URI template of a resource")?)
                }
                _ => {
                    return Err(reject(
                        code::INVALID_PARAMS,
                        "`params.ref` must name a prompt or a resource",
                    ));
                }
            }
        }
        "tasks/get" | "tasks/update" | "tasks/result" | "tasks/cancel" => {
            Selector::Task(text(params, "taskId", "the id of a task")?)
        }
        _ => return Ok(None),
    }))
}

fn check_arguments(params: &Object) -> Result<(), ResponsePayload> {
    match params.get("arguments") {
        Some(raw) if raw.first() != Some(&b'{') && &**raw != b"null" => {
            Err(reject(code::INVALID_PARAMS, "`params.arguments` must be an object"))
        }
        _ => Ok(()),
    }
}

fn into_name(selector: Selector) -> String {
    selector.into_name()
}

/// Returns the method without a copy if it is a routed one.
pub(super) fn to_static(method: &str) -> Cow<'static, str> {
    match ROUTED.iter().find(|routed| **routed == method) {
        Some(routed) => Cow::Borrowed(routed),
        None => Cow::Owned(method.to_owned()),
    }
}
