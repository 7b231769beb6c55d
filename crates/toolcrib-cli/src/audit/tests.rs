//! Real files, a device that is always full, and the writer's own thread.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::SystemTime;

use tempfile::TempDir;
use toolcrib::event::{CacheUse, Decision, Ending};
use toolcrib::policy::Denial;
use toolcrib::{Caller, ServerId};

use super::*;

fn called(name: &str) -> Called {
    Called {
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_794_732_506_042),
        caller: Caller::named("ci"),
        method: "tools/call".into(),
        server: Some("git".parse::<ServerId>().unwrap()),
        name: name.into(),
        decision: Decision::Allowed,
        denial: None,
        cache: Some(CacheUse::Miss),
        asked: 12,
        answered: 345,
        ending: Ending::Done,
        took: Duration::from_micros(1_234),
        arguments: None,
    }
}

fn spec(file: &Path) -> AuditSpec {
    AuditSpec { file: file.to_owned(), required: false, arguments: false, size: 1 << 20, keep: 2 }
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "{text}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// One call as it is written.
fn written(called: &Called) -> Value {
    let mut out = Vec::new();
    line::write(&mut out, called, &mut Clock::default());
    assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn a_call_is_one_line_with_everything_but_what_was_said() {
    let plain = json!({
        "at": "2026-11-15T08:48:26.042Z", "caller": "ci", "method": "tools/call", "server": "git",
        "name": "say \"\n\"", "decision": "allowed", "rule": null, "cache": "miss", "outcome": "ok",
        "ms": 1.234, "asked": 12, "answered": 345,
    });
    assert_eq!(written(&called("say \"\n\"")), plain);
    let denied = Called {
        decision: Decision::Denied,
        denial: Some(Denial { rule: "`policy.deny` has `git.*`".to_owned(), origin: None }),
        ending: Ending::Failed(ErrorKind::Denied),
        cache: None,
        ..called("push")
    };
    let line = written(&denied);
    assert_eq!(line["rule"], "`policy.deny` has `git.*`");
    assert_eq!((&line["outcome"], &line["cache"]), (&json!("denied"), &Value::Null));
}

#[test]
fn what_looks_like_a_secret_is_not_written() {
    let arguments = json!({
        "path": "/tmp", "api_key": "k1", "nested": [{"GitHub-Token": {"x": "k2"}}], "header": "Bearer k3",
        "url": "https://me:k4@host/x", "page": "https://host/x?sig=k5", "jwt": "eyJk6", "n": 1,
    });
    let line = written(&Called { arguments: Some(arguments.to_string().into()), ..called("x") });
    assert_eq!((&line["arguments"]["path"], &line["arguments"]["n"]), (&json!("/tmp"), &json!(1)));
    assert_eq!(line["arguments"]["page"], "https://host/x");
    assert!((1..=6).all(|k| !line.to_string().contains(&format!("k{k}"))), "{line}");
    let read = Called { method: "resources/read".into(), ..called("https://host/doc?token=k7") };
    assert_eq!(written(&read)["name"], "https://host/doc");
    let large = Called { arguments: Some(vec![b' '; 1 << 20].into()), ..called("x") };
    assert_eq!(written(&large)["arguments"], "[too large]");
}

#[test]
fn what_was_seen_is_in_a_file_of_its_owner_when_the_audit_is_closed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("new/audit.jsonl");
    let audit = Audit::new(Some(&spec(&file))).unwrap();
    (0..1000).for_each(|n| audit.saw(&called(&n.to_string())));
    audit.close();
    let names: Vec<_> = lines(&file).iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_line_that_was_cut_off_is_ended_before_the_next() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    std::fs::write(&file, "{\"at\":1}\n{\"at\":\"20").unwrap();
    let audit = Audit::new(Some(&spec(&file))).unwrap();
    audit.saw(&called("next"));
    audit.close();
    let text = std::fs::read_to_string(&file).unwrap();
    let last = text.lines().last().unwrap();
    assert_eq!((text.lines().count(), text.lines().nth(1)), (3, Some("{\"at\":\"20")));
    assert_eq!(serde_json::from_str::<Value>(last).unwrap()["name"], "next");
}

#[test]
fn a_file_that_is_full_is_kept_under_a_number_and_the_oldest_goes() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let mut book = Book::new(AuditSpec { size: 20, ..spec(&file) });
    for line in ["{\"n\":1111111}\n", "{\"n\":2222222}\n", "{\"n\":3333333}\n", "{\"n\":4444444}\n"] {
        book.append(line.as_bytes()).unwrap();
    }
    let kept = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    assert_eq!(kept("audit.jsonl"), "{\"n\":4444444}\n");
    assert_eq!(kept("audit.jsonl.1"), "{\"n\":3333333}\n");
    assert_eq!(kept("audit.jsonl.2"), "{\"n\":2222222}\n");
    assert_eq!(kept("audit.jsonl.3"), "");
}

