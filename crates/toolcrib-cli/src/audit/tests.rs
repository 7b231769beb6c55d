//! Tests with real files, `/dev/full` and the writer thread.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolcrib::model::denial::Denial;
use toolcrib::model::event::{CacheUse, CallEnd, Decision};
use toolcrib::{Caller, ServerId};

use super::*;

fn record(name: &str) -> CallRecord {
    CallRecord {
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_794_732_506_042),
        caller: Caller::new("ci"),
        method: "tools/call".into(),
        server: Some("git".parse::<ServerId>().unwrap()),
        name: name.into(),
        decision: Decision::Allowed,
        denial: None,
        cache: Some(CacheUse::Miss),
        request_bytes: 12,
        response_bytes: 345,
        end: CallEnd::Done,
        duration: Duration::from_micros(1_234),
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

/// Encodes one call and parses the line.
fn encode(record: &CallRecord) -> Value {
    let mut out = Vec::new();
    line::write_record(&mut out, record, &mut TimestampWriter::default());
    assert_eq!(out.iter().filter(|byte| **byte == b'\n').count(), 1);
    serde_json::from_slice(&out).unwrap()
}

#[test]
fn call_is_one_line_without_contents() {
    let plain = json!({
        "at": "2026-11-15T08:48:26.042Z", "caller": "ci", "method": "tools/call", "server": "git",
        "name": "say \"\n\"", "decision": "allowed", "rule": null, "cache": "miss", "outcome": "ok",
        "ms": 1.234, "asked": 12, "answered": 345,
    });
    assert_eq!(encode(&record("say \"\n\"")), plain);
    let denied = CallRecord {
        decision: Decision::Denied,
        denial: Some(Denial { rule: "`policy.deny` has `git.*`".to_owned(), origin: None }),
        end: CallEnd::Failed(ErrorKind::Denied),
        cache: None,
        ..record("push")
    };
    let line = encode(&denied);
    assert_eq!(line["rule"], "`policy.deny` has `git.*`");
    assert_eq!((&line["outcome"], &line["cache"]), (&json!("denied"), &Value::Null));
}

#[test]
fn secrets_are_redacted() {
    let arguments = json!({
        "path": "/tmp", "api_key": "k1", "nested": [{"GitHub-Token": {"x": "k2"}}], "header": "Bearer k3",
        "url": "https://me:k4@host/x", "page": "https://host/x?sig=k5", "jwt": "eyJk6", "n": 1,
    });
    let line = encode(&CallRecord { arguments: Some(arguments.to_string().into()), ..record("x") });
    assert_eq!((&line["arguments"]["path"], &line["arguments"]["n"]), (&json!("/tmp"), &json!(1)));
    assert_eq!(line["arguments"]["page"], "https://host/x");
    assert!((1..=6).all(|k| !line.to_string().contains(&format!("k{k}"))), "{line}");
    let read = CallRecord { method: "resources/read".into(), ..record("https://host/doc?token=k7") };
    assert_eq!(encode(&read)["name"], "https://host/doc");
    let large = CallRecord { arguments: Some(vec![b' '; 1 << 20].into()), ..record("x") };
    assert_eq!(encode(&large)["arguments"], "[too large]");
}

#[test]
fn close_writes_all_lines_to_a_private_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("new/audit.jsonl");
    let audit = Audit::new(Some(&spec(&file))).unwrap();
    (0..1000).for_each(|n| audit.call_ended(&record(&n.to_string())));
    audit.close();
    let names: Vec<_> = lines(&file).iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, (0..1000).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn incomplete_line_is_ended_before_the_next() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    std::fs::write(&file, "{\"at\":1}\n{\"at\":\"20").unwrap();
    let audit = Audit::new(Some(&spec(&file))).unwrap();
    audit.call_ended(&record("next"));
    audit.close();
    let text = std::fs::read_to_string(&file).unwrap();
    let last = text.lines().last().unwrap();
    assert_eq!((text.lines().count(), text.lines().nth(1)), (3, Some("{\"at\":\"20")));
    assert_eq!(serde_json::from_str::<Value>(last).unwrap()["name"], "next");
}

