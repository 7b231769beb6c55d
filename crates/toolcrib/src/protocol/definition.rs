//! Repairs definitions of tools, prompts and resources that official clients would reject.
//!
//! Clients check a list as a whole: one member of a wrong type and they show nothing of any server. A wrong member is
//! removed or replaced here; everything else keeps its bytes. Definitions without mistakes are not touched.

use bytes::Bytes;

use super::json::object::{self, Object, as_string, parse_array, to_json_string};
use super::list_kind::ListKind;

/// The schema of a tool that declares none.
const ANY_OBJECT: &[u8] = br#"{"type":"object"}"#;

/// A repaired definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RepairedDefinition {
    pub(crate) definition: Bytes,
    /// The mistakes, one per member.
    pub(crate) problems: Vec<String>,
}

/// The treatment of one member.
enum MemberFix {
    Keep,
    Remove,
    Replace(Bytes),
}

/// Checks a definition that has a name or URI. Returns `None` if clients accept it.
pub(crate) fn repair_definition(kind: ListKind, definition: &Object) -> Option<RepairedDefinition> {
    let mut repair = Repair::default();
    let mut fixed = repair.fix_members(definition, "", |repair, name, value| match (kind, name) {
        (_, "title" | "description") => repair.require(name, value, is_text),
        (_, "icons") => repair.fix_array(name, value, Repair::fix_icon),
        (_, "_meta") => repair.require(name, value, is_object),
        (ListKind::Tools, "inputSchema") => repair.fix_input_schema(value),
        (ListKind::Tools, "outputSchema") => repair.fix_object(name, value, fix_schema_member),
        (ListKind::Tools, "annotations") => repair.fix_object(name, value, fix_tool_annotation),
        (ListKind::Tools, "execution") => repair.fix_object(name, value, |repair, name, value| match name {
            "execution.taskSupport" => repair.require(name, value, is_task_support),
            _ => MemberFix::Keep,
        }),
        (ListKind::Prompts, "arguments") => repair.fix_array(name, value, Repair::fix_argument),
        (ListKind::Resources | ListKind::Templates, "mimeType") => repair.require(name, value, is_text),
        (ListKind::Resources | ListKind::Templates, "annotations") => {
            repair.fix_object(name, value, fix_resource_annotation)
        }
        (ListKind::Resources, "size") => repair.require(name, value, is_integer),
        _ => MemberFix::Keep,
    });
    let mut added: Vec<(&'static str, Bytes)> = Vec::new();
    if kind == ListKind::Tools && definition.get("inputSchema").is_none() {
        repair.report("`inputSchema` is missing");
        added.push(("inputSchema", Bytes::from_static(ANY_OBJECT)));
    }
    let has_title = definition.get_string("name").is_some();
    if matches!(kind, ListKind::Resources | ListKind::Templates) && !has_title {
        repair.report("`name` is missing or not a string");
        let uri = definition.get_string(kind.id_member()).unwrap_or_default();
        added.push(("name", to_json_string(&uri)));
    }
    if !added.is_empty() {
        let mut object = fixed.map_or_else(|| Ok(definition.clone()), |fixed| Object::parse(&fixed)).ok()?;
        added.into_iter().for_each(|(name, value)| object.set_unchecked(name, value));
        fixed = Some(object.to_bytes());
    }
    fixed.map(|definition| RepairedDefinition { definition, problems: repair.problems })
}

/// Collects the mistakes of one definition.
#[derive(Debug, Default)]
struct Repair {
    problems: Vec<String>,
}

impl Repair {
    fn report(&mut self, problem: impl Into<String>) {
        self.problems.push(problem.into());
    }

    /// Removes a member whose value has the wrong type.
    fn require(&mut self, path: &str, value: &Bytes, is_valid: fn(&Bytes) -> bool) -> MemberFix {
        if is_valid(value) {
            return MemberFix::Keep;
        }
        self.report(format!("`{path}` has a wrong type"));
        MemberFix::Remove
    }

    /// Applies `fix` to the members of an object; each is named by its path. Returns `None` if nothing changes.
    fn fix_members(
        &mut self,
        object: &Object,
        path: &str,
        mut fix: impl FnMut(&mut Self, &str, &Bytes) -> MemberFix,
    ) -> Option<Bytes> {
        let mut members = Vec::new();
        let mut has_changed = false;
        for (name, value) in object.iter() {
            let member_path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
            match fix(self, &member_path, value) {
                MemberFix::Keep => members.push((name, value.clone())),
                MemberFix::Remove => has_changed = true,
                MemberFix::Replace(value) => {
                    has_changed = true;
                    members.push((name, value));
                }
            }
        }
        has_changed.then(|| write_object(&members))
    }

    /// Removes a member that is not an object, otherwise fixes its members.
    fn fix_object(
        &mut self,
        path: &str,
        value: &Bytes,
        fix: impl FnMut(&mut Self, &str, &Bytes) -> MemberFix,
    ) -> MemberFix {
        if !is_object(value) {
            return self.require(path, value, is_object);
        }
        // Clients read an object with a repeated name, so it is left as it is.
        let Ok(object) = Object::parse(value) else { return MemberFix::Keep };
        self.fix_members(&object, path, fix).map_or(MemberFix::Keep, MemberFix::Replace)
    }

    /// Removes a member that is not an array, otherwise fixes its elements.
    fn fix_array(
        &mut self,
        path: &str,
        value: &Bytes,
        mut fix: impl FnMut(&mut Self, &str, &Bytes) -> MemberFix,
    ) -> MemberFix {
        let Ok(elements) = parse_array(value) else { return self.require(path, value, is_array) };
        let mut fixed: Vec<Bytes> = Vec::new();
        let mut has_changed = false;
        for element in elements {
            match fix(self, path, &element) {
                MemberFix::Keep => fixed.push(element),
                MemberFix::Remove => has_changed = true,
                MemberFix::Replace(element) => {
                    has_changed = true;
                    fixed.push(element);
                }
            }
        }
        if has_changed { MemberFix::Replace(write_array(&fixed)) } else { MemberFix::Keep }
    }

    fn fix_input_schema(&mut self, value: &Bytes) -> MemberFix {
        if !is_object(value) {
            self.report("`inputSchema` is not an object");
            return MemberFix::Replace(Bytes::from_static(ANY_OBJECT));
        }
        let fixed = self.fix_object("inputSchema", value, fix_schema_member);
        let current = match &fixed {
            MemberFix::Replace(fixed) => fixed,
            _ => value,
        };
        let Ok(mut schema) = Object::parse(current) else { return fixed };
        if schema.get_string("type").as_deref() == Some("object") {
            return fixed;
        }
        self.report("`inputSchema.type` is not `object`");
        schema.set_unchecked("type", Bytes::from_static(b"\"object\""));
        MemberFix::Replace(schema.to_bytes())
    }

    /// Removes an icon that clients reject.
    fn fix_icon(&mut self, path: &str, value: &Bytes) -> MemberFix {
        let is_valid = Object::parse(value).is_ok_and(|icon| {
            let is_optional = |name: &str, is_valid: fn(&Bytes) -> bool| icon.get(name).is_none_or(is_valid);
            icon.get("src").is_some_and(is_text)
                && is_optional("mimeType", is_text)
                && is_optional("sizes", is_text_array)
                && is_optional("theme", is_theme)
        });
        if is_valid {
            return MemberFix::Keep;
        }
        self.report(format!("an element of `{path}` is not an icon"));
        MemberFix::Remove
    }

    /// Repairs an argument of a prompt, or removes it if it has no name.
    fn fix_argument(&mut self, path: &str, value: &Bytes) -> MemberFix {
        let argument = Object::parse(value).ok();
        let Some(argument) = argument.filter(|argument| argument.get("name").is_some_and(is_text)) else {
            self.report(format!("an element of `{path}` has no name"));
            return MemberFix::Remove;
        };
        let fixed = self.fix_members(&argument, path, |repair, path, value| match path {
            "arguments.title" | "arguments.description" => repair.require(path, value, is_text),
            "arguments.required" => repair.require(path, value, is_boolean),
            _ => MemberFix::Keep,
        });
        fixed.map_or(MemberFix::Keep, MemberFix::Replace)
    }
}

/// Fixes `properties` and `required` of a schema.
fn fix_schema_member(repair: &mut Repair, path: &str, value: &Bytes) -> MemberFix {
    match path.rsplit_once('.').map_or(path, |(_, name)| name) {
        "properties" => repair.fix_object(path, value, |repair, path, schema| {
            if matches!(schema.first(), Some(b'{' | b'[')) {
                return MemberFix::Keep;
            }
            repair.report(format!("`{path}` is not an object"));
            let nothing = &**schema == b"false";
            MemberFix::Replace(Bytes::from_static(if nothing { br#"{"not":{}}"# } else { b"{}" }))
        }),
        "required" => repair.fix_array(path, value, |repair, path, name| {
            if is_text(name) {
                return MemberFix::Keep;
            }
            repair.report(format!("an element of `{path}` is not a string"));
            MemberFix::Remove
        }),
        _ => MemberFix::Keep,
    }
}

fn fix_tool_annotation(repair: &mut Repair, path: &str, value: &Bytes) -> MemberFix {
    match path {
        "annotations.title" => repair.require(path, value, is_text),
        "annotations.readOnlyHint"
        | "annotations.destructiveHint"
        | "annotations.idempotentHint"
        | "annotations.openWorldHint" => repair.require(path, value, is_boolean),
        _ => MemberFix::Keep,
    }
}

fn fix_resource_annotation(repair: &mut Repair, path: &str, value: &Bytes) -> MemberFix {
    match path {
        "annotations.audience" => repair.require(path, value, is_audience),
        "annotations.priority" => repair.require(path, value, is_priority),
        "annotations.lastModified" => repair.require(path, value, is_date_time),
        _ => MemberFix::Keep,
    }
}

fn is_text(value: &Bytes) -> bool {
    value.first() == Some(&b'"')
}

fn is_object(value: &Bytes) -> bool {
    value.first() == Some(&b'{')
}

fn is_array(value: &Bytes) -> bool {
    value.first() == Some(&b'[')
}

fn is_boolean(value: &Bytes) -> bool {
    matches!(&**value, b"true" | b"false")
}

/// Returns whether a number is an integer, also in a spelling such as `1.0` or `1e3`.
fn is_integer(value: &Bytes) -> bool {
    as_number(value).is_some_and(|number| number.fract() == 0.0)
}

fn is_priority(value: &Bytes) -> bool {
    as_number(value).is_some_and(|number| (0.0..=1.0).contains(&number))
}

fn as_number(value: &Bytes) -> Option<f64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn is_text_array(value: &Bytes) -> bool {
    parse_array(value).is_ok_and(|elements| elements.iter().all(is_text))
}

fn is_audience(value: &Bytes) -> bool {
    let is_role = |role: &Bytes| matches!(as_string(role).as_deref(), Some("user" | "assistant"));
    parse_array(value).is_ok_and(|roles| roles.iter().all(is_role))
}

fn is_theme(value: &Bytes) -> bool {
    matches!(as_string(value).as_deref(), Some("light" | "dark"))
}

fn is_task_support(value: &Bytes) -> bool {
    matches!(as_string(value).as_deref(), Some("required" | "optional" | "forbidden"))
}

/// Returns whether a value is a date and time with an offset, such as `2025-01-12T15:00:58Z`.
fn is_date_time(value: &Bytes) -> bool {
    let Some(text) = as_string(value) else { return false };
    let Some((date, time)) = text.split_once('T') else { return false };
    let clock = match time.strip_suffix('Z') {
        Some(clock) => clock,
        None => match time.rfind(['+', '-']) {
            Some(sign) if has_shape(&time[sign + 1..], "00:00") => &time[..sign],
            _ => return false,
        },
    };
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|digit| digit.is_ascii_digit());
    let is_clock = has_shape(clock, "00:00:00") || (has_shape(clock, "00:00") && fraction == "0");
    has_shape(date, "0000-00-00") && is_clock && is_fraction
}

/// Returns whether a text has digits where the pattern has zeros, and the same characters elsewhere.
fn has_shape(text: &str, pattern: &str) -> bool {
    let fits = |(letter, expected): (u8, u8)| match expected {
        b'0' => letter.is_ascii_digit(),
        other => letter == other,
    };
    text.len() == pattern.len() && text.bytes().zip(pattern.bytes()).all(fits)
}

fn write_object(members: &[(&str, Bytes)]) -> Bytes {
    let mut json = vec![b'{'];
    for (name, value) in members {
        if json.len() > 1 {
            json.push(b',');
        }
        object::write_string(&mut json, name);
        json.push(b':');
        json.extend_from_slice(value);
    }
    json.push(b'}');
    json.into()
}

fn write_array(elements: &[Bytes]) -> Bytes {
    let elements: Vec<&[u8]> = elements.iter().map(|element| &**element).collect();
    [b"[", &*elements.join(&b","[..]), b"]"].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair(kind: ListKind, definition: &str) -> Option<RepairedDefinition> {
        repair_definition(kind, &Object::parse(&Bytes::copy_from_slice(definition.as_bytes())).unwrap())
    }

    /// Returns the repaired definition, or the definition itself if it is accepted.
    fn repaired(kind: ListKind, definition: &str) -> String {
        match repair(kind, definition) {
            Some(repaired) => {
                assert!(!repaired.problems.is_empty(), "{definition}");
                let again = repair_definition(kind, &Object::parse(&repaired.definition).unwrap());
                assert_eq!(again, None, "a repaired definition needs no repair: {definition}");
                String::from_utf8(repaired.definition.to_vec()).unwrap()
            }
            None => definition.to_owned(),
        }
    }

    #[test]
    fn correct_definitions_are_not_touched() {
        let schema = r#"{"type":"object","properties":{"a":{"type":["string","null"]},"b":{}},"required":["a"],"$defs":{"x":true}}"#;
        let icons = r#"[{"src":"data:,x","mimeType":"image/png","sizes":["1x1"],"theme":"dark"}]"#;
        for (kind, definition) in [
            (
                ListKind::Tools,
                format!(
                    r#"{{ "name":"a","title":"A","inputSchema":{schema}, "outputSchema":{schema},"icons":{icons},"x":null,"annotations":{{"readOnlyHint":true,"other":1}},"execution":{{"taskSupport":"optional"}},"_meta":{{"k":null}} }}"#
                ),
            ),
            (ListKind::Tools, r#"{"name":"a","inputSchema":{"type":"object"},"outputSchema":{"type":"string"}}"#.to_owned()),
            (ListKind::Prompts, format!(r#"{{"name":"p","icons":{icons},"arguments":[{{"name":"a","required":false}}]}}"#)),
            (
                ListKind::Resources,
                r#"{"uri":"a:b","name":"b","size":10,"mimeType":"x/y","annotations":{"audience":["user"],"priority":0.5,"lastModified":"2025-01-12T15:00:58.123+01:00"}}"#.to_owned(),
            ),
            (ListKind::Templates, r#"{"uriTemplate":"a:{b}","name":"b","size":"any"}"#.to_owned()),
        ] {
            assert_eq!(repair(kind, &definition), None, "{definition}");
        }
    }

    #[test]
    fn wrong_members_of_tools_are_repaired() {
        let any = r#""inputSchema":{"type":"object"}"#;
        for (rest, expected) in [
            (String::new(), format!(",{any}")),
            (r#","inputSchema":null"#.to_owned(), format!(",{any}")),
            (r#","inputSchema":[]"#.to_owned(), format!(",{any}")),
            (r#","inputSchema":{}"#.to_owned(), format!(",{any}")),
            (
                r#","inputSchema":{"type":"array","properties":null,"required":true,"x":1}"#.to_owned(),
                r#","inputSchema":{"type":"object","x":1}"#.to_owned(),
            ),
            (
                r#","inputSchema":{"type":"object","properties":{"a":true,"b":false,"c":null,"d":{}},"required":["a",1]}"#.to_owned(),
                r#","inputSchema":{"type":"object","properties":{"a":{},"b":{"not":{}},"c":{},"d":{}},"required":["a"]}"#.to_owned(),
            ),
            (format!(r#",{any},"title":null,"description":["x"],"_meta":null,"icons":null"#), format!(",{any}")),
            (format!(r#",{any},"outputSchema":null,"annotations":null,"execution":null"#), format!(",{any}")),
            (
                format!(r#",{any},"annotations":{{"readOnlyHint":"yes","title":null,"openWorldHint":true}}"#),
                format!(r#",{any},"annotations":{{"openWorldHint":true}}"#),
            ),
            (
                format!(r#",{any},"execution":{{"taskSupport":"sometimes"}},"icons":[{{"src":1}},{{"src":"a:b"}}]"#),
                format!(r#",{any},"execution":{{}},"icons":[{{"src":"a:b"}}]"#),
            ),
        ] {
            let repaired = repaired(ListKind::Tools, &format!(r#"{{"name":"a"{rest}}}"#));
            assert_eq!(repaired, format!(r#"{{"name":"a"{expected}}}"#), "{rest}");
        }
    }

    #[test]
    fn wrong_members_of_prompts_and_resources_are_repaired() {
        for (kind, definition, expected) in [
            (ListKind::Prompts, r#"{"name":"p","arguments":null}"#, r#"{"name":"p"}"#),
            (
                ListKind::Prompts,
                r#"{"name":"p","arguments":[{"name":"a","required":"yes","description":null},{"title":"x"},7]}"#,
                r#"{"name":"p","arguments":[{"name":"a"}]}"#,
            ),
            (ListKind::Resources, r#"{"uri":"a:b"}"#, r#"{"uri":"a:b","name":"a:b"}"#),
            (
                ListKind::Resources,
                r#"{"uri":"a:b","name":null,"mimeType":1,"size":"1","annotations":{"priority":2,"lastModified":"today","audience":["all"]}}"#,
                r#"{"uri":"a:b","name":"a:b","annotations":{}}"#,
            ),
            (ListKind::Resources, r#"{"uri":"a:b","name":"b","size":1.5}"#, r#"{"uri":"a:b","name":"b"}"#),
            (
                ListKind::Templates,
                r#"{"uriTemplate":"a:{b}","name":7}"#,
                r#"{"uriTemplate":"a:{b}","name":"a:{b}"}"#,
            ),
        ] {
            assert_eq!(repaired(kind, definition), expected, "{definition}");
        }
    }
}