#[test]
fn several_writers_turn_over_one_file_and_lose_no_line() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let spec = AuditSpec { size: 2000, keep: 1000, ..spec(&file) };
            thread::spawn(move || {
                let mut book = Book::new(spec);
                (0..50).for_each(|n| {
                    book.append(format!("{{\"n\":{}}}\n", writer * 50 + n).as_bytes()).unwrap();
                });
            })
        })
        .collect();
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut seen: Vec<_> =
        files.flat_map(|file| lines(&file)).map(|line| line["n"].as_u64().unwrap()).collect();
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
}

/// Waits until this holds.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        thread::yield_now();
    }
}

#[test]
fn a_full_disk_is_told_of_and_what_could_not_be_written_is_written_later() {
    let folder = TempDir::new().unwrap();
    let (file, real) = (folder.path().join("audit.jsonl"), folder.path().join("real.jsonl"));
    symlink("/dev/full", &file).unwrap();
    let audit = Audit::new(Some(&spec(&file))).unwrap();
    audit.saw(&called("first"));
    until(|| audit.problem().is_some());
    let message = audit.problem().unwrap()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("No space left") && message.contains("calls are not recorded"), "{message}");
    assert!(audit.is_ready().is_ok(), "calls go on");
    audit.saw(&called("second"));
    std::fs::remove_file(&file).unwrap();
    symlink(&real, &file).unwrap();
    until(|| audit.problem().is_none());
    audit.close();
    let names: Vec<_> = lines(&real).iter().map(|line| line["name"].clone()).collect();
    assert_eq!(names, ["first", "second"]);
}

#[test]
fn calls_that_must_be_recorded_are_refused_while_they_cannot_be() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    symlink("/dev/full", &file).unwrap();
    let audit = Audit::new(Some(&AuditSpec { required: true, ..spec(&file) })).unwrap();
    assert!(audit.is_ready().is_ok());
    audit.saw(&called("first"));
    until(|| audit.is_ready().is_err());
    let refused = audit.is_ready().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unrecorded);
    assert!(refused.to_string().contains("No space left"), "{refused}");
    std::fs::remove_file(&file).unwrap();
    until(|| audit.is_ready().is_ok());
    let nowhere = AuditSpec { required: true, ..spec(Path::new("/proc/nowhere/audit")) };
    assert_eq!(audit.change(Some(&nowhere)).unwrap_err().exit, Exit::BadConfig);
}

#[test]
fn what_finds_no_room_is_counted_in_the_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    symlink("/dev/full", &file).unwrap();
    let large = AuditSpec { size: 64 << 20, ..spec(&file) };
    let audit = Audit::new(Some(&large)).unwrap();
    audit.saw(&called("first"));
    until(|| audit.problem().is_some());
    let (name, mut made) = ("x".repeat(1 << 16), 1);
    while audit.shared.queue().lost < 3 {
        audit.saw(&called(&name));
        made += 1;
    }
    std::fs::remove_file(&file).unwrap();
    until(|| audit.problem().is_none());
    audit.close();
    let lines = lines(&file);
    let lost: u64 = lines.iter().filter_map(|line| line["lost"].as_u64()).sum();
    let there = lines.iter().filter(|line| line["lost"].is_null()).count();
    assert_eq!((lost, there + 3), (3, made));
}
