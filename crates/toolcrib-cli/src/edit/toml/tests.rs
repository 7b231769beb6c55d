//! What an edit changes, and what it leaves.

use serde_json::json;

use super::*;

fn edited(before: &str, edit: impl FnOnce(&mut TomlFile)) -> String {
    let mut file = TomlFile::parse(before).unwrap();
    assert_eq!(file.render(), before, "what was only read is the same");
    edit(&mut file);
    file.render()
}

const MINE: &str = "# mine\n\n[servers.a]   # first\ncommand = 'x'  # why\n\n# about b\n[servers.b]\nurl = \"u\"\n\n[limits]\nbody = '1MiB'\n# the end\n";

#[test]
fn a_value_is_replaced_and_nothing_else() {
    let after = edited(MINE, |file| file.set(&["servers", "a", "command"], &json!("y")).unwrap());
    assert_eq!(after, MINE.replace("'x'", "\"y\""));
    let same = edited(MINE, |file| file.set(&["servers", "a", "command"], &json!("x")).unwrap());
    assert_eq!(same, MINE, "a value that is there keeps its quotes");
    let added = edited(MINE, |file| file.set(&["servers", "a", "enabled"], &json!(false)).unwrap());
    assert_eq!(added, MINE.replace("# why\n", "# why\nenabled = false\n"));
}

#[test]
fn a_new_table_stands_behind_its_neighbours() {
    let after = edited(MINE, |file| {
        file.set(&["servers", "c", "command"], &json!("z")).unwrap();
        file.set(&["servers", "c", "args"], &json!(["-y", "p"])).unwrap();
        file.set(&["servers", "c", "env"], &json!({"K": "v"})).unwrap();
    });
    let c = "\n[servers.c]\ncommand = \"z\"\nargs = [\"-y\", \"p\"]\nenv = { K = \"v\" }\n";
    assert_eq!(after, MINE.replace("\n[limits]", &format!("{c}\n[limits]")));
    let last = edited("[servers.a]\ncommand = 'x'\n# the end", |file| {
        file.set(&["servers", "b", "command"], &json!("y")).unwrap();
    });
    assert_eq!(last, "[servers.a]\ncommand = 'x'\n# the end\n\n[servers.b]\ncommand = \"y\"\n");
    let first = edited("", |file| file.set(&["servers", "b", "command"], &json!("y")).unwrap());
    assert_eq!(first, "[servers.b]\ncommand = \"y\"\n");
    let commented =
        edited("# only this\n", |file| file.set(&["servers", "b", "command"], &json!("y")).unwrap());
    assert_eq!(commented, "# only this\n\n[servers.b]\ncommand = \"y\"\n");
}

#[test]
fn a_removed_table_takes_its_own_comment_along_and_no_other() {
    let after = edited(MINE, |file| assert!(file.remove(&["servers", "b"])));
    assert_eq!(after, MINE.replace("# about b\n[servers.b]\nurl = \"u\"\n\n", ""));
    let first = edited(MINE, |file| assert!(file.remove(&["servers", "a"])));
    assert!(first.starts_with("# mine\n\n# about b\n[servers.b]"), "{first}");
    assert!(!TomlFile::parse(MINE).unwrap().remove(&["servers", "c"]));
}

#[test]
fn the_mark_at_the_beginning_and_the_ends_of_lines_stay() {
    let windows = format!("\u{feff}{}", MINE.replace('\n', "\r\n"));
    let set = |file: &mut TomlFile| file.set(&["servers", "c", "command"], &json!("z")).unwrap();
    assert_eq!(edited(&windows, set), format!("\u{feff}{}", edited(MINE, set).replace('\n', "\r\n")));
    let mixed = MINE.replace("# mine\n", "# mine\r\n");
    assert_eq!(edited(&mixed, set), edited(MINE, set).replace("# mine\n", "# mine\r\n"));
}

#[test]
fn other_ways_to_write_a_table_work_too() {
    let set = |file: &mut TomlFile| file.set(&["servers", "b", "command"], &json!("y")).unwrap();
    assert_eq!(edited("servers.a.command = 'x'\n", set).matches("command").count(), 2);
    let inline = edited("servers = { a = { command = 'x' } } # all\n", set);
    assert!(inline.ends_with("# all\n"), "{inline}");
    let read = TomlFile::parse(&inline).unwrap();
    assert_eq!(read.get(&["servers", "b"]), Some(json!({"command": "y"})));
    assert_eq!(read.keys(&["servers"]), ["a", "b"]);
    assert!(read.has(&["servers", "a"]) && !read.has(&["servers", "a", "url"]));
}

#[test]
fn what_cannot_be_edited_says_why() {
    let bad = TomlFile::parse("a = 1\nb = = 2\n").err();
    assert!(matches!(bad, Some(BadToml::Syntax { line: 2, column: 5, .. })), "{bad:?}");
    let mut scalar = TomlFile::parse("servers = 5\n").unwrap();
    assert_eq!(scalar.set(&["servers", "a", "x"], &json!(1)), Err(BadToml::NoTable("servers".to_owned())));
    assert_eq!(scalar.set(&["x"], &json!(null)), Err(BadToml::Unspeakable("x".to_owned())));
}
