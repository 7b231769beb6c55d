//! `IssuerKeys`: the keys of one issuer, and the task that fetches them.
//!
//! The task fetches them when it starts, every quarter of an hour, and when a token names a key that is not known. While the
//! issuer does not answer, the last keys stay valid.

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::key_set::KeySet;
use super::token::TokenError;
use crate::config::{IssuerSpec, KeySource};
use crate::oauth::{Fetcher, OAuthError, find_issuer};
use crate::util::tasks::SpawnBoxed as _;

/// Time after which keys are fetched again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(15 * 60);
/// Shortest time between two fetches for tokens with unknown keys.
const MIN_INTERVAL: Duration = Duration::from_secs(10);
/// Delay after a failed fetch; it doubles with each failure.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest delay after a failed fetch.
const MAX_RETRY: Duration = Duration::from_secs(60);
/// Time limit for one fetch: metadata and keys.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time that a request waits for keys.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Age at which keys that could not be fetched again are no longer used.
const MAX_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// Requests that wait for the same fetch.
const MAX_WAITING: usize = 256;

/// The keys of one issuer. Dropping it ends the task that fetches them.
pub(super) struct IssuerKeys {
    state: watch::Receiver<KeysState>,
    requests: mpsc::Sender<oneshot::Sender<()>>,
    _stop: DropGuard,
}

impl fmt::Debug for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerKeys").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

/// The result of the fetches so far.
#[derive(Debug, Default)]
struct KeysState {
    fetched: Option<FetchedKeys>,
    /// The reason why the last fetch failed.
    error: Option<String>,
}

#[derive(Debug)]
struct FetchedKeys {
    keys: Arc<KeySet>,
    at: Instant,
}

/// The result of one fetch.
type FetchResult = Result<KeySet, String>;

/// Fetches the keys once.
type FetchKeys = Box<dyn Fn() -> Pin<Box<dyn Future<Output = FetchResult> + Send>> + Send + Sync>;

impl IssuerKeys {
    /// Starts the task of an issuer. The keys of a file are known immediately.
    pub(super) fn start(issuer: &IssuerSpec, tasks: &TaskTracker) -> Arc<Self> {
        let first = match &issuer.keys {
            KeySource::File(path) => Some(KeySet::read_file(path)),
            KeySource::Metadata | KeySource::Url(_) => None,
        };
        let source = KeyLocation { issuer: issuer.issuer.clone(), keys: issuer.keys.clone() };
        let fetch_tasks = tasks.clone();
        let fetch: FetchKeys = Box::new(move || {
            let source = source.clone();
            let tasks = fetch_tasks.clone();
            Box::pin(async move { source.fetch(&tasks).await })
        });
        Arc::new(Self::start_with(issuer.name.clone(), first, fetch, tasks))
    }

    /// Starts a task that gets keys from `fetch`; `first` is the result of a fetch that was made already.
    fn start_with(name: String, first: Option<FetchResult>, fetch: FetchKeys, tasks: &TaskTracker) -> Self {
        let stop = CancellationToken::new();
        let (state_sender, state) = watch::channel(KeysState::default());
        let (requests, request_receiver) = mpsc::channel(MAX_WAITING);
        let mut fetcher = KeyFetcher {
            name,
            fetch,
            state: state_sender,
            requests: request_receiver,
            retry: FIRST_RETRY,
            last_fetch: None,
        };
        let next = match first {
            Some(result) => fetcher.record(result, Instant::now()),
            None => Instant::now(),
        };
        let stopped = stop.clone();
        tasks.spawn_boxed(async move { stopped.run_until_cancelled_owned(fetcher.run(next)).await });
        Self { state, requests, _stop: stop.drop_guard() }
    }

    /// Returns the keys that are valid now.
    pub(super) fn current(&self) -> Result<Arc<KeySet>, TokenError> {
        let state = self.state.borrow();
        match &state.fetched {
            Some(fetched) if fetched.at.elapsed() < MAX_AGE => Ok(fetched.keys.clone()),
            _ => {
                let reason = state.error.as_deref().unwrap_or("they are being fetched");
                Err(TokenError::KeysUnavailable(reason.to_owned()))
            }
        }
    }

    /// Fetches the keys again, unless that was done a moment ago, and waits for them for a few seconds.
    pub(super) async fn fetch_again(&self) {
        let (done, fetched) = oneshot::channel();
        if self.requests.try_send(done).is_ok() {
            // The keys that are known then decide.
            let _ = timeout(MAX_WAIT, fetched).await;
        }
    }
}

