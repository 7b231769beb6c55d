//! Repairs definitions of tools, prompts and resources that official clients would reject.
//!
//! Clients check a list as a whole: one member of a wrong type and they show nothing of any server. A wrong member is
//! removed or replaced here; everything else keeps its bytes. Definitions without mistakes are not touched.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use super::json::object::{self, BorrowedObject, Object, as_string, to_json_string};
use super::json::scan::{ScanError, Scanner};
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

impl MemberFix {
    /// Returns the value that replaces a value, or `None` if it is removed.
    fn apply(self, value: &[u8]) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::Keep => Some(Cow::Borrowed(value)),
            Self::Remove => None,
            Self::Replace(fixed) => Some(Cow::Owned(fixed.to_vec())),
        }
    }
}

/// Checks a definition that has a name or URI. Returns `None` if clients accept it.
pub(crate) fn repair_definition(kind: ListKind, definition: &Object) -> Option<RepairedDefinition> {
    let mut repair = Repair::default();
    let members = definition.iter().map(|(name, value)| MemberRef { name: name.as_bytes(), value });
    let members: Vec<MemberRef<'_>> = members.collect();
    let mut fixed =
        repair.fix_members(members.iter().copied(), None, |repair, path, value| match (kind, path.name) {
            (_, b"title" | b"description") => repair.require(path, value, is_text),
            (_, b"icons") => repair.fix_array(path, value, Repair::fix_icon),
            (_, b"_meta") => repair.require(path, value, is_object),
            (ListKind::Tools, b"inputSchema") => repair.fix_input_schema(path, value),
            (ListKind::Tools, b"outputSchema") => repair.fix_object(path, value, fix_schema_member),
            (ListKind::Tools, b"annotations") => repair.fix_object(path, value, fix_tool_annotation),
            (ListKind::Tools, b"execution") => {
                repair.fix_object(path, value, |repair, path, value| match path.name {
                    b"taskSupport" => repair.require(path, value, is_task_support),
                    _ => MemberFix::Keep,
                })
            }
            (ListKind::Prompts, b"arguments") => repair.fix_array(path, value, Repair::fix_argument),
            (ListKind::Resources | ListKind::Templates, b"mimeType") => repair.require(path, value, is_text),
            (ListKind::Resources | ListKind::Templates, b"annotations") => {
                repair.fix_object(path, value, fix_resource_annotation)
            }
            (ListKind::Resources, b"size") => repair.require(path, value, is_integer),
            _ => MemberFix::Keep,
        });
    let mut added: Vec<(&'static str, Bytes)> = Vec::new();
    if kind == ListKind::Tools && definition.get("inputSchema").is_none() {
        repair.report("`inputSchema` is missing");
        added.push(("inputSchema", Bytes::from_static(ANY_OBJECT)));
    }
    let is_resource = matches!(kind, ListKind::Resources | ListKind::Templates);
    if is_resource && definition.get_string("name").is_none() {
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

/// A member of an object that is checked.
#[derive(Clone, Copy)]
struct MemberRef<'a> {
    name: &'a [u8],
    value: &'a [u8],
}

/// The place of a member in a definition.
#[derive(Clone, Copy)]
struct MemberPath<'a> {
    parent: Option<&'a MemberPath<'a>>,
    name: &'a [u8],
}

impl fmt::Display for MemberPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}.")?;
        }
        f.write_str(&String::from_utf8_lossy(self.name))
    }
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
    fn require(&mut self, path: MemberPath<'_>, value: &[u8], is_valid: fn(&[u8]) -> bool) -> MemberFix {
        if is_valid(value) {
            return MemberFix::Keep;
        }
        self.report(format!("`{path}` has a wrong type"));
        MemberFix::Remove
    }

    /// Applies `fix` to the members of the object at `parent`. Returns `None` if nothing changes.
    fn fix_members<'a>(
        &mut self,
        members: impl Iterator<Item = MemberRef<'a>> + Clone,
        parent: Option<&MemberPath<'_>>,
        mut fix: impl FnMut(&mut Self, MemberPath<'_>, &[u8]) -> MemberFix,
    ) -> Option<Bytes> {
        let all = members.clone();
        let fixes = collect_fixes(members.map(|member| {
            let path = MemberPath { parent, name: member.name };
            fix(self, path, member.value)
        }))?;
        Some(write_object(all.zip(fixes)))
    }

    /// Removes a member that is not an object, otherwise fixes its members.
    fn fix_object(
        &mut self,
        path: MemberPath<'_>,
        value: &[u8],
        fix: impl FnMut(&mut Self, MemberPath<'_>, &[u8]) -> MemberFix,
    ) -> MemberFix {
        if !is_object(value) {
            return self.require(path, value, is_object);
        }
        // Clients read an object with a repeated name, so it is left as it is.
        let Some(object) = BorrowedObject::parse(value) else { return MemberFix::Keep };
        self.fix_members(members_of(&object), Some(&path), fix).map_or(MemberFix::Keep, MemberFix::Replace)
    }

    /// Removes a member that is not an array, otherwise fixes its elements.
    fn fix_array(
        &mut self,
        path: MemberPath<'_>,
        value: &[u8],
        mut fix: impl FnMut(&mut Self, MemberPath<'_>, &[u8]) -> MemberFix,
    ) -> MemberFix {
        let Some(elements) = elements_of(value) else { return self.require(path, value, is_array) };
        match collect_fixes(elements.iter().map(|element| fix(self, path, element))) {
            Some(fixes) => MemberFix::Replace(write_array(elements.into_iter().zip(fixes))),
            None => MemberFix::Keep,
        }
    }

    fn fix_input_schema(&mut self, path: MemberPath<'_>, value: &[u8]) -> MemberFix {
        if !is_object(value) {
            self.report("`inputSchema` is not an object");
            return MemberFix::Replace(Bytes::from_static(ANY_OBJECT));
        }
        if is_plain_input_schema(value) { MemberFix::Keep } else { self.fix_unusual_schema(path, value) }
    }

    fn fix_unusual_schema(&mut self, path: MemberPath<'_>, value: &[u8]) -> MemberFix {
        let Some(schema) = BorrowedObject::parse(value) else { return MemberFix::Keep };
        let fixed = self.fix_members(members_of(&schema), Some(&path), fix_schema_member);
        if schema.get("type").and_then(as_string).as_deref() == Some("object") {
            return fixed.map_or(MemberFix::Keep, MemberFix::Replace);
        }
        self.report("`inputSchema.type` is not `object`");
        let current = fixed.unwrap_or_else(|| Bytes::copy_from_slice(value));
        let Ok(mut schema) = Object::parse(&current) else { return MemberFix::Keep };
        schema.set_unchecked("type", Bytes::from_static(b"\"object\""));
        MemberFix::Replace(schema.to_bytes())
    }

    /// Removes an icon that clients reject.
    fn fix_icon(&mut self, path: MemberPath<'_>, value: &[u8]) -> MemberFix {
        let is_valid = BorrowedObject::parse(value).is_some_and(|icon| {
            let is_optional = |name: &str, is_valid: fn(&[u8]) -> bool| icon.get(name).is_none_or(is_valid);
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
    fn fix_argument(&mut self, path: MemberPath<'_>, value: &[u8]) -> MemberFix {
        let argument = BorrowedObject::parse(value);
        let Some(argument) = argument.filter(|argument| argument.get("name").is_some_and(is_text)) else {
            self.report(format!("an element of `{path}` has no name"));
            return MemberFix::Remove;
        };
        let members = members_of(&argument);
        let fixed = self.fix_members(members, Some(&path), |repair, path, value| match path.name {
            b"title" | b"description" => repair.require(path, value, is_text),
            b"required" => repair.require(path, value, is_boolean),
            _ => MemberFix::Keep,
        });
        fixed.map_or(MemberFix::Keep, MemberFix::Replace)
    }
}

/// Returns the fixes of all members or elements, or `None` if all are kept.
fn collect_fixes(fixes: impl Iterator<Item = MemberFix>) -> Option<Vec<MemberFix>> {
    let fixes: Vec<_> = fixes.collect();
    let is_changed = fixes.iter().any(|fix| !matches!(fix, MemberFix::Keep));
    is_changed.then_some(fixes)
}

fn members_of<'a>(object: &'a BorrowedObject<'_>) -> impl Iterator<Item = MemberRef<'a>> + Clone {
    object.members.iter().map(|member| MemberRef { name: &member.name, value: member.value })
}

/// Returns the elements of an array, or `None` if the value is not an array.
fn elements_of(value: &[u8]) -> Option<Vec<&[u8]>> {
    let mut elements = Vec::new();
    Scanner::new(value).scan_array(|element| elements.push(&value[element])).ok()?;
    Some(elements)
}

/// Returns whether a schema of arguments is obviously correct. Most are, and one scan takes half of the instructions that
/// fixing nothing takes.
fn is_plain_input_schema(schema: &[u8]) -> bool {
    let mut has_type = false;
    let mut is_plain = true;
    let scanned = Scanner::new(schema).scan_members(|scanner, name| {
        is_plain &= !name.has_escapes;
        match &schema[name.range] {
            b"\"type\"" => has_type |= &schema[scanner.scan_value()?] == b"\"object\"",
            b"\"properties\"" => scanner.scan_members(|scanner, _| {
                is_plain &= matches!(scanner.peek_value(), Some(b'{' | b'['));
                scanner.scan_value().map(drop)
            })?,
            b"\"required\"" => scanner.scan_elements(|scanner| {
                is_plain &= scanner.is_at(b'"');
                scanner.scan_value().map(drop)
            })?,
            _ => {
                scanner.scan_value()?;
            }
        }
        Ok::<_, ScanError>(())
    });
    scanned.is_ok() && has_type && is_plain
}

/// Fixes `properties` and `required` of a schema.
fn fix_schema_member(repair: &mut Repair, path: MemberPath<'_>, value: &[u8]) -> MemberFix {
    match path.name {
        b"properties" => repair.fix_object(path, value, |repair, path, schema| {
            if matches!(schema.first(), Some(b'{' | b'[')) {
                return MemberFix::Keep;
            }
            repair.report(format!("`{path}` is not an object"));
            let nothing = schema == b"false";
            MemberFix::Replace(Bytes::from_static(if nothing { br#"{"not":{}}"# } else { b"{}" }))
        }),
        b"required" => repair.fix_array(path, value, |repair, path, name| {
            if is_text(name) {
                return MemberFix::Keep;
            }
            repair.report(format!("an element of `{path}` is not a string"));
            MemberFix::Remove
        }),
        _ => MemberFix::Keep,
    }
}

fn fix_tool_annotation(repair: &mut Repair, path: MemberPath<'_>, value: &[u8]) -> MemberFix {
    match path.name {
        b"title" => repair.require(path, value, is_text),
        b"readOnlyHint" | b"destructiveHint" | b"idempotentHint" | b"openWorldHint" => {
            repair.require(path, value, is_boolean)
        }
        _ => MemberFix::Keep,
    }
}

fn fix_resource_annotation(repair: &mut Repair, path: MemberPath<'_>, value: &[u8]) -> MemberFix {
    match path.name {
        b"audience" => repair.require(path, value, is_audience),
        b"priority" => repair.require(path, value, is_priority),
        b"lastModified" => repair.require(path, value, is_date_time),
        _ => MemberFix::Keep,
    }
}

fn is_text(value: &[u8]) -> bool {
    value.first() == Some(&b'"')
}

fn is_object(value: &[u8]) -> bool {
    value.first() == Some(&b'{')
}

fn is_array(value: &[u8]) -> bool {
    value.first() == Some(&b'[')
}

fn is_boolean(value: &[u8]) -> bool {
    matches!(value, b"true" | b"false")
}

/// Returns whether a number is an integer, also in a spelling such as `1.0` or `1e3`.
fn is_integer(value: &[u8]) -> bool {
    as_number(value).is_some_and(|number| number.fract() == 0.0)
}

fn is_priority(value: &[u8]) -> bool {
    as_number(value).is_some_and(|number| (0.0..=1.0).contains(&number))
}

fn as_number(value: &[u8]) -> Option<f64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

fn is_text_array(value: &[u8]) -> bool {
    elements_of(value).is_some_and(|elements| elements.into_iter().all(is_text))
}

fn is_audience(value: &[u8]) -> bool {
    let is_role = |role: &[u8]| matches!(as_string(role).as_deref(), Some("user" | "assistant"));
    elements_of(value).is_some_and(|roles| roles.into_iter().all(is_role))
}

fn is_theme(value: &[u8]) -> bool {
    matches!(as_string(value).as_deref(), Some("light" | "dark"))
}

fn is_task_support(value: &[u8]) -> bool {
    matches!(as_string(value).as_deref(), Some("required" | "optional" | "forbidden"))
}

/// Returns whether a value is a date and time with an offset, such as `2025-01-12T15:00:58Z`.
fn is_date_time(value: &[u8]) -> bool {
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

fn write_object<'a>(members: impl Iterator<Item = (MemberRef<'a>, MemberFix)>) -> Bytes {
    let mut json = vec![b'{'];
    for (member, fix) in members {
        let Some(value) = fix.apply(member.value) else { continue };
        if json.len() > 1 {
            json.push(b',');
        }
        object::write_string(&mut json, &String::from_utf8_lossy(member.name));
        json.push(b':');
        json.extend_from_slice(&value);
    }
    json.push(b'}');
    json.into()
}

fn write_array<'a>(elements: impl Iterator<Item = (&'a [u8], MemberFix)>) -> Bytes {
    let fixed: Vec<Cow<'_, [u8]>> = elements.filter_map(|(element, fix)| fix.apply(element)).collect();
    [b"[", &*fixed.join(&b","[..]), b"]"].concat().into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
    fn problems_name_the_path_of_a_member() {
        let schema = r#"{"type":"object","properties":{"a.b":1},"required":[1],"x.required":1}"#;
        let definition = format!(
            r#"{{"name":"a","title":1,"annotations":{{"title":2}},"inputSchema":{schema},"icons":[3]}}"#
        );
        let expected = [
            "`title` has a wrong type",
            "`annotations.title` has a wrong type",
            "`inputSchema.properties.a.b` is not an object",
            "an element of `inputSchema.required` is not a string",
            "an element of `icons` is not an icon",
        ];
        let repaired = repair(ListKind::Tools, &definition).unwrap();
        assert_eq!(repaired.problems, expected);
        let schema = r#"{"type":"object","properties":{"a.b":{}},"required":[],"x.required":1}"#;
        let definition = format!(r#"{{"name":"a","annotations":{{}},"inputSchema":{schema},"icons":[]}}"#);
        assert_eq!(repaired.definition, definition.as_bytes());
    }

    proptest! {
        #[test]
        fn plain_input_schema_needs_no_repair(parts in prop::collection::vec(prop::sample::select(vec![
            r#""type":"object""#, r#""type": "string""#, r#""t\u0079pe":"object""#, r#""properties":{}"#, r#""properties":[]"#,
            r#""properties":{"a":{},"b":[ ],"a":{}}"#, r#""properties":{"a":true}"#, r#""propert\u0069es":{"a":1}"#,
            r#""required":["a"]"#, r#""required":[1]"#, r#""required":null"#, r#""x":{"required":1}"#,
        ]), 0..5)) {
            let schema = format!("{{{}}}", parts.join(", "));
            if is_plain_input_schema(schema.as_bytes()) {
                let path = MemberPath { parent: None, name: b"inputSchema" };
                let mut repair = Repair::default();
                let fix = repair.fix_unusual_schema(path, schema.as_bytes());
                prop_assert!(matches!(fix, MemberFix::Keep) && repair.problems.is_empty());
            }
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
