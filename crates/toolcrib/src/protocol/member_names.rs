//! Member names that some readers take for another name.
//!
//! Some JSON decoders ignore the case of member names, map `ſ` to `s`, or stop at a NUL. A message with both `name` and
//! `Name` would be judged by one and executed by the other, so such a member is refused.

use std::fmt;

use crate::protocol::era::{input, meta};
use crate::protocol::json::object::Object;

/// Members of the parameters of requests.
const PARAMS: &[&str] = &[
    "_meta",
    "argument",
    "arguments",
    "capabilities",
    "clientInfo",
    "context",
    "cursor",
    "level",
    "name",
    "notifications",
    "protocolVersion",
    "ref",
    input::INPUT_RESPONSES,
    input::REQUEST_STATE,
    "task",
    "taskId",
    "uri",
];

/// Members of `params._meta`.
const META: &[&str] = &[
    meta::PROTOCOL_VERSION,
    meta::CLIENT_CAPABILITIES,
    meta::CLIENT_INFO,
    meta::LOG_LEVEL,
    meta::SUBSCRIPTION_ID,
    meta::PROGRESS_TOKEN,
    "io.modelcontextprotocol/related-task",
    "traceparent",
    "tracestate",
    "baggage",
];

/// Members of a reference or an argument in a completion request.
const COMPLETION: &[&str] = &["type", "name", "uri", "value", "arguments"];

/// Members of the parameters of a task.
const TASK: &[&str] = &["ttl", "taskId"];

/// Members of results that decide how the gateway treats a result.
const RESULT: &[&str] = &[
    "_meta",
    "resultType",
    "inputRequests",
    input::REQUEST_STATE,
    "task",
    "taskId",
    "ttlMs",
    "cacheScope",
    "content",
    "structuredContent",
    "isError",
];

/// Members of a page of a list.
const PAGE: &[&str] =
    &["_meta", "tools", "prompts", "resources", "resourceTemplates", "nextCursor", "ttlMs", "cacheScope"];

/// Members of the definition of a tool, prompt, resource or resource template.
const DEFINITION: &[&str] = &[
    "_meta",
    "name",
    "title",
    "description",
    "inputSchema",
    "outputSchema",
    "annotations",
    "execution",
    "icons",
    "arguments",
    "uri",
    "uriTemplate",
    "mimeType",
    "size",
];

/// A member whose name is not known, but which some readers take for a known one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lookalike {
    /// The member as written, with the path to it.
    pub member: String,
    /// The name that it can be mistaken for.
    pub known: &'static str,
}

impl fmt::Display for Lookalike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let member = self.member.escape_debug();
        write!(f, "the member `{member}` is refused: some readers take it for `{}`", self.known)
    }
}

impl std::error::Error for Lookalike {}

/// Checks the parameters of a request, and the objects in them that the protocol defines. The content of `arguments` is the
/// tool's own.
///
/// # Errors
/// Returns the first member that can be mistaken for a known one.
pub fn check_params(params: &Object) -> Result<(), Lookalike> {
    check(params, "params", PARAMS)?;
    let nested =
        [("ref", COMPLETION), ("argument", COMPLETION), ("context", COMPLETION), ("task", TASK)].into_iter();
    for (member, known) in nested {
        let Some(raw) = params.get(member) else { continue };
        if let Ok(object) = Object::parse(raw) {
            check(&object, &format!("params.{member}"), known)?;
        }
    }
    Ok(())
}

/// Checks the metadata of a request.
///
/// # Errors
/// Returns the first member that can be mistaken for a known one.
pub(crate) fn check_meta(meta: &Object) -> Result<(), Lookalike> {
    check(meta, "params._meta", META)
}

/// Checks the members of a result that decide how it is treated.
///
/// # Errors
/// Returns the first member that can be mistaken for a known one.
pub(crate) fn check_result(result: &Object) -> Result<(), Lookalike> {
    check(result, "result", RESULT)
}

/// Checks a page of a list.
///
/// # Errors
/// Returns the first member that can be mistaken for a known one.
pub(crate) fn check_page(page: &Object) -> Result<(), Lookalike> {
    check(page, "result", PAGE)
}

/// Checks the definition of an item.
///
/// # Errors
/// Returns the first member that can be mistaken for a known one.
pub(crate) fn check_definition(definition: &Object) -> Result<(), Lookalike> {
    check(definition, "definition", DEFINITION)
}

