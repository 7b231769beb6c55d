//! Takes the place of the HTTP transport in a build without the feature `http`: opening it fails.

use std::convert::Infallible;
use std::sync::Arc;

use crate::secrets::{Redactor, ResolvedSecrets};
use crate::spec::{HttpSpec, ServerSpec};
use crate::upstream::launch::LaunchContext;
use crate::upstream::transport::{OutgoingQueue, Transport, TransportFuture, TransportLink};

/// A transport that cannot exist.
#[derive(Debug)]
pub(in crate::upstream) struct DisabledTransport(Infallible);

impl Transport for DisabledTransport {
    fn run(self: Box<Self>, _link: TransportLink, _outgoing: OutgoingQueue) -> TransportFuture {
        match self.0 {}
    }
}

/// Fails with the feature that is missing.
pub(in crate::upstream) async fn open(
    _spec: &ServerSpec,
    _remote: &HttpSpec,
    _secrets: &ResolvedSecrets,
    _redactor: &Arc<Redactor>,
    _context: &LaunchContext,
) -> Result<DisabledTransport, String> {
    Err("remote servers need the feature `http` of the crate `toolcrib`".to_owned())
}
