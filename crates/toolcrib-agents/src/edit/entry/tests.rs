//! Tests that all three editors have to pass, with fixed and with generated files.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const RELAXED: FileLanguage = FileLanguage::Json(JsonDialect::Relaxed);
const STRICT: FileLanguage = FileLanguage::Json(JsonDialect::Strict);

fn entry() -> EntryMembers {
    vec![("command".to_owned(), json!("toolcrib")), ("args".to_owned(), json!(["stdio"]))]
}

/// Sets an entry twice, also with CRLF and a byte order mark, and removes it. Returns the text with the entry.
fn check_round_trip(language: FileLanguage, before: &str, path: &[&str]) -> String {
    let after = language.set_entry(before, path, &entry()).unwrap();
    assert_eq!(language.set_entry(&after, path, &entry()).unwrap(), after);
    let crlf = before.replace('\n', "\r\n");
    assert_eq!(language.set_entry(&crlf, path, &entry()).unwrap(), after.replace('\n', "\r\n"));
    let with_bom = format!("\u{feff}{before}");
    assert_eq!(language.set_entry(&with_bom, path, &entry()).unwrap(), format!("\u{feff}{after}"));
    let back = language.remove_entry(&after, path).unwrap();
    assert_eq!(
        without_empty_tables(&language.parse(&back).unwrap()),
        without_empty_tables(&language.parse(before).unwrap())
    );
    after
}

#[test]
fn json_edit_keeps_comments_tabs_and_trailing_commas() {
    let before = "{\n\t// mine\n\t\"a\": 1, /* one */\n\t\"mcpServers\": {\n\t\t\"x\": {\"command\": \"y\"}, // x\n\t},\n}\n";
    let after = check_round_trip(RELAXED, before, &["mcpServers", "toolcrib"]);
    let added =
        "\t\t\"toolcrib\": {\n\t\t\t\"command\": \"toolcrib\",\n\t\t\t\"args\": [\"stdio\"],\n\t\t},\n";
    assert_eq!(after, before.replace("// x\n", &format!("// x\n{added}")));
    assert_eq!(RELAXED.remove_entry(&after, &["mcpServers", "toolcrib"]).unwrap(), before);
}

#[test]
fn strict_json_rejects_comments_with_position() {
    let after = check_round_trip(STRICT, "{\n  \"numStartups\": 3\n}\n", &["mcpServers", "toolcrib"]);
    assert!(serde_json::from_str::<Json>(&after).is_ok(), "{after}");
    assert!(after.starts_with("{\n  \"numStartups\": 3,\n  \"mcpServers\": {"), "{after}");
    let error = STRICT.set_entry("{\n  // no\n  \"a\": 1\n}", &["m", "t"], &entry()).unwrap_err();
    assert_eq!(error.position, Some(TextPosition { line: 2, column: 3 }), "{error}");
    let error = RELAXED.set_entry("{\"a\": 1", &["m", "t"], &entry()).unwrap_err();
    assert!(error.position.is_some(), "{error}");
    for (text, path) in
        [("{\"m\": 5}", ["m", "t"]), ("[]", ["m", "t"]), ("{\"m\": {}, \"m\": {}}", ["m", "t"])]
    {
        assert!(RELAXED.set_entry(text, &path, &entry()).is_err(), "{text}");
    }
}

#[test]
fn set_entry_starts_empty_files() {
    for language in [RELAXED, STRICT, FileLanguage::Toml, FileLanguage::Yaml] {
        for before in ["", "\n"] {
            let after = language.set_entry(before, &["m", "toolcrib"], &entry()).unwrap();
            let expected = json!({"m": {"toolcrib": {"command": "toolcrib", "args": ["stdio"]}}});
            assert_eq!(language.parse(&after).unwrap(), expected);
        }
    }
    assert_eq!(RELAXED.set_entry("{}", &["m", "toolcrib"], &entry()).unwrap().matches('{').count(), 3);
}

#[test]
fn toml_edit_keeps_comments() {
    let before = "# mine\nmodel = \"x\" # inline\n\n[mcp_servers.a] # a\n# in a\ncommand = 'b'\n\n# about p\n[profiles.p]\nx = 1\n";
    let after = check_round_trip(FileLanguage::Toml, before, &["mcp_servers", "toolcrib"]);
    let added = "[mcp_servers.toolcrib]\ncommand = \"toolcrib\"\nargs = [\"stdio\"]\n\n";
    assert_eq!(after.replace(added, ""), before);
}

#[test]
fn set_entry_replaces_only_changed_members() {
    let before = RELAXED.set_entry("{ // top\n}", &["m", "toolcrib"], &entry()).unwrap();
    let more = vec![("command".to_owned(), json!("other"))];
    let after = RELAXED.set_entry(&before, &["m", "toolcrib"], &more).unwrap();
    assert_eq!(RELAXED.parse(&after).unwrap(), json!({"m": {"toolcrib": {"command": "other"}}}));
    assert!(after.contains("// top"));
    let toml = "[m.toolcrib]\ncommand = 'toolcrib' # here\nurl = 'x'\n";
    let after = FileLanguage::Toml.set_entry(toml, &["m", "toolcrib"], &entry()).unwrap();
    assert_eq!(after, "[m.toolcrib]\ncommand = 'toolcrib' # here\nargs = [\"stdio\"]\n");
}

