//! Tests with real files, `/dev/full` and the writer thread.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use tempfile::TempDir;
use toolcrib::model::denial::Denial;
use toolcrib::model::event::{CacheUse, CallEnd, Decision};
use toolcrib::{Caller, ServerId};

use super::chain::ChainWriter;
use super::file::numbered_path;
use super::*;

fn record(name: &str) -> CallRecord {
    CallRecord {
        id: CallId::from_number(0x19a8_c3f2_b1e0_0001),
        at: SystemTime::UNIX_EPOCH + Duration::from_millis(1_794_732_506_042),
        caller: Caller::new("ci"),
        client: CallClient { key: 1, name: None, era: Era::Session },
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
        timing: CallTiming::default(),
        attempts: 1,
        approval: None,
        spans: None,
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
        "at": "2026-11-15T08:48:26.042Z", "id": "19a8c3f2b1e00001", "caller": "ci", "method": "tools/call", "server": "git",
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
    append_numbers(&AuditSpec { size: 20, ..spec(&file) }, 1..=4);
    let numbers = |name: &str| -> Vec<_> {
        lines(&folder.path().join(name)).iter().map(|line| line["n"].as_u64().unwrap()).collect()
    };
    assert_eq!(numbers("audit.jsonl"), [4]);
    assert_eq!(numbers("audit.jsonl.1"), [3]);
    assert_eq!(numbers("audit.jsonl.2"), [2]);
    assert!(!folder.path().join("audit.jsonl.3").exists());
    let chain = verify(&file).unwrap().unwrap();
    assert_eq!((chain.files, chain.lines), (3, 3));
    assert!(chain.continues.is_some(), "the oldest file continues the removed one");
}

/// Appends lines with these numbers, each as a batch of its own.
fn append_numbers(spec: &AuditSpec, numbers: std::ops::RangeInclusive<u64>) {
    let mut file = AuditFile::new(spec.clone());
    numbers.for_each(|n| file.append(format!("{{\"n\":{n}}}\n").as_bytes()).unwrap());
}

/// Returns the number of the line at which the chain of a file is broken.
fn broken_line(file: &Path) -> Option<u64> {
    verify(file).unwrap().err().map(|broken| broken.line)
}

#[test]
fn every_change_of_a_line_breaks_the_chain() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    append_numbers(&spec(&file), 1..=5);
    let text = std::fs::read_to_string(&file).unwrap();
    assert_eq!(broken_line(&file), None);
    let lines: Vec<&str> = text.lines().collect();
    let changed_number = text.replace("\"n\":3", "\"n\":7");
    let removed_line = lines
        .iter()
        .filter(|line| !line.contains("\"n\":2"))
        .fold(String::new(), |text, line| text + line + "\n");
    let swapped = format!("{}\n{}\n{}\n", lines[0], lines[2], lines[1]);
    let without_link = format!("{text}{{\"n\":6}}\n");
    let unchained_start = format!("{{\"n\":0}}\n{text}");
    let without_hash = text.replacen(",\"hash\":\"blake2b\"", "", 1);
    let upper_case_link =
        text.replacen(&lines[0][lines[0].len() - 66..], &lines[0][lines[0].len() - 66..].to_uppercase(), 1);
    for (changed, line) in [
        (changed_number, 3),
        (removed_line, 2),
        (swapped, 2),
        (without_link, 6),
        (unchained_start, 2),
        (upper_case_link, 2),
        (without_hash, 1),
    ] {
        assert_ne!(changed, text);
        std::fs::write(&file, &changed).unwrap();
        assert_eq!(broken_line(&file), Some(line), "{changed}");
    }
}

#[test]
fn chain_spans_rotated_files() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let spec = AuditSpec { size: 300, keep: 100, ..spec(&file) };
    append_numbers(&spec, 1..=10);
    append_numbers(&spec, 11..=20);
    let chain = verify(&file).unwrap().unwrap();
    assert_eq!((chain.lines, chain.continues), (20, None));
    assert!(chain.files > 3, "{chain:?}");
    std::fs::remove_file(folder.path().join("audit.jsonl.2")).unwrap();
    for number in 3..chain.files {
        let path = |number: usize| folder.path().join(format!("audit.jsonl.{number}"));
        std::fs::rename(path(number), path(number - 1)).unwrap();
    }
    let broken = verify(&file).unwrap().unwrap_err();
    assert_eq!((broken.file, broken.line), (folder.path().join("audit.jsonl.1"), 1));
}

#[test]
fn chain_is_intact_after_fewer_files_are_kept() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    append_numbers(&AuditSpec { size: 20, keep: 5, ..spec(&file) }, 1..=8);
    append_numbers(&AuditSpec { size: 20, keep: 2, ..spec(&file) }, 9..=10);
    let chain = verify(&file).unwrap().unwrap();
    assert_eq!((chain.files, chain.lines), (3, 3));
}

#[test]
fn file_that_was_moved_away_is_missed() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    let mut writer = AuditFile::new(spec(&file));
    writer.append(b"{\"n\":1}\n").unwrap();
    std::fs::remove_file(&file).unwrap();
    writer.append(b"{\"n\":2}\n").unwrap();
    assert!(verify(&file).unwrap().unwrap().continues.is_some());
}

