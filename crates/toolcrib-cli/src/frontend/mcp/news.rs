//! The stream on which a session hears that the list of tools is another one now.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::{HeaderMap, Response};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use toolcrib::Catalog;
use toolcrib::wire::dialect::client::TOOLS_CHANGED;
use toolcrib::wire::message::notification;

use super::super::body::{Body, Messages};
use super::super::face::View;
use super::super::http::Counter;
use super::super::session::Session;
use super::{events, no_session, not_allowed, session};

/// Answers a GET: a stream of news in a session, nothing without one.
pub(super) fn listen(counter: &Counter, view: &View, headers: &HeaderMap) -> Response<Body> {
    match session(counter, view, headers) {
        Err(true) => no_session(None),
        Err(false) => not_allowed(),
        Ok(session) => {
            let catalog = counter.desk.crib.watch_catalog();
            let seen = view.tools(&catalog.borrow());
            let changed = Box::pin(next(catalog, session.clone(), counter.stop.clone()));
            events(Body::Messages(Box::pin(News {
                view: view.clone(),
                seen,
                session,
                stop: counter.stop.clone(),
                changed,
            })))
        }
    }
}

type Changed = Pin<Box<dyn Future<Output = Option<watch::Receiver<Arc<Catalog>>>> + Send>>;

/// Tells of real changes only.
struct News {
    view: View,
    seen: Bytes,
    /// Held as long as somebody listens, so that the session does not count as idle.
    session: Arc<Session>,
    stop: CancellationToken,
    changed: Changed,
}

async fn next(
    mut catalog: watch::Receiver<Arc<Catalog>>,
    session: Arc<Session>,
    stop: CancellationToken,
) -> Option<watch::Receiver<Arc<Catalog>>> {
    tokio::select! {
        changed = catalog.changed() => changed.ok()?,
        () = session.ended.cancelled() => return None,
        () = stop.cancelled() => return None,
    }
    Some(catalog)
}

impl Messages for News {
    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        loop {
            let Some(catalog) = ready!(self.changed.as_mut().poll(context)) else { return Poll::Ready(None) };
            let tools = self.view.tools(&catalog.borrow());
            self.changed = Box::pin(next(catalog, self.session.clone(), self.stop.clone()));
            if tools != self.seen {
                self.seen = tools;
                return Poll::Ready(Some(notification(TOOLS_CHANGED, None)));
            }
        }
    }
}
