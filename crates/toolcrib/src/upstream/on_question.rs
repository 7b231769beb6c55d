//! `OnQuestion`: reports that a server sends requests to its clients.

use std::fmt;
use std::sync::Arc;

/// Called with the method when the server sends a request while calls of clients are in flight. Must not block.
#[derive(Clone)]
pub(crate) struct OnQuestion(Arc<dyn Fn(&str) + Send + Sync>);

impl OnQuestion {
    pub(crate) fn new(report: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    pub(crate) fn report(&self, method: &str) {
        (self.0)(method);
    }
}

impl fmt::Debug for OnQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnQuestion")
    }
}
