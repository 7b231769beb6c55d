//! Tests with real files and the writer thread.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use tempfile::TempDir;
use toolcrib::model::event::CallEnd;
use toolcrib::util::format::format_timestamp;
use toolcrib::{CallClient, CallTiming, Caller, Denial, Era, ErrorKind};

use super::record::Records;
use super::*;

/// Returns the record of a call that ended now.
pub(crate) fn call_record(name: &str) -> CallRecord {
    let at = wall_time();
    CallRecord {
        id: CallId::from_number(toolcrib::util::time_id::next_time_id(at)),
        at,
        caller: Caller::new("ci"),
        client: CallClient { key: 7, name: Some("ide".into()), era: Era::Session },
        method: "tools/call".into(),
        server: Some("git".parse().unwrap()),
        name: name.into(),
        decision: Decision::Allowed,
        denial: None,
        cache: None,
        request_bytes: 10,
        response_bytes: 401,
        end: CallEnd::Done,
        duration: Duration::from_micros(2500),
        timing: CallTiming { server: Duration::from_micros(2000), ..CallTiming::default() },
        attempts: 1,
        approval: None,
        spans: None,
        arguments: None,
    }
}

fn denied_record() -> CallRecord {
    CallRecord {
        caller: Caller::new("ada"),
        decision: Decision::Denied,
        denial: Some(Denial { rule: "`policy.deny`".to_owned(), origin: None }),
        end: CallEnd::Failed(ErrorKind::Denied),
        response_bytes: 0,
        ..call_record("push")
    }
}

fn open(folder: &TempDir) -> CallHistory {
    CallHistory::new(folder.path().join("history"), &HistorySpec::default(), false)
}

fn page(limit: usize) -> CallFilter {
    CallFilter { limit, ..CallFilter::default() }
}

#[tokio::test]
async fn calls_survive_a_kill_and_are_found_by_page_filter_and_id() {
    let folder = TempDir::new().unwrap();
    let history = open(&folder);
    let records: Vec<CallRecord> = (0..5).map(|number| call_record(&format!("log{number}"))).collect();
    records.iter().for_each(|record| history.call_ended(record));
    let denied = denied_record();
    history.call_ended(&denied);
    let newest = history.calls(page(2)).await.unwrap();
    assert_eq!(newest.calls.iter().map(|call| &*call.tool).collect::<Vec<_>>(), ["push", "log4"]);
    assert_eq!(newest.next, Some(records[4].id.to_string()));

    // A process that is killed neither closes the file nor finishes its last record.
    std::mem::forget(history);
    let file = segments::list(&folder.path().join("history")).unwrap().remove(0);
    let path = folder.path().join("history").join(format!("{:016x}.history", file.first));
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend_from_slice(&[200, 0, 0, 0, 1, 5]);
    fs::write(&path, bytes).unwrap();
    // No process starts in the millisecond in which another one is killed.
    let killed_at = to_time_id(wall_time());
    while to_time_id(wall_time()) == killed_at {
        thread::yield_now();
    }

    let history = open(&folder);
    history.call_ended(&call_record("after"));
    let before = CallFilter { before: Some(records[1].id), ..page(10) };
    assert_eq!(history.calls(before).await.unwrap().calls[0].tool, "log0");
    let all = history.calls(page(10)).await.unwrap();
    assert_eq!((all.calls.len(), all.next), (7, None));
    assert_eq!(all.calls[0].tool, "after");
    let by_outcome = CallFilter { outcome: Some(CallOutcome::Denied), ..page(10) };
    assert_eq!(history.calls(by_outcome).await.unwrap().calls[0].rule.as_deref(), Some("`policy.deny`"));
    let of_caller = CallFilter { caller: Some("ada".to_owned()), ..page(10) };
    assert_eq!(history.calls(of_caller).await.unwrap().calls.len(), 1);
    let found = history.call(denied.id, None).await.unwrap().unwrap();
    assert_eq!((&*found.outcome, found.error.as_deref(), found.duration_ms), ("denied", Some("denied"), 2.5));
    assert_eq!(history.call(denied.id, Some("ci".to_owned())).await.unwrap(), None);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
}

#[tokio::test]
async fn stats_have_totals_rows_series_and_cost() {
    let folder = TempDir::new().unwrap();
    let history = open(&folder);
    let since = wall_time() - Duration::from_secs(60);
    for millis in 1..=100 {
        history.call_ended(&CallRecord { duration: Duration::from_millis(millis), ..call_record("log") });
    }
    history.call_ended(&denied_record());
    history.call_ended(&CallRecord { end: CallEnd::ToolError, ..call_record("status") });
    let query = StatsQuery {
        since,
        until: wall_time(),
        step: Some(Duration::from_secs(10)),
        caller: None,
        with_cost: true,
    };
    let stats = history.stats(query.clone()).await.unwrap();
    let totals = &stats.totals;
    assert_eq!((totals.calls, totals.errors, totals.denied), (102, 1, 1));
    assert_eq!((totals.result_tokens, totals.histogram.iter().sum::<u64>()), (101 * 101, 102));
    let p95 = totals.p95_ms.unwrap();
    assert!((93.0..101.0).contains(&p95), "{p95}");
    assert_eq!(stats.servers[0].calls_series.iter().sum::<u64>(), 102);
    assert_eq!(stats.series.iter().map(|point| point.stats.calls).sum::<u64>(), 102);
    let tools: Vec<&str> = stats.tools.iter().filter_map(|tool| tool.name.as_deref()).collect();
    assert_eq!(tools, ["log", "push", "status"]);
    let cost = stats.cost.unwrap();
    assert_eq!(cost.days.iter().map(|day| &*day.caller).collect::<Vec<_>>(), ["ada", "ci"]);
    let own = history.stats(StatsQuery { caller: Some("ada".to_owned()), ..query }).await.unwrap();
    assert_eq!((own.totals.calls, own.callers.len()), (1, 1));
    let calls = history.client_calls(since).await.unwrap();
    assert_eq!((calls.count_by_key(7, since), calls.count_by_name("ide", "ada", since)), (102, 1));
}

