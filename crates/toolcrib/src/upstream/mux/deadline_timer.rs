//! The timer of a connection, which ends requests without a response in time.
//!
//! There is one for all requests. Most of them end long before their deadlines, and setting and clearing a timer for each would
//! take an eighth of the atomic operations of a call of the library.

use std::future::pending;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::MuxInner;
use crate::upstream::pending::TimedOutRequest;

/// Ends requests at their deadlines until the connection is closed.
pub(super) async fn run(inner: Arc<MuxInner>) {
    let mut next = None;
    loop {
        let deadline_passes = async {
            match next {
                Some(next) => sleep_until(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = inner.closed.cancelled() => return,
            () = inner.timer_changed.notified() => {}
            () = deadline_passes => {}
        }
        let mut pending = inner.pending();
        let timed_out = pending.check_deadlines(Instant::now());
        next = pending.timer();
        // Callers that are woken may lock the table.
        drop(pending);
        timed_out.into_iter().for_each(TimedOutRequest::report);
    }
}
