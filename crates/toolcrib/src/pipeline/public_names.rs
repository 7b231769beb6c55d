//! Replaces a server's own names in results with public names: task ids, and URIs of resources that several servers have.

use std::borrow::Cow;

use bytes::Bytes;

use crate::call::Call;
use crate::catalog::Catalog;
use crate::catalog::results::publish_pages;
use crate::model::outcome::Outcome;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::pipeline::task_owners::TaskOwners;
use crate::protocol::era::extensions::{GET_SKILL, READ_DIRECTORY};
use crate::protocol::json::object::{self, Object, parse_array};
use crate::protocol::jsonrpc::ResponsePayload;

/// Returns the outcome with public names, and records a task that it creates. A call addressed to one server by its own
/// names keeps the server's bytes.
pub(crate) fn with_public_names(
    mut outcome: Outcome,
    call: &Call,
    target: &Target,
    tasks: &TaskOwners,
) -> Outcome {
    let ResponsePayload::Result(result) = &mut outcome.answer else { return outcome };
    let may_create_task = call.method == "tools/call" && allows_task(call);
    if may_create_task && let Some(task) = task_id(result) {
        tasks.record(target, &task, &call.caller);
    }
    let renamed = match &call.selector {
        Selector::Resource(requested) if call.method == "resources/read" && **requested != *target.name => {
            with_requested_uri(result, &target.name, requested)
        }
        Selector::Task(_) => with_public_task(result, target),
        Selector::Tool(_) if may_create_task => with_public_task(result, target),
        _ => None,
    };
    if let Some(renamed) = renamed {
        *result = renamed;
    }
    outcome
}

/// Returns the outcome with public addresses of pages, and of skills if the request was about them. A call addressed to one
/// server by its own names keeps the server's bytes.
pub(crate) fn with_public_uris(
    mut outcome: Outcome,
    call: &Call,
    target: &Target,
    catalog: &Catalog,
) -> Outcome {
    let server = &target.server;
    let is_about_skills = matches!(call.method(), GET_SKILL | READ_DIRECTORY);
    if matches!(call.selector, Selector::OnServer(..)) || !is_about_skills && !catalog.has_pages(server) {
        return outcome;
    }
    let ResponsePayload::Result(result) = &mut outcome.answer else { return outcome };
    let published = match is_about_skills {
        true => catalog.publish_skill_uris(server, call.method(), result),
        false => publish_pages(server, call.name(), result),
    };
    if let Some(published) = published {
        *result = published;
    }
    outcome
}

/// Returns whether the client declares support for tasks; without it a server does not create one.
fn allows_task(call: &Call) -> bool {
    call.params.get("task").is_some()
        || memchr::memmem::find(call.client.capabilities.as_json(), b"/tasks\"").is_some()
}

/// Returns the server's own id of the task in a result.
fn task_id(result: &Bytes) -> Option<String> {
    let object = Object::parse(result).ok()?;
    let nested = object.get("task").and_then(|raw| Object::parse(raw).ok());
    nested.as_ref().unwrap_or(&object).get_string("taskId").map(Cow::into_owned)
}

fn with_public_task(result: &Bytes, target: &Target) -> Option<Bytes> {
    let mut object = Object::parse(result).ok()?;
    if let Some(mut nested) = object.get("task").and_then(|raw| Object::parse(raw).ok()) {
        nested.set_unchecked("taskId", public_task(&nested, target)?);
        object.set_unchecked("task", nested.to_bytes());
    } else {
        object.set_unchecked("taskId", public_task(&object, target)?);
    }
    Some(object.to_bytes())
}

fn public_task(task: &Object, target: &Target) -> Option<Bytes> {
    Some(object::to_json_string(&Catalog::public_task_id(&target.server, &task.get_string("taskId")?)))
}

/// Returns the contents with the URI `own` replaced by the requested one.
fn with_requested_uri(result: &Bytes, own: &str, requested: &str) -> Option<Bytes> {
    let mut object = Object::parse(result).ok()?;
    let contents = parse_array(object.get("contents")?).ok()?;
    let renamed = |content: Bytes| match Object::parse(&content) {
        Ok(mut content) if content.get_string("uri").as_deref() == Some(own) => {
            content.set_unchecked("uri", object::to_json_string(requested));
            content.to_bytes()
        }
        _ => content,
    };
    let contents: Vec<Bytes> = contents.into_iter().map(renamed).collect();
    object.set_unchecked("contents", [b"[", &*contents.join(&b","[..]), b"]"].concat());
    Some(object.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::versions::Era;

    fn renamed(
        selector: Selector,
        method: &'static str,
        params: &'static str,
        result: &'static str,
    ) -> String {
        let params = Object::parse(&Bytes::from_static(params.as_bytes())).unwrap();
        let target = Target { server: "a".parse().unwrap(), name: "own:x".into() };
        let answer = ResponsePayload::Result(Bytes::from_static(result.as_bytes()));
        let outcome = Outcome { answer, era: Era::Stateless, server: None, server_info: None };
        let outcome = with_public_names(
            outcome,
            &Call::request(method, selector, params),
            &target,
            &TaskOwners::default(),
        );
        String::from_utf8(outcome.raw().to_vec()).unwrap()
    }

    #[test]
    fn task_ids_get_the_server_prefix() {
        let task = Selector::Task("a__7".into());
        assert_eq!(
            renamed(task, "tasks/get", "{}", r#"{"taskId":"7","n":1.0}"#),
            r#"{"taskId":"a__7","n":1.0}"#
        );
        let call = Selector::Tool("a__t".into());
        assert_eq!(
            renamed(call.clone(), "tools/call", r#"{"task":{}}"#, r#"{"task":{"taskId":"7"}}"#),
            r#"{"task":{"taskId":"a__7"}}"#
        );
        let plain = r#"{"taskId":"7"}"#;
        assert_eq!(renamed(call, "tools/call", "{}", plain), plain);
    }

    #[test]
    fn resource_keeps_the_requested_uri() {
        let result = r#"{"contents":[{"uri":"own:x","text":"1"},{"uri":"own:y"}]}"#;
        let expected = r#"{"contents":[{"uri":"toolcrib://a/own%3Ax","text":"1"},{"uri":"own:y"}]}"#;
        let requested = Selector::Resource("toolcrib://a/own%3Ax".into());
        assert_eq!(renamed(requested, "resources/read", "{}", result), expected);
        assert_eq!(renamed(Selector::Resource("own:x".into()), "resources/read", "{}", result), result);
    }
}
