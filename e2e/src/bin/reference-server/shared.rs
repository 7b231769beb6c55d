//! `Shared`: the state that all sessions and requests of one process share.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::model::{ResourceUpdatedNotificationParam, SubscriptionFilter};
use rmcp::service::{Peer, SubscriptionContext};
use rmcp::task_manager::TaskManager;
use rmcp::{ErrorData, RoleServer};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// A change that clients can be notified of.
#[derive(Clone, PartialEq)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resource(String),
}

/// The resources that one session subscribed to.
pub(crate) type Subscriptions = Arc<Mutex<HashSet<String>>>;

pub(crate) struct Shared {
    /// True while `test_extra_tool` is listed.
    pub(crate) extra_tool: AtomicBool,
    /// True while `test_extra_prompt` is listed.
    pub(crate) extra_prompt: AtomicBool,
    pub(crate) tasks: TaskManager,
    /// Changes for streams of the stateless era.
    changes: broadcast::Sender<Change>,
    /// Sessions with their subscriptions.
    sessions: Mutex<Vec<(Peer<RoleServer>, Subscriptions)>>,
    /// The key of signatures, random per process.
    key: RandomState,
}

impl Shared {
    pub(crate) fn new() -> Self {
        Self {
            extra_tool: AtomicBool::new(false),
            extra_prompt: AtomicBool::new(false),
            tasks: TaskManager::new(),
            changes: broadcast::channel(64).0,
            sessions: Mutex::default(),
            key: RandomState::new(),
        }
    }

    pub(crate) fn add_session(&self, peer: Peer<RoleServer>, subscriptions: Subscriptions) {
        lock(&self.sessions).push((peer, subscriptions));
    }

    /// Makes the change and notifies subscribers.
    pub(crate) async fn change(&self, change: Change) {
        match change {
            Change::Tools => self.extra_tool.fetch_not(Ordering::Relaxed),
            Change::Prompts => self.extra_prompt.fetch_not(Ordering::Relaxed),
            Change::Resource(_) => false,
        };
        // Fails only if there is no subscriber.
        let _ = self.changes.send(change.clone());
        let sessions = {
            let mut sessions = lock(&self.sessions);
            sessions.retain(|(peer, _)| !peer.is_transport_closed());
            sessions.clone()
        };
        for (peer, subscriptions) in sessions {
            let _ = match &change {
                Change::Tools => peer.notify_tool_list_changed().await,
                Change::Prompts => peer.notify_prompt_list_changed().await,
                Change::Resource(uri) if lock(&subscriptions).contains(uri) => {
                    peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
                }
                Change::Resource(_) => Ok(()),
            };
        }
    }

    /// Forwards changes to one stream until the client ends it.
    pub(crate) async fn forward_changes(&self, stream: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = stream.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            // The sink refuses notifications that the client did not subscribe to.
            let _ = match change {
                Ok(Change::Tools) => stream.sink().notify_tool_list_changed().await,
                Ok(Change::Prompts) => stream.sink().notify_prompt_list_changed().await,
                Ok(Change::Resource(uri)) => stream.sink().notify_resource_updated(uri).await,
                Err(RecvError::Lagged(_)) => Ok(()),
                Err(RecvError::Closed) => return Ok(()),
            };
        }
    }

    /// Appends a signature that only this process can make.
    pub(crate) fn sign(&self, text: &str) -> String {
        format!("{text}.{:016x}", self.key.hash_one(text))
    }

    /// Returns the text without its signature, if the signature is valid.
    pub(crate) fn verify<'a>(&self, signed: &'a str) -> Option<&'a str> {
        let (text, _) = signed.rsplit_once('.')?;
        (self.sign(text) == signed).then_some(text)
    }
}

/// Returns the supported subscriptions.
pub(crate) fn supported_filter(requested: &SubscriptionFilter) -> SubscriptionFilter {
    let mut filter = SubscriptionFilter::builder().tools_list_changed().prompts_list_changed();
    if let Some(uris) = &requested.resource_subscriptions {
        filter = filter.resource_subscriptions(uris);
    }
    filter.build()
}

/// Locks a mutex, also after a panic: no update here can be left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
