//! The three editors side by side: files that were thought of, and files that nobody thought of.

use proptest::prelude::*;
use serde_json::json;

use super::*;

const RELAXED: Language = Language::Json(Manner::Relaxed);
const STRICT: Language = Language::Json(Manner::Strict);

fn entry() -> Members {
    vec![("command".to_owned(), json!("toolcrib")), ("args".to_owned(), json!(["stdio"]))]
}

/// Puts an entry, again, and takes it out: the first changes lines of its own only, the second nothing.
fn there_and_back(language: Language, before: &str, path: &[&str]) -> String {
    let after = language.put(before, path, &entry()).unwrap();
    assert_eq!(language.put(&after, path, &entry()).unwrap(), after);
    let windows = before.replace('\n', "\r\n");
    assert_eq!(language.put(&windows, path, &entry()).unwrap(), after.replace('\n', "\r\n"));
    let marked = format!("\u{feff}{before}");
    assert_eq!(language.put(&marked, path, &entry()).unwrap(), format!("\u{feff}{after}"));
    let back = language.remove(&after, path).unwrap();
    assert_eq!(bare(&language.read(&back).unwrap()), bare(&language.read(before).unwrap()));
    after
}

#[test]
fn json_keeps_comments_tabs_and_trailing_commas() {
    let before = "{\n\t// mine\n\t\"a\": 1, /* one */\n\t\"mcpServers\": {\n\t\t\"x\": {\"command\": \"y\"}, // x\n\t},\n}\n";
    let after = there_and_back(RELAXED, before, &["mcpServers", "toolcrib"]);
    let added =
        "\t\t\"toolcrib\": {\n\t\t\t\"command\": \"toolcrib\",\n\t\t\t\"args\": [\"stdio\"],\n\t\t},\n";
    assert_eq!(after, before.replace("// x\n", &format!("// x\n{added}")));
    assert_eq!(RELAXED.remove(&after, &["mcpServers", "toolcrib"]).unwrap(), before);
}

#[test]
fn strict_json_stays_strict_and_comments_in_it_are_a_mistake_with_a_place() {
    let after = there_and_back(STRICT, "{\n  \"numStartups\": 3\n}\n", &["mcpServers", "toolcrib"]);
    assert!(serde_json::from_str::<Json>(&after).is_ok(), "{after}");
    assert!(after.starts_with("{\n  \"numStartups\": 3,\n  \"mcpServers\": {"), "{after}");
    let bad = STRICT.put("{\n  // no\n  \"a\": 1\n}", &["m", "t"], &entry()).unwrap_err();
    assert_eq!(bad.at, Some((2, 3)), "{bad}");
    let bad = RELAXED.put("{\"a\": 1", &["m", "t"], &entry()).unwrap_err();
    assert!(bad.at.is_some(), "{bad}");
    for (text, path) in
        [("{\"m\": 5}", ["m", "t"]), ("[]", ["m", "t"]), ("{\"m\": {}, \"m\": {}}", ["m", "t"])]
    {
        assert!(RELAXED.put(text, &path, &entry()).is_err(), "{text}");
    }
}

#[test]
fn files_without_anything_in_them_are_begun() {
    for language in [RELAXED, STRICT, Language::Toml, Language::Yaml] {
        for before in ["", "\n"] {
            let after = language.put(before, &["m", "toolcrib"], &entry()).unwrap();
            let want = json!({"m": {"toolcrib": {"command": "toolcrib", "args": ["stdio"]}}});
            assert_eq!(language.read(&after).unwrap(), want);
        }
    }
    assert_eq!(RELAXED.put("{}", &["m", "toolcrib"], &entry()).unwrap().matches('{').count(), 3);
}

#[test]
fn toml_keeps_comments_in_and_between_tables() {
    let before = "# mine\nmodel = \"x\" # inline\n\n[mcp_servers.a] # a\n# in a\ncommand = 'b'\n\n# about p\n[profiles.p]\nx = 1\n";
    let after = there_and_back(Language::Toml, before, &["mcp_servers", "toolcrib"]);
    let added = "[mcp_servers.toolcrib]\ncommand = \"toolcrib\"\nargs = [\"stdio\"]\n\n";
    assert_eq!(after.replace(added, ""), before);
}

#[test]
fn a_changed_entry_changes_alone() {
    let before = RELAXED.put("{ // top\n}", &["m", "toolcrib"], &entry()).unwrap();
    let more = vec![("command".to_owned(), json!("other"))];
    let after = RELAXED.put(&before, &["m", "toolcrib"], &more).unwrap();
    assert_eq!(RELAXED.read(&after).unwrap(), json!({"m": {"toolcrib": {"command": "other"}}}));
    assert!(after.contains("// top"));
    let toml = "[m.toolcrib]\ncommand = 'toolcrib' # here\nurl = 'x'\n";
    let after = Language::Toml.put(toml, &["m", "toolcrib"], &entry()).unwrap();
    assert_eq!(after, "[m.toolcrib]\ncommand = 'toolcrib' # here\nargs = [\"stdio\"]\n");
}

