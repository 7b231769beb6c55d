//! A link over HTTP: every message to the server is a request of its own, and whatever comes back on its response
//! belongs to it.
//!
//! One task takes messages from the queue and starts a task for each; when the link is hung up or the server turns out
//! to be gone, it ends them all and says goodbye.

mod address;
mod body;
mod dial;
mod events;
mod open;
mod parcel;
mod post;
mod session;
mod tools;
mod trouble;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{HeaderMap, LOCATION};
use hyper::{Method, Request, Response, StatusCode, Uri};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{Link, Outgoing, Shared};
use crate::last_words::{Exit, LastWords};
use crate::spec::Transport;
use crate::wire::dialect::client::CANCELLED;
use crate::wire::dialect::greeting::SESSION_OPEN;
use dial::HttpClient;
use parcel::Parcel;
use session::Session;
use tools::Tools;
use trouble::{Plaint, Trouble};

pub(in crate::connection) use open::Remote;

/// How often a server may send us on to another of its addresses.
const REDIRECTS: usize = 3;
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long a server may take over something that has no answer.
const NOTE: Duration = Duration::from_secs(30);

/// Carries messages to one server and back.
struct Carrier {
    shared: Arc<Shared>,
    client: HttpClient,
    address: Uri,
    /// Sent with every request.
    headers: HeaderMap,
    transport: Transport,
    /// The largest message accepted.
    limit: usize,
    plaint: Plaint,
    route: Mutex<Route>,
    /// Held while a session that is gone is replaced.
    renewing: tokio::sync::Mutex<()>,
    /// Hears what the server says outside of any request, in the present session.
    hearing: Mutex<Option<AbortOnDropHandle<Option<()>>>>,
    /// What a session was told for all of its time.
    wishes: Mutex<BTreeMap<String, Bytes>>,
    tools: Tools,
    /// It has answered more than the first words, so it is what it said it was.
    settled: AtomicBool,
    /// The words that asked for its era, if they were said.
    probe: OnceLock<Bytes>,
    /// Why the server can be heard no more.
    gone: OnceLock<String>,
    /// Ends the connections.
    over: CancellationToken,
}

/// How messages go to the server now.
#[derive(Debug, Clone)]
enum Route {
    /// Each stands alone: the stateless era, and the first words in any.
    Alone,
    /// All belong to a session.
    Session(Session),
    /// They go to another address, and everything comes back on one stream.
    Events(Uri),
}

impl Link {
    /// Starts carrying messages to a remote server.
    pub(in crate::connection) fn over_http(
        self,
        queue: mpsc::UnboundedReceiver<Outgoing>,
        remote: Remote,
    ) -> Self {
        let carrier = Arc::new(remote.carrier(self.shared.clone()));
        self.shared.tasks.spawn(carrier.run(queue));
        self
    }
}

impl Carrier {
    async fn run(self: Arc<Self>, mut queue: mpsc::UnboundedReceiver<Outgoing>) {
        let mut posts = JoinSet::new();
        let mut under_way: HashMap<u64, AbortHandle> = HashMap::new();
        loop {
            let outgoing = tokio::select! {
                biased;
                () = self.shared.hang_up.cancelled() => break,
                Some(done) = posts.join_next() => {
                    if let Ok(Some(id)) = done {
                        under_way.remove(&id);
                    }
                    continue;
                }
                outgoing = queue.recv() => outgoing,
            };
            let Some(outgoing) = outgoing else { break };
            let weight = Weight(self.shared.clone(), outgoing.line.len());
            let parcel = Parcel::new(outgoing);
            // A client may send anything as a request; only what nobody waits for is a word of our own.
            let awaited = parcel.awaited();
            if awaited.is_none()
                && parcel.method == CANCELLED
                && let Some(stop) = parcel.id.and_then(|id| under_way.remove(&id))
            {
                stop.abort(); // closing the response is how the stateless era cancels
            }
            if awaited.is_none() && parcel.method == SESSION_OPEN {
                // Nothing overtakes this one.
                self.shared.hang_up.run_until_cancelled(self.open_session(&parcel)).await;
                continue;
            }
            let carrier = self.clone();
            let post = posts.spawn(async move {
                let _weight = weight; // dropped also if it never begins
                carrier.deliver(parcel).await;
                awaited
            });
            if let Some(id) = awaited {
                under_way.insert(id, post);
            }
        }
        queue.close();
        while let Ok(outgoing) = queue.try_recv() {
            if let Some(id) = outgoing.id {
                self.shared.pending().mark_unsent(id);
            }
        }
        posts.shutdown().await;
        self.leave().await;
    }

    /// Says goodbye, and tells everybody that it is over.
    async fn leave(&self) {
        if self.gone.get().is_none() {
            // A server that does not care for goodbyes is not waited for.
            let _ = timeout(GOODBYE, self.end_session()).await;
        }
        self.over.cancel();
        self.shared.broken.cancel();
        let stderr = self.gone.get().cloned().into_iter().collect();
        self.shared.close(LastWords { exit: Some(Exit::Disconnected), stderr, program: String::new() });
    }

    /// The server can be heard no more.
    fn lose(&self, why: impl Into<String>) {
        let _ = self.gone.set(why.into()); // the first reason counts
        self.shared.broken.cancel();
    }

    fn route(&self) -> MutexGuard<'_, Route> {
        self.route.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs until the link is hung up.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<Option<()>> {
        let hang_up = self.shared.hang_up.clone();
        self.shared.tasks.spawn(hang_up.run_until_cancelled_owned(task))
    }

    /// One request and the beginning of its response. A server may send us on to another of its own addresses; our
    /// headers go nowhere else.
    async fn send(
        &self,
        method: Method,
        address: &Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut address = address.clone();
        for _ in 0..=REDIRECTS {
            let mut request = Request::new(Full::new(body.clone()));
            *request.method_mut() = method.clone();
            *request.uri_mut() = address.clone();
            *request.headers_mut() = headers.clone();
            let response = self.client.request(request).await?;
            if !matches!(response.status(), StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            let next = location.and_then(|location| address::follow(&address, location));
            address = next.ok_or(Trouble::Astray)?;
        }
        Err(Trouble::Astray)
    }
}

/// What a message weighs in the queue until it is carried.
struct Weight(Arc<Shared>, usize);

impl Drop for Weight {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(self.1, Ordering::Relaxed);
    }
}