fn check(object: &Object, path: &str, known: &[&'static str]) -> Result<(), Lookalike> {
    for name in object.uncommon_names() {
        if known.contains(&name) {
            continue;
        }
        if let Some(known) = known.iter().find(|known| can_be_read_as(name, known)) {
            return Err(Lookalike { member: format!("{path}.{name}"), known });
        }
    }
    Ok(())
}

/// Returns whether some readers take one name for the other.
fn can_be_read_as(name: &str, known: &str) -> bool {
    // Readers in C stop at the first NUL.
    let until_nul = name.split('\0').next().unwrap_or_default();
    folded(name).eq(folded(known)) || folded(until_nul).eq(folded(known))
}

/// Returns the characters of a name as the most tolerant readers compare them: without case, control characters, spaces,
/// invisible characters, and separators between words.
fn folded(name: &str) -> impl Iterator<Item = char> {
    let is_separator = |index: usize, char: char| index > 0 && matches!(char, '_' | '-');
    name.char_indices()
        .filter(move |(index, char)| !is_ignored(*char) && !is_separator(*index, *char))
        .map(|(_, char)| fold(char))
}

fn is_ignored(char: char) -> bool {
    char.is_control()
        || char.is_whitespace()
        || matches!(char, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
        || matches!(char, '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

fn fold(char: char) -> char {
    match char {
        'ſ' => 's',
        '\u{212a}' => 'k',
        'ı' | 'İ' => 'i',
        // Full-width forms of ASCII.
        '\u{ff01}'..='\u{ff5e}' => {
            let ascii = char::from_u32(u32::from(char) - 0xfee0).unwrap_or(char);
            ascii.to_ascii_lowercase()
        }
        _ => char.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(&Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn refused(text: &str) -> Option<String> {
        check_params(&object(text)).err().map(|lookalike| lookalike.member)
    }

    #[test]
    fn lookalike_of_a_known_member_is_refused() {
        for (text, member) in [
            (r#"{"name":"a","Name":"b"}"#, "params.Name"),
            (r#"{"NAME":"b"}"#, "params.NAME"),
            (r#"{"name":"a","name\u0000":"b"}"#, "params.name\0"),
            (r#"{"name":"a","name\u0000x":"b"}"#, "params.name\0x"),
            (r#"{"argument\u017f":{}}"#, "params.argumentſ"),
            (r#"{"tas\u212a":{}}"#, "params.tas\u{212a}"),
            (r#"{"task_id":"1"}"#, "params.task_id"),
            (r#"{"taskid":"1"}"#, "params.taskid"),
            (r#"{"ur\u200bi":"1"}"#, "params.ur\u{200b}i"),
            (r#"{"\uff4eame":"1"}"#, "params.\u{ff4e}ame"),
            (r#"{"ref":{"type":"ref/prompt","name":"a","Name":"b"}}"#, "params.ref.Name"),
            (r#"{"argument":{"name":"a","Value":"b"}}"#, "params.argument.Value"),
            (r#"{"task":{"TTL":1}}"#, "params.task.TTL"),
        ] {
            assert_eq!(refused(text).as_deref(), Some(member), "{text}");
        }
    }

    #[test]
    fn other_members_and_the_content_of_arguments_pass() {
        for text in [
            r#"{"name":"a","arguments":{"Name":"b","NAME":1,"uri":2,"URI":3},"_meta":{"Name":1}}"#,
            r#"{"name":"a","extra":1,"names":2,"nam":3,"meta":4,"nаme":5,"x-name":6}"#,
            r#"{"ref":"Name","argument":7}"#,
            "{}",
        ] {
            assert_eq!(refused(text), None, "{text}");
        }
    }

    #[test]
    fn members_of_results_and_definitions_are_checked() {
        assert!(check_result(&object(r#"{"content":[],"ResultType":"input_required"}"#)).is_err());
        assert!(check_page(&object(r#"{"tools":[],"NextCursor":"x"}"#)).is_err());
        assert!(check_definition(&object(r#"{"name":"a","Description":"evil"}"#)).is_err());
        assert!(check_meta(&object(r#"{"ProgressToken":1}"#)).is_err());
        assert!(check_definition(&object(r#"{"name":"a","_meta":{"Name":1},"vendor":1}"#)).is_ok());
    }

    #[test]
    fn message_names_the_member_visibly() {
        let lookalike = check_params(&object(r#"{"name\u0000":"b"}"#)).unwrap_err();
        assert_eq!(
            lookalike.to_string(),
            r"the member `params.name\0` is refused: some readers take it for `name`"
        );
    }

    proptest! {
        #[test]
        fn any_case_of_a_known_member_is_refused(index in 0..PARAMS.len(), upper: Vec<bool>, junk in "[\\x00-\\x1f]{0,3}") {
            let known = PARAMS[index];
            let flags = upper.into_iter().chain(std::iter::repeat(false));
            let spelled: String = known.chars().zip(flags)
                .map(|(char, upper)| if upper { char.to_ascii_uppercase() } else { char.to_ascii_lowercase() })
                .collect();
            let spelled = format!("{spelled}{junk}");
            let params = object(&serde_json::json!({(spelled.as_str()): 1}).to_string());
            prop_assert_eq!(check_params(&params).is_ok(), spelled == known);
        }
    }
}
