//! Bytes that an edit changes and keeps.

use serde_json::json;

use super::*;

fn edit(before: &str, change: impl FnOnce(&mut TomlFile)) -> String {
    let mut file = TomlFile::parse(before).unwrap();
    assert_eq!(file.render(), before, "parsing alone changes nothing");
    change(&mut file);
    file.render()
}

const SOURCE: &str = "# mine\n\n[servers.a]   # first\ncommand = 'x'  # why\n\n# about b\n[servers.b]\nurl = \"u\"\n\n[limits]\nbody = '1MiB'\n# the end\n";

#[test]
fn set_changes_only_the_value() {
    let after = edit(SOURCE, |file| file.set(&["servers", "a", "command"], &json!("y")).unwrap());
    assert_eq!(after, SOURCE.replace("'x'", "\"y\""));
    let same = edit(SOURCE, |file| file.set(&["servers", "a", "command"], &json!("x")).unwrap());
    assert_eq!(same, SOURCE, "an equal value keeps its quotes");
    let added = edit(SOURCE, |file| file.set(&["servers", "a", "enabled"], &json!(false)).unwrap());
    assert_eq!(added, SOURCE.replace("# why\n", "# why\nenabled = false\n"));
}

#[test]
fn new_table_goes_after_its_siblings() {
    let after = edit(SOURCE, |file| {
        file.set(&["servers", "c", "command"], &json!("z")).unwrap();
        file.set(&["servers", "c", "args"], &json!(["-y", "p"])).unwrap();
        file.set(&["servers", "c", "env"], &json!({"K": "v"})).unwrap();
    });
    let c = "\n[servers.c]\ncommand = \"z\"\nargs = [\"-y\", \"p\"]\nenv = { K = \"v\" }\n";
    assert_eq!(after, SOURCE.replace("\n[limits]", &format!("{c}\n[limits]")));
    let last = edit("[servers.a]\ncommand = 'x'\n# the end", |file| {
        file.set(&["servers", "b", "command"], &json!("y")).unwrap();
    });
    assert_eq!(last, "[servers.a]\ncommand = 'x'\n# the end\n\n[servers.b]\ncommand = \"y\"\n");
    let first = edit("", |file| file.set(&["servers", "b", "command"], &json!("y")).unwrap());
    assert_eq!(first, "[servers.b]\ncommand = \"y\"\n");
    let commented =
        edit("# only this\n", |file| file.set(&["servers", "b", "command"], &json!("y")).unwrap());
    assert_eq!(commented, "# only this\n\n[servers.b]\ncommand = \"y\"\n");
}

#[test]
fn remove_table_removes_only_its_own_comment() {
    let after = edit(SOURCE, |file| assert!(file.remove(&["servers", "b"])));
    assert_eq!(after, SOURCE.replace("# about b\n[servers.b]\nurl = \"u\"\n\n", ""));
    let first = edit(SOURCE, |file| assert!(file.remove(&["servers", "a"])));
    assert!(first.starts_with("# mine\n\n# about b\n[servers.b]"), "{first}");
    assert!(!TomlFile::parse(SOURCE).unwrap().remove(&["servers", "c"]));
}

#[test]
fn edit_keeps_bom_and_line_endings() {
    let crlf = format!("\u{feff}{}", SOURCE.replace('\n', "\r\n"));
    let set = |file: &mut TomlFile| file.set(&["servers", "c", "command"], &json!("z")).unwrap();
    assert_eq!(edit(&crlf, set), format!("\u{feff}{}", edit(SOURCE, set).replace('\n', "\r\n")));
    let mixed = SOURCE.replace("# mine\n", "# mine\r\n");
    assert_eq!(edit(&mixed, set), edit(SOURCE, set).replace("# mine\n", "# mine\r\n"));
    let without_end = crlf.strip_suffix("\r\n# the end\r\n").unwrap();
    assert_eq!(edit(without_end, set), edit(&crlf, set).replace("\r\n# the end\r\n", ""));
}

#[test]
fn set_works_in_dotted_and_inline_tables() {
    let set = |file: &mut TomlFile| file.set(&["servers", "b", "command"], &json!("y")).unwrap();
    assert_eq!(edit("servers.a.command = 'x'\n", set).matches("command").count(), 2);
    let inline = edit("servers = { a = { command = 'x' } } # all\n", set);
    assert!(inline.ends_with("# all\n"), "{inline}");
    let read = TomlFile::parse(&inline).unwrap();
    assert_eq!(read.get(&["servers", "b"]), Some(json!({"command": "y"})));
    assert_eq!(read.keys(&["servers"]), ["a", "b"]);
    assert!(read.contains(&["servers", "a"]) && !read.contains(&["servers", "a", "url"]));
}

#[test]
fn invalid_edits_report_the_reason() {
    let error = TomlFile::parse("a = 1\nb = = 2\n").err();
    assert!(matches!(error, Some(TomlEditError::Syntax { line: 2, column: 5, .. })), "{error:?}");
    let mut scalar = TomlFile::parse("servers = 5\n").unwrap();
    assert_eq!(
        scalar.set(&["servers", "a", "x"], &json!(1)),
        Err(TomlEditError::NotATable("servers".to_owned()))
    );
    assert_eq!(scalar.set(&["x"], &json!(null)), Err(TomlEditError::NotRepresentable("x".to_owned())));
}