/// Keys and numbers; what has none is something of several lines.
type Values = Vec<(String, Option<u32>)>;

/// A file of sections, each with a few values, comments and blank lines in between.
#[derive(Debug, Clone)]
struct Written {
    sections: Vec<(String, Values)>,
    /// The servers that are there already.
    servers: Option<Vec<String>>,
    place: usize,
    comments: bool,
    wide: bool,
    windows: bool,
}

fn written() -> impl Strategy<Value = Written> {
    let values = proptest::collection::btree_map("[a-z]{1,5}", proptest::option::of(any::<u32>()), 1..4);
    let sections = proptest::collection::btree_map("s[a-z]{1,5}", values, 0..4);
    let servers = proptest::option::of(proptest::collection::btree_set("x[a-z]{1,4}", 1..4));
    (sections, servers, 0..4usize, any::<[bool; 3]>()).prop_map(|(sections, servers, place, flags)| Written {
        sections: sections.into_iter().map(|(name, values)| (name, values.into_iter().collect())).collect(),
        servers: servers.map(|servers| servers.into_iter().collect()),
        place,
        comments: flags[0],
        wide: flags[1],
        windows: flags[2],
    })
}

impl Written {
    fn text(&self, language: Language) -> String {
        let indent = if self.wide { "    " } else { "  " };
        let comment = |mark: &str| if self.comments { format!(" {mark} why") } else { String::new() };
        let mut lines = Vec::new();
        let mut all = self.sections.clone();
        if let Some(servers) = &self.servers {
            let entries = servers.iter().map(|name| (name.clone(), None)).collect();
            all.insert(self.place.min(all.len()), ("servers".to_owned(), entries));
        }
        for (section, values) in &all {
            let tables = section == "servers";
            match language {
                Language::Yaml => {
                    lines.push(format!("{section}:{}", comment("#")));
                    for (key, value) in values {
                        lines.push(match (tables, value) {
                            (true, _) => format!("{indent}{key}:{}\n{indent}{indent}cmd: y", comment("#")),
                            (_, Some(value)) => format!("{indent}{key}: {value}{}", comment("#")),
                            (_, None) => {
                                format!("{indent}{key}: |\n{indent}{indent}two\n{indent}{indent}lines")
                            }
                        });
                    }
                    lines.extend(self.comments.then(|| "# between\n".to_owned()));
                }
                Language::Toml => {
                    lines.extend((!tables).then(|| format!("[{section}]{}", comment("#"))));
                    for (key, value) in values {
                        lines.push(match (tables, value) {
                            (true, _) => format!("[servers.{key}]{}\ncmd = 'y'\n", comment("#")),
                            (_, Some(value)) => format!("{key} = {value}{}", comment("#")),
                            (_, None) => format!("{key} = [\n  1,{}\n]", comment("#")),
                        });
                    }
                    lines.extend(self.comments.then(|| "\n# about the next".to_owned()));
                }
                Language::Json(_) => {
                    lines.push(format!("{indent}\"{section}\": {{{}", comment("//")));
                    for (key, value) in values {
                        lines.push(match (tables, value) {
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
            Language::Json(_) => format!("{{\n{}\n}}\n", lines.join("\n")),
            _ => format!("{}\n", lines.join("\n")),
        };
        if self.windows { text.replace('\n', "\r\n") } else { text }
    }
}

proptest! {
    #[test]
    fn whatever_is_in_a_file_every_line_of_it_stays(written in written()) {
        for language in [RELAXED, Language::Toml, Language::Yaml] {
            let before = written.text(language);
            let path = ["servers", "toolcrib"];
            let after = language.put(&before, &path, &entry());
            prop_assert!(after.is_ok(), "{language:?} {after:?}\n{before}");
            let after = after.unwrap();
            let mut lines = after.split_inclusive('\n');
            for line in before.split_inclusive('\n').filter(|line| !line.trim().is_empty()) {
                prop_assert!(lines.any(|other| other == line), "{language:?}: {line:?} is gone\n{before}\n{after}");
            }
            prop_assert_eq!(&language.put(&after, &path, &entry()).unwrap(), &after);
            let back = language.remove(&after, &path).unwrap();
            prop_assert_eq!(bare(&language.read(&back).unwrap()), bare(&language.read(&before).unwrap()));
        }
    }
}