#[test]
fn lines_of_an_earlier_version_and_incomplete_lines_are_covered_by_the_next_link() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    std::fs::write(&file, "{\"n\":1}\n{\"n\":2}\n{\"n\"").unwrap();
    assert_eq!(verify(&file).unwrap().unwrap().last, None);
    append_numbers(&spec(&file), 3..=4);
    let chain = verify(&file).unwrap().unwrap();
    assert_eq!((chain.lines, chain.unchained), (2, 3));
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("\"n\":2", "\"n\":9")).unwrap();
    assert_eq!(broken_line(&file), Some(4));
    std::fs::write(&file, format!("{text}{{\"n\":5")).unwrap();
    assert_eq!(broken_line(&file), None, "a killed writer may leave the last line incomplete");
}

#[test]
fn link_is_the_blake2b_digest_of_what_it_covers() {
    // Computed with `hashlib.blake2b(data, digest_size=32)` of Python.
    let [first, second, third] = [
        "6801a0614c96feb52afafa7751a31cebc26b7dedbc0f0122fcb84f10d9c8dab1",
        "5576987b76a0d32319854cd872b9c1f75f8fa3baf1349f4bff1d457f578fa7e0",
        "dff35e8881281671d5ee48e15f797587dd3185d3f154c792144b7fdd38151882",
    ];
    let long = "x".repeat(300);
    let chained =
        |members: &str, link: &str| format!("{{{members},\"hash\":\"blake2b\",\"chain\":\"{link}\"}}\n");
    let mut file = ChainWriter::begin(None);
    file.write_lines(format!("{{\"n\":1}}\na\n{{\"n\":\"{long}\"}}\n").as_bytes());
    let expected = chained("\"n\":1", first) + "a\n" + &chained(&format!("\"n\":\"{long}\""), second);
    assert_eq!(String::from_utf8_lossy(&file.out), expected);
    let mut next = ChainWriter::begin(file.last);
    next.write_lines(b"{\"n\":3}\n");
    let expected = chained(&format!("\"n\":3,\"previous\":\"{second}\""), third);
    assert_eq!(String::from_utf8_lossy(&next.out), expected);
}

/// Copies a file that earlier versions wrote, alone (`sha256`) or in turn with this one (`mixed`), to `audit.jsonl`.
fn copy_fixture(name: &str, folder: &TempDir) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/audit/fixtures").join(name);
    let file = folder.path().join("audit.jsonl");
    for number in (0..).take_while(|number| numbered_path(&from, *number).exists()) {
        std::fs::copy(numbered_path(&from, number), numbered_path(&file, number)).unwrap();
    }
    file
}

/// Changes every byte of one file of a chain in turn and checks that the chain breaks at its line. A link that is no longer one
/// breaks it at the next.
fn assert_every_change_is_found(file: &Path, changed: &Path) {
    let text = std::fs::read_to_string(changed).unwrap();
    let mut start = 0;
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        let covered = line.find(",\"chain\"").unwrap_or(0);
        for index in 0..line.trim_end().len() {
            let mut other = text.clone().into_bytes();
            other[start + index] ^= 1;
            std::fs::write(changed, other).unwrap();
            let broken = verify(file).unwrap().unwrap_err();
            assert_eq!(broken.file, changed);
            let is_later = index >= covered && broken.line > number;
            assert!(broken.line == number || is_later, "byte {index} of {line}: {broken:?}");
        }
        start += line.len();
    }
    std::fs::write(changed, text).unwrap();
}

#[test]
fn file_of_an_earlier_version_is_continued() {
    let folder = TempDir::new().unwrap();
    let file = copy_fixture("sha256.jsonl", &folder);
    let earlier = std::fs::read_to_string(&file).unwrap();
    append_numbers(&spec(&file), 4..=5);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with(&earlier), "{text}");
    assert_eq!(verify(&file).unwrap().unwrap().lines, 5);
    std::fs::write(&file, text.replacen(",\"chain\"", ",\"hash\":\"blake2b\",\"chain\"", 1)).unwrap();
    assert_eq!(broken_line(&file), Some(1));
}

#[test]
fn files_that_two_versions_write_in_turn_are_intact() {
    let folder = TempDir::new().unwrap();
    let file = copy_fixture("mixed.jsonl", &folder);
    let last = lines(&file).pop().unwrap()["chain"].clone();
    append_numbers(&AuditSpec { size: 20, keep: 3, ..spec(&file) }, 9..=9);
    assert_eq!(lines(&file)[0]["previous"], last);
    let chain = verify(&file).unwrap().unwrap();
    assert_eq!((chain.files, chain.lines, chain.unchained), (4, 9, 1));
    (0..4).for_each(|number| assert_every_change_is_found(&file, &numbered_path(&file, number)));
}

#[test]
fn last_link_is_found_far_from_the_end() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit.jsonl");
    append_numbers(&spec(&file), 1..=2);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + &"x".repeat(200_000)).unwrap();
    append_numbers(&spec(&file), 3..=3);
    assert_eq!(verify(&file).unwrap().unwrap().lines, 3);
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
    assert_eq!(verify(&file).unwrap().unwrap().lines, 200);
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
