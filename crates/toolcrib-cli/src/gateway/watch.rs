//! Watches the config files by polling, so that a change is seen however a file is replaced, linked, removed or written.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::sources::ConfigStamp;

/// Time between two polls.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Time that files must stay unchanged before a change counts as complete.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// Longest wait for files to settle.
const MAX_SETTLE_WAIT: Duration = Duration::from_secs(5);

/// Waits until the files differ from `known` and have settled.
pub(crate) async fn wait_for_change<F>(known: impl Fn() -> ConfigStamp, read_stamp: impl Fn() -> F)
where
    F: Future<Output = ConfigStamp>,
{
    let mut seen = loop {
        sleep(POLL_INTERVAL).await;
        let seen = read_stamp().await;
        if seen != known() {
            break seen;
        }
    };
    let deadline = Instant::now() + MAX_SETTLE_WAIT;
    while Instant::now() < deadline {
        sleep(SETTLE_TIME).await;
        let now = read_stamp().await;
        // An emptied file is most likely about to be written.
        if now == seen && !now.has_emptied_file_since(&known()) {
            return;
        }
        seen = now;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs;

    use super::*;
    use crate::sources::ConfigSources;

    #[tokio::test(start_paused = true)]
    async fn change_is_reported_when_files_settle_or_after_the_limit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, "a").unwrap();
        let sources = ConfigSources::single_file(&path);
        let known = sources.stamp();
        let polls = Cell::new(0);
        let read_stamp = |writes: usize| {
            let path = &path;
            let polls = &polls;
            let sources = &sources;
            move || {
                polls.set(polls.get() + 1);
                if polls.get() <= writes {
                    fs::write(path, "x".repeat(polls.get() + 1)).unwrap();
                }
                let stamp = sources.stamp();
                async move { stamp }
            }
        };
        let before = Instant::now();
        wait_for_change(|| known.clone(), read_stamp(5)).await;
        assert_eq!((polls.get(), before.elapsed()), (6, POLL_INTERVAL + 5 * SETTLE_TIME));
        polls.set(0);
        wait_for_change(|| known.clone(), read_stamp(usize::MAX)).await;
        assert!(polls.get() > 10, "it kept polling");
        fs::write(&path, "").unwrap();
        let before = Instant::now();
        wait_for_change(|| known.clone(), read_stamp(0)).await;
        assert!(before.elapsed() >= MAX_SETTLE_WAIT, "an empty file gets the whole wait");
    }
}
