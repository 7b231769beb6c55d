//! Tests of size, rate and failure handling of the log files.

use toolcrib::Event;

use super::*;

fn line(number: u64, at: Duration, text: &str) -> LogFileLine {
    let at = SystemTime::UNIX_EPOCH + at;
    LogFileLine { server: "git".parse().unwrap(), at, number: Some(number), text: text.to_owned() }
}

fn log_files(folder: &Path) -> OpenLogFiles {
    OpenLogFiles { folder: folder.to_owned(), files: HashMap::new(), is_failing: false }
}

#[test]
fn flood_is_limited_per_second_and_reports_dropped_lines() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = log_files(dir.path());
    let text = "x".repeat(1000);
    let flood = (1..=10_000).map(|number| line(number, Duration::from_millis(number / 100), &text));
    files.write(flood.collect());
    let path = log_file(dir.path(), "git");
    let size = fs::metadata(&path).unwrap().len();
    assert!((200_000..400_000).contains(&size), "{size}");
    files.write(vec![line(10_001, Duration::from_secs(5), "calm again")]);
    let text = fs::read_to_string(&path).unwrap();
    let last: Vec<&str> = text.lines().rev().take(2).collect();
    assert_eq!(last[0], "1970-01-01T00:00:05.000Z calm again");
    assert!(last[1].starts_with("1970-01-01T00:00:05.000Z toolcrib: 97"), "{}", last[1]);
    assert!(last[1].ends_with(" lines dropped"), "{}", last[1]);
}

#[test]
fn dropped_lines_are_reported_before_the_next_event() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = log_files(dir.path());
    let long = "x".repeat(1000);
    files.write((1..=1000).map(|number| line(number, Duration::ZERO, &long)).collect());
    for text in ["toolcrib: stopped", "toolcrib: started"] {
        files.write(vec![LogFileLine { number: None, ..line(0, Duration::ZERO, text) }]);
    }
    let text = fs::read_to_string(log_file(dir.path(), "git")).unwrap();
    let last: Vec<&str> = text.lines().rev().take(4).map(|line| &line[25..]).collect();
    assert_eq!(last[..3], ["toolcrib: started", "toolcrib: stopped", "toolcrib: 739 lines dropped"]);
    assert_eq!(last[3], long);
}

#[test]
fn files_are_rotated_and_the_oldest_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = log_files(dir.path());
    let text = "x".repeat(100_000);
    for number in 1..=50 {
        files.write(vec![line(number, Duration::from_secs(number), &text)]);
    }
    let mut files: Vec<(String, u64)> = fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().len()))
        .collect();
    files.sort();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["git.log", "git.log.1", "git.log.2"]);
    assert!(files.iter().all(|(_, size)| *size <= MAX_FILE_SIZE), "{files:?}");
}

#[test]
fn missing_folder_is_created_and_failures_are_tolerated() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("logs");
    let mut files = log_files(&folder);
    files.write(vec![line(1, Duration::ZERO, "one")]);
    fs::remove_dir_all(&folder).unwrap();
    files.write(vec![line(2, Duration::ZERO, "two")]);
    assert!(fs::read_to_string(log_file(&folder, "git")).unwrap().ends_with("two\n"));
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "in the way").unwrap();
    files.write(vec![line(3, Duration::ZERO, "three")]);
    assert!(files.is_failing);
    fs::remove_file(&folder).unwrap();
    files.write(vec![line(4, Duration::ZERO, "four")]);
    assert!(!files.is_failing);
}

#[test]
fn events_are_written_to_the_log() {
    let server: ServerId = "git".parse().unwrap();
    let event = Event::Crashed {
        server: server.clone(),
        class: toolcrib::FailureClass::Crashed,
        reason: "`git` died: exit status 3".to_owned(),
    };
    let line = LogLine { server: &server, at: SystemTime::UNIX_EPOCH, source: LogSource::Event(&event) };
    assert_eq!(LogFileLine::new(&line).unwrap().text, "toolcrib: `git` died: exit status 3");
}

#[tokio::test]
async fn events_are_written_even_if_the_queue_is_full() {
    let dir = tempfile::tempdir().unwrap();
    let tasks = TaskTracker::new();
    let logs = LogFiles::new(dir.path().to_owned(), &tasks);
    let sink = logs.sink();
    let server: ServerId = "git".parse().unwrap();
    let log = |source| sink(LogLine { server: &server, at: SystemTime::UNIX_EPOCH, source });
    // The writer task runs only once this task yields.
    (1..=5000).for_each(|number| log(LogSource::Stderr(number, "x")));
    log(LogSource::Event(&Event::Stopped { server: server.clone() }));
    drop(logs);
    tasks.close();
    tasks.wait().await;
    let text = fs::read_to_string(log_file(dir.path(), "git")).unwrap();
    let lines: Vec<&str> = text.lines().map(|line| &line[25..]).collect();
    assert_eq!(lines.len(), MAX_QUEUED + 1);
    assert_eq!(lines[MAX_QUEUED], "toolcrib: stopped");
}