#[test]
fn full_file_is_rotated_and_the_oldest_removed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let mut file = AuditFile::new(AuditSpec { size: 20, ..spec(&file) });
    for line in ["{\"n\":1111111}\n", "{\"n\":2222222}\n", "{\"n\":3333333}\n", "{\"n\":4444444}\n"] {
        file.append(line.as_bytes()).unwrap();
    }
    let kept = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap_or_default();
    assert_eq!(kept("audit.jsonl"), "{\"n\":4444444}\n");
    assert_eq!(kept("audit.jsonl.1"), "{\"n\":3333333}\n");
    assert_eq!(kept("audit.jsonl.2"), "{\"n\":2222222}\n");
    assert_eq!(kept("audit.jsonl.3"), "");
}

#[test]
fn concurrent_writers_rotate_without_losing_lines() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let spec = AuditSpec { size: 2000, keep: 1000, ..spec(&file) };
            thread::spawn(move || {
                let mut file = AuditFile::new(spec);
                (0..50).for_each(|n| {
                    file.append(format!("{{\"n\":{}}}\n", writer * 50 + n).as_bytes()).unwrap();
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

/// Waits until the condition holds.
fn wait_until(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

#[test]
fn full_disk_is_reported_and_lines_are_written_later() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let real = folder.path().join("real.jsonl");
    symlink("/dev/full", &file).unwrap();
    let audit = Audit::new(Some(&spec(&file))).unwrap();
    audit.call_ended(&record("first"));
    wait_until(|| audit.problem().is_some());
    let message = audit.problem().unwrap().message;
    assert!(message.contains("No space left") && message.contains("calls are not recorded"), "{message}");
    assert!(audit.check_ready().is_ok(), "calls continue");
    audit.call_ended(&record("second"));
    std::fs::remove_file(&file).unwrap();
    symlink(&real, &file).unwrap();
    wait_until(|| audit.problem().is_none());
    audit.close();
    let names: Vec<_> = lines(&real).iter().map(|line| line["name"].clone()).collect();
    assert_eq!(names, ["first", "second"]);
}

#[test]
fn required_audit_refuses_calls_while_writing_fails() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    symlink("/dev/full", &file).unwrap();
    let audit = Audit::new(Some(&AuditSpec { required: true, ..spec(&file) })).unwrap();
    assert!(audit.check_ready().is_ok());
    audit.call_ended(&record("first"));
    wait_until(|| audit.check_ready().is_err());
    let refused = audit.check_ready().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unrecorded);
    assert!(refused.to_string().contains("No space left"), "{refused}");
    std::fs::remove_file(&file).unwrap();
    wait_until(|| audit.check_ready().is_ok());
    let unwritable = AuditSpec { required: true, ..spec(Path::new("/proc/nowhere/audit")) };
    assert_eq!(audit.prepare(Some(&unwritable)).unwrap_err().exit, ExitStatus::InvalidConfig);
}

#[test]
fn lost_calls_are_counted_in_the_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    symlink("/dev/full", &file).unwrap();
    let large = AuditSpec { size: 64 << 20, ..spec(&file) };
    let audit = Audit::new(Some(&large)).unwrap();
    audit.call_ended(&record("first"));
    wait_until(|| audit.problem().is_some());
    let name = "x".repeat(1 << 16);
    let mut calls = 1;
    while audit.shared.queue().lost < 3 {
        audit.call_ended(&record(&name));
        calls += 1;
    }
    std::fs::remove_file(&file).unwrap();
    wait_until(|| audit.problem().is_none());
    audit.close();
    let lines = lines(&file);
    let lost: u64 = lines.iter().filter_map(|line| line["lost"].as_u64()).sum();
    let recorded = lines.iter().filter(|line| line["lost"].is_null()).count();
    assert_eq!((lost, recorded + 3), (3, calls));
}
