//! The timer of a connection, which ends requests without a response in time.
//!
//! There is one for all requests, because most of them end long before their deadlines: setting and clearing a timer for each
//! takes an eighth of the atomic operations of a call of the library.

use std::future::pending;
use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::MuxInner;

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
            () = inner.timer_advanced.notified() => {}
            () = deadline_passes => {}
        }
        next = inner.pending().check_deadlines(Instant::now());
    }
}
