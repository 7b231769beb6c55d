//! What was used of each quota, in a file, so that it counts on when a crib is built anew.
//!
//! The file is written shortly after something was used, never on a call's way. A crib that is killed can lose what was
//! used in its last moment; for a quota of many calls a little is added when the file is read again, to be on the safe
//! side. Rates are not remembered: they are full again soon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

pub(crate) use super::accounts::Saved;
use crate::clock;

/// How long the file is left alone after it was written.
const PAUSE: Duration = Duration::from_millis(500);

/// Writes the file whenever something was used, until the crib ends or there is nobody left who can say what was.
pub(crate) async fn keep(
    file: PathBuf,
    used: Arc<Notify>,
    saved: impl Fn() -> Option<Vec<Saved>>,
    end: CancellationToken,
) {
    let mut failed = false;
    loop {
        tokio::select! {
            () = used.notified() => {}
            () = end.cancelled() => {}
        }
        let Some(saved) = saved() else { return };
        let closed = end.is_cancelled();
        let (text, any) = (written(&saved, closed), !saved.is_empty());
        let place = file.clone();
        let wrote =
            spawn_blocking(move || write(&place, &text, any)).await.map_err(std::io::Error::other).flatten();
        if let Err(error) = &wrote
            && !failed
        {
            tracing::warn!("what was used of quotas cannot be kept in {}: {error}", file.display());
        }
        failed = wrote.is_err();
        if closed {
            return;
        }
        // It ends early only if the crib does.
        let _ = timeout(PAUSE, end.cancelled()).await;
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn wall() -> u64 {
    milliseconds(clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn written(saved: &[Saved], closed: bool) -> Vec<u8> {
    let one = |Saved { caller, limit, parts }: &Saved| {
        let part = |(first, last, calls): &(Duration, Duration, u32)| {
            json!([milliseconds(*first), milliseconds(*last), calls])
        };
        json!({"caller": caller, "limit": limit, "parts": parts.iter().map(part).collect::<Vec<_>>()})
    };
    let used: Vec<Value> = saved.iter().map(one).collect();
    json!({"at": wall(), "closed": closed, "used": used}).to_string().into_bytes()
}

/// Writes beside the file and renames, so that a reader sees the old one or the new one, never half of it. Without
/// anything to remember no file is made.
fn write(file: &Path, text: &[u8], any: bool) -> std::io::Result<()> {
    if !any && !file.exists() {
        return Ok(());
    }
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let beside = file.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&beside, text)?;
    std::fs::rename(&beside, file)
}

/// What the file says was used, with the times counted from now, and whether it was written by a crib that ended well. A
/// file that is not there or not whole says nothing.
pub(super) fn read(file: &Path) -> (Vec<Saved>, bool) {
    let read = || parsed(&serde_json::from_slice(&std::fs::read(file).ok()?).ok()?, wall());
    read().unwrap_or_default()
}

fn parsed(file: &Value, now: u64) -> Option<(Vec<Saved>, bool)> {
    // A clock that was put back makes nothing older than it was.
    let since = now.saturating_sub(file["at"].as_u64()?);
    let ago = |value: &Value| Some(Duration::from_millis(value.as_u64()?.saturating_add(since)));
    let part = |part: &Value| Some((ago(&part[0])?, ago(&part[1])?, u32::try_from(part[2].as_u64()?).ok()?));
    let one = |saved: &Value| {
        let parts = saved["parts"].as_array()?.iter().map(part).collect::<Option<Vec<_>>>()?;
        let (caller, limit) = (saved["caller"].as_str()?.to_owned(), saved["limit"].as_str()?.to_owned());
        Some(Saved { caller, limit, parts })
    };
    let saved = file["used"].as_array()?.iter().map(one).collect::<Option<Vec<_>>>()?;
    Some((saved, file["closed"].as_bool()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_older_by_the_time_between() {
        let second = Duration::from_secs(1);
        let saved = Saved {
            caller: "ci".to_owned(),
            limit: "callers.ci.quota".to_owned(),
            parts: vec![(5 * second, 4 * second, 3)],
        };
        let two = written(&[saved.clone(), Saved { parts: vec![], ..saved.clone() }], false);
        let (all, ended) = parsed(&serde_json::from_slice(&two).unwrap(), wall()).unwrap();
        assert_eq!((all.len(), all[1].parts.len(), ended), (2, 0, false));
        let mut file: Value = serde_json::from_slice(&written(std::slice::from_ref(&saved), true)).unwrap();
        file["at"] = 1000.into();
        let later = Saved { parts: vec![(7 * second, 6 * second, 3)], ..saved.clone() };
        assert_eq!(parsed(&file, 3000), Some((vec![later], true)));
        assert_eq!(parsed(&file, 500), Some((vec![saved], true)), "a clock that was put back");
    }

    #[test]
    fn a_file_that_is_not_whole_says_nothing() {
        for text in ["", "{}", "[]", r#"{"at":1,"closed":true}"#, r#"{"at":1,"closed":true,"used":[{}]}"#] {
            let file: Value = serde_json::from_str(text).unwrap_or_default();
            assert_eq!(parsed(&file, 1), None, "{text}");
        }
        assert_eq!(read(Path::new("/nowhere/at/all")), (Vec::new(), false));
    }
}
