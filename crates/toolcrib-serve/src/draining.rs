//! The end of a gateway whose listeners another process has taken over: its clients move to the other one.

use std::sync::atomic::{AtomicBool, Ordering};

use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Response, StatusCode};
use tokio_util::sync::CancellationToken;

use crate::body::ResponseBody;

/// Whether clients should open new connections.
#[derive(Debug, Default)]
pub(crate) struct Draining {
    /// A copy of the state of the token that is cheap to read.
    is_on: AtomicBool,
    started: CancellationToken,
}

impl Draining {
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(crate) fn start(&self) {
        self.is_on.store(true, Ordering::Relaxed);
        self.started.cancel();
    }

    /// Waits until it is on.
    pub(crate) async fn wait(&self) {
        self.started.cancelled().await;
    }

    /// Returns a token that is cancelled when it is on.
    pub(crate) fn token(&self) -> CancellationToken {
        self.started.clone()
    }
}

/// Marks a response as the last one on its HTTP/1 connection.
pub(crate) fn close_connection(response: &mut Response<ResponseBody>) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}
