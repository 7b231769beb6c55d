//! The file that keeps quota usage between runs.
//!
//! The file is written shortly after usage changes, never while a call waits. A process that is killed can lose the usage
//! of its last moment; therefore a small margin is added when the file was not written at shutdown. Rates are not saved:
//! their buckets are full again soon.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::{Mutex, Notify, OwnedMutexGuard};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::usage::RestoredUsage;
pub(crate) use super::usage::SavedUsage;
use super::window::UsagePart;
use crate::util::clock;

/// Minimum time between two writes.
const WRITE_INTERVAL: Duration = Duration::from_millis(500);

/// The file, which one task writes at a time.
#[derive(Debug, Clone)]
pub(crate) struct UsageFile {
    path: Arc<Path>,
    writing: Arc<Mutex<()>>,
}

/// Keeps a crib from writing its usage file, so that another process can. Dropping it allows the writes again.
#[derive(Debug)]
pub struct UsageFileHold {
    _writing: OwnedMutexGuard<()>,
}

impl UsageFile {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path: path.into(), writing: Arc::default() }
    }

    async fn write(&self, usage: Vec<SavedUsage>, is_closed: bool) -> std::io::Result<()> {
        let text = serialize(&usage, is_closed);
        let path = self.path.clone();
        let written = spawn_blocking(move || write(&path, &text, usage.is_empty())).await;
        written.map_err(std::io::Error::other).flatten()
    }

    /// Writes the usage as at a shutdown, and keeps everything else from writing until the hold is dropped.
    pub(crate) async fn hold(
        &self,
        snapshot: impl Fn() -> Vec<SavedUsage>,
    ) -> std::io::Result<UsageFileHold> {
        let writing = self.writing.clone().lock_owned().await;
        self.write(snapshot(), true).await?;
        Ok(UsageFileHold { _writing: writing })
    }
}

/// Writes the file whenever usage changes, until the crib shuts down or `snapshot` returns `None`.
pub(crate) async fn save_on_change(
    file: UsageFile,
    usage_changed: Arc<Notify>,
    snapshot: impl Fn() -> Option<Vec<SavedUsage>>,
    shutdown: CancellationToken,
) {
    let mut has_failed = false;
    loop {
        tokio::select! {
            () = usage_changed.notified() => {}
            () = shutdown.cancelled() => {}
        }
        // At shutdown a held file belongs to another process for good.
        let writing = tokio::select! {
            biased;
            writing = file.writing.lock() => writing,
            () = shutdown.cancelled() => return,
        };
        let Some(usage) = snapshot() else { return };
        let is_closed = shutdown.is_cancelled();
        let written = file.write(usage, is_closed).await;
        drop(writing);
        if let Err(error) = &written
            && !has_failed
        {
            tracing::warn!("cannot save quota usage to {}: {error}", file.path.display());
        }
        has_failed = written.is_err();
        if is_closed {
            return;
        }
        // Ends early on shutdown.
        let _ = timeout(WRITE_INTERVAL, shutdown.cancelled()).await;
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn unix_milliseconds() -> u64 {
    milliseconds(clock::wall_time().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn serialize(usage: &[SavedUsage], is_closed: bool) -> Vec<u8> {
    let part =
        |part: &UsagePart| json!([milliseconds(part.first_ago), milliseconds(part.last_ago), part.calls]);
    let entry = |saved: &SavedUsage| {
        let parts: Vec<Value> = saved.parts.iter().map(part).collect();
        json!({"caller": saved.caller, "limit": saved.limit, "parts": parts})
    };
    let used: Vec<Value> = usage.iter().map(entry).collect();
    json!({"at": unix_milliseconds(), "closed": is_closed, "used": used}).to_string().into_bytes()
}

/// Replaces the file atomically: writes a temporary file next to it and renames that. Does not create a file without
/// usage.
fn write(file: &Path, text: &[u8], is_empty: bool) -> std::io::Result<()> {
    if is_empty && !file.exists() {
        return Ok(());
    }
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let temporary = file.with_extension(format!("{}.new", std::process::id()));
    std::fs::write(&temporary, text)?;
    std::fs::rename(&temporary, file)
}

/// Reads the usage, with times relative to now. A missing or damaged file counts as no usage.
pub(super) fn read(file: &Path) -> RestoredUsage {
    let read = || parse(&serde_json::from_slice(&std::fs::read(file).ok()?).ok()?, unix_milliseconds());
    read().unwrap_or_default()
}

fn parse(file: &Value, now: u64) -> Option<RestoredUsage> {
    // If the clock was set back, times stay as they were written.
    let elapsed = now.saturating_sub(file["at"].as_u64()?);
    let ago = |value: &Value| Some(Duration::from_millis(value.as_u64()?.saturating_add(elapsed)));
    let part = |value: &Value| {
        let calls = u32::try_from(value[2].as_u64()?).ok()?;
        Some(UsagePart { first_ago: ago(&value[0])?, last_ago: ago(&value[1])?, calls })
    };
    let entry = |value: &Value| {
        let parts = value["parts"].as_array()?.iter().map(part).collect::<Option<Vec<_>>>()?;
        Some(SavedUsage {
            caller: value["caller"].as_str()?.to_owned(),
            limit: value["limit"].as_str()?.to_owned(),
            parts,
        })
    };
    let limits = file["used"].as_array()?.iter().map(entry).collect::<Option<Vec<_>>>()?;
    Some(RestoredUsage { limits, is_complete: file["closed"].as_bool()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(first_ago: u64, last_ago: u64) -> SavedUsage {
        let part = UsagePart {
            first_ago: Duration::from_secs(first_ago),
            last_ago: Duration::from_secs(last_ago),
            calls: 3,
        };
        SavedUsage { caller: "ci".to_owned(), limit: "callers.ci.quota".to_owned(), parts: vec![part] }
    }

    #[test]
    fn parse_adds_the_time_since_the_write() {
        let unused = SavedUsage { parts: vec![], ..saved(5, 4) };
        let text = serialize(&[saved(5, 4), unused], false);
        let restored = parse(&serde_json::from_slice(&text).unwrap(), unix_milliseconds()).unwrap();
        assert_eq!((restored.limits.len(), restored.is_complete), (2, false));
        assert!(restored.limits[1].parts.is_empty());
        let mut file: Value = serde_json::from_slice(&serialize(&[saved(5, 4)], true)).unwrap();
        file["at"] = 1000.into();
        let restored = |limits| Some(RestoredUsage { limits, is_complete: true });
        assert_eq!(parse(&file, 3000), restored(vec![saved(7, 6)]));
        assert_eq!(parse(&file, 500), restored(vec![saved(5, 4)]), "the clock was set back");
    }

    #[test]
    fn damaged_file_counts_as_no_usage() {
        for text in ["", "{}", "[]", r#"{"at":1,"closed":true}"#, r#"{"at":1,"closed":true,"used":[{}]}"#] {
            let file: Value = serde_json::from_str(text).unwrap_or_default();
            assert_eq!(parse(&file, 1), None, "{text}");
        }
        assert_eq!(read(Path::new("/nowhere/at/all")), RestoredUsage::default());
    }
}