/// Keys and numbers. `None` stands for a value of several lines.
type Values = Vec<(String, Option<u32>)>;

/// A generated file: sections with a few values, comments and blank lines.
#[derive(Debug, Clone)]
struct GeneratedFile {
    sections: Vec<(String, Values)>,
    /// Servers that the file already has.
    servers: Option<Vec<String>>,
    servers_index: usize,
    comments: bool,
    wide_indent: bool,
    crlf: bool,
}

fn generated_file() -> impl Strategy<Value = GeneratedFile> {
    let values = proptest::collection::btree_map("[a-z]{1,5}", proptest::option::of(any::<u32>()), 1..4);
    let sections = proptest::collection::btree_map("s[a-z]{1,5}", values, 0..4);
    let servers = proptest::option::of(proptest::collection::btree_set("x[a-z]{1,4}", 1..4));
    (sections, servers, 0..4usize, any::<[bool; 3]>()).prop_map(
        |(sections, servers, servers_index, flags)| GeneratedFile {
            sections: sections
                .into_iter()
                .map(|(name, values)| (name, values.into_iter().collect()))
                .collect(),
            servers: servers.map(|servers| servers.into_iter().collect()),
            servers_index,
            comments: flags[0],
            wide_indent: flags[1],
            crlf: flags[2],
        },
    )
}

impl GeneratedFile {
    fn text(&self, language: FileLanguage) -> String {
        let indent = if self.wide_indent { "    " } else { "  " };
        let comment = |marker: &str| if self.comments { format!(" {marker} why") } else { String::new() };
        let mut lines = Vec::new();
        let mut all = self.sections.clone();
        if let Some(servers) = &self.servers {
            let entries = servers.iter().map(|name| (name.clone(), None)).collect();
            all.insert(self.servers_index.min(all.len()), ("servers".to_owned(), entries));
        }
        for (section, values) in &all {
            let is_servers = section == "servers";
            match language {
                FileLanguage::Yaml => {
                    lines.push(format!("{section}:{}", comment("#")));
                    for (key, value) in values {
                        lines.push(match (is_servers, value) {
                            (true, _) => format!("{indent}{key}:{}\n{indent}{indent}cmd: y", comment("#")),
                            (_, Some(value)) => format!("{indent}{key}: {value}{}", comment("#")),
                            (_, None) => {
                                format!("{indent}{key}: |\n{indent}{indent}two\n{indent}{indent}lines")
                            }
                        });
                    }
                    lines.extend(self.comments.then(|| "# between\n".to_owned()));
                }
                FileLanguage::Toml => {
                    lines.extend((!is_servers).then(|| format!("[{section}]{}", comment("#"))));
                    for (key, value) in values {
                        lines.push(match (is_servers, value) {
                            (true, _) => format!("[servers.{key}]{}\ncmd = 'y'\n", comment("#")),
                            (_, Some(value)) => format!("{key} = {value}{}", comment("#")),
                            (_, None) => format!("{key} = [\n  1,{}\n]", comment("#")),
                        });
                    }
                    lines.extend(self.comments.then(|| "\n# about the next".to_owned()));
                }
                FileLanguage::Json(_) => {
                    lines.push(format!("{indent}\"{section}\": {{{}", comment("//")));
                    for (key, value) in values {
                        lines.push(match (is_servers, value) {
                            (true, _) => {
                                format!("{indent}{indent}\"{key}\": {{\"cmd\": \"y\"}},{}", comment("//"))
                            }
                            (_, Some(value)) => {
                                format!("{indent}{indent}\"{key}\": {value},{}", comment("/* a */ //"))
                            }
                            (_, None) => format!("{indent}{indent}\"{key}\": [1,\n2],"),
                        });
                    }
                    lines.push(format!("{indent}}},"));
                }
            }
        }
        let text = match language {
            FileLanguage::Json(_) => format!("{{\n{}\n}}\n", lines.join("\n")),
            _ => format!("{}\n", lines.join("\n")),
        };
        if self.crlf { text.replace('\n', "\r\n") } else { text }
    }
}

proptest! {
    #[test]
    fn set_entry_keeps_every_line(file in generated_file()) {
        for language in [RELAXED, FileLanguage::Toml, FileLanguage::Yaml] {
            let before = file.text(language);
            let path = ["servers", "toolcrib"];
            let after = language.set_entry(&before, &path, &entry());
            prop_assert!(after.is_ok(), "{language:?} {after:?}\n{before}");
            let after = after.unwrap();
            let mut lines = after.split_inclusive('\n');
            for line in before.split_inclusive('\n').filter(|line| !line.trim().is_empty()) {
                prop_assert!(lines.any(|other| other == line), "{language:?}: {line:?} is missing\n{before}\n{after}");
            }
            prop_assert_eq!(&language.set_entry(&after, &path, &entry()).unwrap(), &after);
            let back = language.remove_entry(&after, &path).unwrap();
            prop_assert_eq!(without_empty_tables(&language.parse(&back).unwrap()), without_empty_tables(&language.parse(&before).unwrap()));
        }
    }
}
