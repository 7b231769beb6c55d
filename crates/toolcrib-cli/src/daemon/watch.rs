//! Watches the config files by looking at them: whichever way one is replaced, linked, removed or written into, the change is
//! seen once they have come to rest.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::sources::Stamp;

/// How often to look.
const LOOK: Duration = Duration::from_secs(1);
/// How long a file must be left alone before it is taken for finished.
const REST: Duration = Duration::from_millis(200);
/// How long to wait for one that is never left alone.
const LONGEST: Duration = Duration::from_secs(5);

/// Waits until the files are others than `known` says, and at rest.
pub(crate) async fn changed<F>(known: impl Fn() -> Stamp, look: impl Fn() -> F)
where
    F: Future<Output = Stamp>,
{
    let mut seen = loop {
        sleep(LOOK).await;
        let seen = look().await;
        if seen != known() {
            break seen;
        }
    };
    let until = Instant::now() + LONGEST;
    while Instant::now() < until {
        sleep(REST).await;
        let now = look().await;
        // One that is empty is most likely about to be written.
        if now == seen && !now.was_emptied_since(&known()) {
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
    use crate::sources::Sources;

    #[tokio::test(start_paused = true)]
    async fn a_file_is_taken_when_it_has_come_to_rest_and_one_that_never_does_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        fs::write(&path, "a").unwrap();
        let sources = Sources::alone(&path);
        let known = sources.stamp();
        let looks = Cell::new(0);
        let look = |restless: usize| {
            let (path, looks, sources) = (&path, &looks, &sources);
            move || {
                looks.set(looks.get() + 1);
                if looks.get() <= restless {
                    fs::write(path, "x".repeat(looks.get() + 1)).unwrap();
                }
                let stamp = sources.stamp();
                async move { stamp }
            }
        };
        let before = Instant::now();
        changed(|| known.clone(), look(5)).await;
        assert_eq!((looks.get(), before.elapsed()), (6, LOOK + 5 * REST));
        looks.set(0);
        changed(|| known.clone(), look(usize::MAX)).await;
        assert!(looks.get() > 10, "it waited");
        fs::write(&path, "").unwrap();
        let before = Instant::now();
        changed(|| known.clone(), look(0)).await;
        assert!(before.elapsed() >= LONGEST, "an empty file is given time");
    }
}