#[test]
fn files_are_bounded_in_size_and_age() {
    let folder = TempDir::new().unwrap();
    let spec = HistorySpec { enabled: true, size: 1 << 20, age: Duration::from_secs(1600) };
    let mut writer = SegmentWriter::open(folder.path(), spec.clone()).unwrap().writer;
    let start = wall_time();
    let mut batch = |number: u64| {
        let at = start + Duration::from_secs(number);
        let mut bytes = Vec::new();
        for place in 0..100 {
            write_call(
                &mut bytes,
                &mut CallTextWriter::default(),
                to_time_id(at) + place,
                &call_record(&"x".repeat(200)),
                "",
            );
        }
        writer.append(&bytes, at).unwrap();
    };
    (0..100).for_each(&mut batch);
    let total = |folder: &Path| -> u64 {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    };
    assert!(total(folder.path()) <= spec.size, "{}", total(folder.path()));
    assert!(total(folder.path()) > spec.size / 2);
    // Each file covers at most 100 s, a sixteenth of the age.
    for number in (200..4000).step_by(50) {
        batch(number);
    }
    let oldest = segments::list(folder.path()).unwrap()[0].clone();
    let first = Records::new(&oldest.read().unwrap()).next().unwrap().seq();
    assert!(first >= to_time_id(start + Duration::from_secs(3950 - 1600 - 150)));
    writer.remove_old(start + Duration::from_secs(8000)).unwrap();
    assert!(segments::list(folder.path()).unwrap().is_empty(), "nothing is written, and everything is old");
}

#[test]
fn records_that_cannot_be_written_are_counted() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let history = CallHistory::new(file.path().join("history"), &HistorySpec::default(), false);
    history.call_ended(&call_record("log"));
    history.shared.flush();
    assert_eq!(history.shared.dropped.load(Ordering::Relaxed), 1);
    let disabled = CallHistory::disabled();
    assert!(!disabled.is_enabled());
    disabled.shared.flush();
}

#[tokio::test]
async fn stream_resumes_after_an_event_and_follows() {
    let folder = TempDir::new().unwrap();
    let history = open(&folder);
    let server: ServerId = "git".parse().unwrap();
    let crashed = Event::Crashed {
        server: server.clone(),
        class: FailureClass::Crashed,
        reason: "exit status 1".to_owned(),
    };
    let started = Event::Started { server: server.clone(), pid: Some(1), duration: Duration::from_millis(5) };
    for event in [&started, &crashed, &started] {
        history.server_event(event);
    }
    let closing = CancellationToken::new();
    let filter = EventFilter { after: Some(0), follow: true, ..EventFilter::default() };
    let mut stream = history.open_stream("local", filter.clone(), closing.clone()).unwrap();
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.push(String::from_utf8(stream.recv().await.unwrap()).unwrap());
    }
    let kinds: Vec<&str> =
        frames.iter().map(|frame| frame.lines().nth(1).unwrap().trim_start_matches("event: ")).collect();
    assert_eq!(kinds, ["started", "exited", "restarted"]);
    let id = frames[1].lines().next().unwrap().trim_start_matches("id: ");
    let after: CallId = id.parse().unwrap();
    let mut resumed = history
        .open_stream("local", EventFilter { after: Some(after.number()), ..filter }, closing.clone())
        .unwrap();
    let next = String::from_utf8(resumed.recv().await.unwrap()).unwrap();
    assert_eq!(next, frames[2]);
    history.call_ended(&call_record("log"));
    let live = String::from_utf8(resumed.recv().await.unwrap()).unwrap();
    assert!(live.contains("event: call\n") && live.contains("tools/call git.log: ok in 2.5 ms"), "{live}");
    closing.cancel();
    assert_eq!(resumed.recv().await, None);
    let offline = read_events(&folder.path().join("history"), EventFilter::default()).unwrap();
    assert_eq!(offline.len(), 4);
}

#[test]
fn time_is_a_duration_before_now_or_a_date() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3600);
    let parse = |text: &str| parse_time(text, now).map(format_timestamp);
    for (text, time) in [
        ("30m", "1970-01-01T00:30:00.000Z"),
        ("2026-05-01", "2026-05-01T00:00:00.000Z"),
        ("2026-05-01T12", "2026-05-01T12:00:00.000Z"),
        ("2026-05-01 12:30", "2026-05-01T12:30:00.000Z"),
        ("2024-02-29T23:59:58.123Z", "2024-02-29T23:59:58.123Z"),
    ] {
        assert_eq!(parse(text).as_deref(), Some(time), "{text}");
    }
    for bad in
        ["", "yesterday", "2026-5-1", "2026-13-01", "2026", "10", "2h later", "2026-05-01T12:30:00.0000"]
    {
        assert_eq!(parse(bad), None, "{bad}");
    }
}