/// The task that fetches the keys of one issuer.
struct KeyFetcher {
    name: String,
    fetch: FetchKeys,
    state: watch::Sender<KeysState>,
    requests: mpsc::Receiver<oneshot::Sender<()>>,
    retry: Duration,
    /// The end of the last fetch.
    last_fetch: Option<Instant>,
}

impl KeyFetcher {
    async fn run(mut self, mut next: Instant) {
        loop {
            let waiting = tokio::select! {
                request = self.requests.recv() => match request {
                    Some(waiting) => Some(waiting),
                    None => return,
                },
                () = sleep_until(next) => None,
            };
            let is_recent = self.last_fetch.is_some_and(|last| last.elapsed() < MIN_INTERVAL);
            if waiting.is_some() && is_recent {
                // Dropping the sender answers the request.
                continue;
            }
            let fetched = timeout(FETCH_TIMEOUT, (self.fetch)()).await;
            let timed_out = |_| Err(format!("no answer within {} s", FETCH_TIMEOUT.as_secs()));
            next = self.record(fetched.unwrap_or_else(timed_out), Instant::now());
        }
    }

    /// Publishes the result of a fetch and returns the time of the next one.
    fn record(&mut self, result: FetchResult, now: Instant) -> Instant {
        self.last_fetch = Some(now);
        let name = &self.name;
        let error = result.as_ref().err().cloned();
        let had_error = self.state.borrow().error.is_some();
        match &error {
            Some(reason) if !had_error => {
                tracing::warn!("cannot fetch the keys of issuer `{name}`: {reason}")
            }
            None if had_error => tracing::info!("the keys of issuer `{name}` were fetched again"),
            _ => {}
        }
        self.state.send_modify(|state| {
            state.error = error;
            if let Ok(keys) = result {
                state.fetched = Some(FetchedKeys { keys: Arc::new(keys), at: now });
            }
        });
        if self.state.borrow().error.is_none() {
            self.retry = FIRST_RETRY;
            return now + REFRESH_INTERVAL;
        }
        let delay = self.retry;
        self.retry = (delay * 2).min(MAX_RETRY);
        now + delay
    }
}

/// Where the keys of an issuer are.
#[derive(Clone)]
struct KeyLocation {
    issuer: String,
    keys: KeySource,
}

impl KeyLocation {
    async fn fetch(&self, tasks: &TaskTracker) -> FetchResult {
        match &self.keys {
            KeySource::File(path) => read_file(path.clone(), tasks).await,
            KeySource::Url(url) => {
                let fetcher = Fetcher::unrestricted(tasks).await.map_err(|error| error.to_string())?;
                fetch_keys(&fetcher, url).await.map_err(|error| error.to_string())
            }
            KeySource::Metadata => self.fetch_by_metadata(tasks).await.map_err(|error| error.to_string()),
        }
    }

    /// Asks the issuer where its keys are. What it names must be in the same network.
    async fn fetch_by_metadata(&self, tasks: &TaskTracker) -> Result<KeySet, OAuthError> {
        let url: Uri = self.issuer.parse().map_err(|_| OAuthError::invalid_metadata("it is not a URL"))?;
        let fetcher = Fetcher::new(&url, tasks).await?;
        let metadata = find_issuer(&fetcher, &self.issuer).await?;
        let keys = metadata.jwks_uri.ok_or_else(|| {
            OAuthError::invalid_metadata(format!("the metadata of `{}` has no `jwks_uri`", self.issuer))
        })?;
        fetch_keys(&fetcher, &keys).await
    }
}

async fn read_file(path: PathBuf, tasks: &TaskTracker) -> FetchResult {
    let read = tasks.spawn_blocking(move || KeySet::read_file(&path)).await;
    read.unwrap_or_else(|error| Err(error.to_string()))
}

async fn fetch_keys(fetcher: &Fetcher, url: &str) -> Result<KeySet, OAuthError> {
    let answer = fetcher.get(url).await?;
    if !answer.status.is_success() {
        let message = format!("`{url}` answered HTTP {}", answer.status.as_u16());
        return Err(OAuthError::invalid_metadata(message));
    }
    KeySet::parse(&answer.body).map_err(|reason| {
        OAuthError::invalid_metadata(format!("the keys at `{url}` cannot be used: {reason}"))
    })
}

#[cfg(test)]
mod tests;
