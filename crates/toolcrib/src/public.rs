//! Gives what came back the names that clients of the whole crib know: of tasks, and of resources that two servers have.

use std::borrow::Cow;

use bytes::Bytes;

use crate::call::{Call, Outcome, Wanted};
use crate::catalog::{Catalog, Target};
use crate::tasks::Tasks;
use crate::wire::message::Answer;
use crate::wire::object::{self, Object, elements};

/// The outcome under public names; whoever asked one server by its own names gets its own bytes.
/// Tasks that it tells of are noted.
pub(crate) fn named(mut outcome: Outcome, call: &Call, target: &Target, tasks: &Tasks) -> Outcome {
    let Answer::Result(result) = &mut outcome.answer else { return outcome };
    let makes_task = call.method == "tools/call" && may_make_a_task(call);
    if makes_task && let Some(task) = task_in(result) {
        tasks.note(&target.server, &task, &target.name);
    }
    let renamed = match &call.wanted {
        Wanted::Resource(asked) if call.method == "resources/read" && **asked != *target.name => {
            with_address(result, &target.name, asked)
        }
        Wanted::Task(_) => with_task(result, target),
        Wanted::Named(_) if makes_task => with_task(result, target),
        _ => None,
    };
    if let Some(renamed) = renamed {
        *result = renamed;
    }
    outcome
}

/// A server makes a task of a call only for a client that says it knows what that is.
fn may_make_a_task(call: &Call) -> bool {
    call.params.get("task").is_some()
        || memchr::memmem::find(call.client.abilities.raw(), b"/tasks\"").is_some()
}

/// The server's own name of the task that a result tells of.
fn task_in(result: &Bytes) -> Option<String> {
    let object = Object::parse(result).ok()?;
    let nested = object.get("task").and_then(|raw| Object::parse(raw).ok());
    nested.as_ref().unwrap_or(&object).string("taskId").map(Cow::into_owned)
}

fn with_task(result: &Bytes, target: &Target) -> Option<Bytes> {
    let mut object = Object::parse(result).ok()?;
    if let Some(mut nested) = object.get("task").and_then(|raw| Object::parse(raw).ok()) {
        nested.set("taskId", public_task(&nested, target)?);
        object.set("task", nested.to_bytes());
    } else {
        object.set("taskId", public_task(&object, target)?);
    }
    Some(object.to_bytes())
}

fn public_task(task: &Object, target: &Target) -> Option<Bytes> {
    Some(object::string(&Catalog::public_task(&target.server, &task.string("taskId")?)))
}

/// The contents at `own` under the address that was `asked` for.
fn with_address(result: &Bytes, own: &str, asked: &str) -> Option<Bytes> {
    let mut object = Object::parse(result).ok()?;
    let contents = elements(object.get("contents")?).ok()?;
    let renamed = |content: Bytes| match Object::parse(&content) {
        Ok(mut content) if content.string("uri").as_deref() == Some(own) => {
            content.set("uri", object::string(asked));
            content.to_bytes()
        }
        _ => content,
    };
    let contents: Vec<Bytes> = contents.into_iter().map(renamed).collect();
    object.set("contents", [b"[", &*contents.join(&b","[..]), b"]"].concat());
    Some(object.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::revision::Era;

    fn named_result(
        wanted: Wanted,
        method: &'static str,
        params: &'static str,
        result: &'static str,
    ) -> String {
        let params = Object::parse(&Bytes::from_static(params.as_bytes())).unwrap();
        let target = Target { server: "a".parse().unwrap(), name: "own:x".into() };
        let answer = Answer::Result(Bytes::from_static(result.as_bytes()));
        let outcome = Outcome { answer, era: Era::Stateless, server: None };
        let outcome = named(outcome, &Call::request(method, wanted, params), &target, &Tasks::default());
        String::from_utf8(outcome.raw().to_vec()).unwrap()
    }

    #[test]
    fn tasks_of_different_servers_have_different_names() {
        let task = Wanted::Task("a__7".into());
        assert_eq!(
            named_result(task, "tasks/get", "{}", r#"{"taskId":"7","n":1.0}"#),
            r#"{"taskId":"a__7","n":1.0}"#
        );
        let call = Wanted::Named("a__t".into());
        assert_eq!(
            named_result(call.clone(), "tools/call", r#"{"task":{}}"#, r#"{"task":{"taskId":"7"}}"#),
            r#"{"task":{"taskId":"a__7"}}"#
        );
        let plain = r#"{"taskId":"7"}"#;
        assert_eq!(named_result(call, "tools/call", "{}", plain), plain);
    }

    #[test]
    fn a_resource_is_shown_at_the_address_it_was_asked_for() {
        let result = r#"{"contents":[{"uri":"own:x","text":"1"},{"uri":"own:y"}]}"#;
        let shown = r#"{"contents":[{"uri":"toolcrib://a/own%3Ax","text":"1"},{"uri":"own:y"}]}"#;
        let asked = Wanted::Resource("toolcrib://a/own%3Ax".into());
        assert_eq!(named_result(asked, "resources/read", "{}", result), shown);
        assert_eq!(named_result(Wanted::Resource("own:x".into()), "resources/read", "{}", result), result);
    }
}
