//! How much is written, and what when nothing can be.

use super::*;

fn entry(number: u64, at: Duration, text: &str) -> Entry {
    let at = SystemTime::UNIX_EPOCH + at;
    Entry { server: "git".parse().unwrap(), at, number: Some(number), text: text.to_owned() }
}

fn books(folder: &Path) -> Books {
    Books { folder: folder.to_owned(), books: HashMap::new(), broken: false }
}

#[test]
fn a_flood_is_cut_to_a_bounded_number_of_bytes_a_second_and_says_how_much_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let mut books = books(dir.path());
    let line = "x".repeat(1000);
    let flood = (1..=10_000).map(|number| entry(number, Duration::from_millis(number / 100), &line));
    books.write(flood.collect());
    let path = log_file(dir.path(), "git");
    let size = fs::metadata(&path).unwrap().len();
    assert!((200_000..400_000).contains(&size), "{size}");
    books.write(vec![entry(10_001, Duration::from_secs(5), "calm again")]);
    let text = fs::read_to_string(&path).unwrap();
    let last: Vec<&str> = text.lines().rev().take(2).collect();
    assert_eq!(last[0], "1970-01-01T00:00:05.000Z calm again");
    assert!(last[1].starts_with("1970-01-01T00:00:05.000Z toolcrib: 97"), "{}", last[1]);
    assert!(last[1].ends_with(" lines left out"), "{}", last[1]);
}

#[test]
fn what_a_flood_left_out_is_told_when_something_happens_and_no_line_follows() {
    let dir = tempfile::tempdir().unwrap();
    let mut books = books(dir.path());
    let line = "x".repeat(1000);
    books.write((1..=1000).map(|number| entry(number, Duration::ZERO, &line)).collect());
    for text in ["toolcrib: stopped", "toolcrib: started"] {
        books.write(vec![Entry { number: None, ..entry(0, Duration::ZERO, text) }]);
    }
    let text = fs::read_to_string(log_file(dir.path(), "git")).unwrap();
    let last: Vec<&str> = text.lines().rev().take(4).map(|line| &line[25..]).collect();
    assert_eq!(last[..3], ["toolcrib: started", "toolcrib: stopped", "toolcrib: 739 lines left out"]);
    assert_eq!(last[3], line);
}

#[test]
fn files_are_turned_over_and_only_so_many_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut books = books(dir.path());
    let line = "x".repeat(100_000);
    for number in 1..=50 {
        books.write(vec![entry(number, Duration::from_secs(number), &line)]);
    }
    let mut files: Vec<(String, u64)> = fs::read_dir(dir.path())
        .unwrap()
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), file.metadata().unwrap().len()))
        .collect();
    files.sort();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["git.log", "git.log.1", "git.log.2"]);
    assert!(files.iter().all(|(_, size)| *size <= LARGEST), "{files:?}");
}

#[test]
fn a_folder_that_goes_is_made_again_and_one_that_cannot_be_is_endured() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("logs");
    let mut books = books(&folder);
    books.write(vec![entry(1, Duration::ZERO, "one")]);
    fs::remove_dir_all(&folder).unwrap();
    books.write(vec![entry(2, Duration::ZERO, "two")]);
    assert!(fs::read_to_string(log_file(&folder, "git")).unwrap().ends_with("two\n"));
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "in the way").unwrap();
    books.write(vec![entry(3, Duration::ZERO, "three")]);
    assert!(books.broken);
    fs::remove_file(&folder).unwrap();
    books.write(vec![entry(4, Duration::ZERO, "four")]);
    assert!(!books.broken);
}

#[test]
fn what_happened_to_a_server_is_in_its_log() {
    let server: ServerId = "git".parse().unwrap();
    let event = Event::Crashed {
        server: server.clone(),
        class: toolcrib::FailureClass::Crashed,
        why: "`git` died: exit status 3".to_owned(),
    };
    let line = LogLine { server: &server, at: SystemTime::UNIX_EPOCH, what: LogWhat::Happened(&event) };
    assert_eq!(Entry::new(&line).unwrap().text, "toolcrib: `git` died: exit status 3");
}

#[tokio::test]
async fn what_happens_is_written_however_many_lines_wait() {
    let (dir, tasks) = (tempfile::tempdir().unwrap(), TaskTracker::new());
    let logs = LogFiles::new(dir.path().to_owned(), &tasks);
    let (sink, server): (_, ServerId) = (logs.sink(), "git".parse().unwrap());
    let say = |what| sink(LogLine { server: &server, at: SystemTime::UNIX_EPOCH, what });
    // Nothing is written before this task waits for something.
    (1..=5000).for_each(|number| say(LogWhat::Stderr(number, "x")));
    say(LogWhat::Happened(&Event::Stopped { server: server.clone() }));
    drop(logs);
    tasks.close();
    tasks.wait().await;
    let text = fs::read_to_string(log_file(dir.path(), "git")).unwrap();
    let lines: Vec<&str> = text.lines().map(|line| &line[25..]).collect();
    assert_eq!(lines.len(), WAITING + 1);
    assert_eq!(lines[WAITING], "toolcrib: stopped");
}
