//! `Shared`: what all sessions and requests of one process have in common.

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

/// What can change while clients look.
#[derive(Clone, PartialEq)]
pub(crate) enum Change {
    Tools,
    Prompts,
    Resource(String),
}

/// The resources that one session subscribed to.
pub(crate) type Watched = Arc<Mutex<HashSet<String>>>;

pub(crate) struct Shared {
    /// Whether the tool and the prompt that come and go are there.
    pub(crate) extra_tool: AtomicBool,
    pub(crate) extra_prompt: AtomicBool,
    pub(crate) tasks: TaskManager,
    /// For streams of the stateless era.
    changes: broadcast::Sender<Change>,
    /// For clients of the session era.
    sessions: Mutex<Vec<(Peer<RoleServer>, Watched)>>,
    /// The key of the seals; no other process has it.
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

    pub(crate) fn join(&self, peer: Peer<RoleServer>, watched: Watched) {
        lock(&self.sessions).push((peer, watched));
    }

    /// Makes the change and tells everybody who wanted to know.
    pub(crate) async fn change(&self, change: Change) {
        match change {
            Change::Tools => self.extra_tool.fetch_not(Ordering::Relaxed),
            Change::Prompts => self.extra_prompt.fetch_not(Ordering::Relaxed),
            Change::Resource(_) => false,
        };
        // Nobody listening is no error.
        let _ = self.changes.send(change.clone());
        let sessions = {
            let mut sessions = lock(&self.sessions);
            sessions.retain(|(peer, _)| !peer.is_transport_closed());
            sessions.clone()
        };
        for (peer, watched) in sessions {
            let _ = match &change {
                Change::Tools => peer.notify_tool_list_changed().await,
                Change::Prompts => peer.notify_prompt_list_changed().await,
                Change::Resource(uri) if lock(&watched).contains(uri) => {
                    peer.notify_resource_updated(ResourceUpdatedNotificationParam::new(uri)).await
                }
                Change::Resource(_) => Ok(()),
            };
        }
    }

    /// Hands changes to one stream until its client has heard enough.
    pub(crate) async fn stream(&self, stream: SubscriptionContext) -> Result<(), ErrorData> {
        let mut changes = self.changes.subscribe();
        loop {
            let change = tokio::select! {
                () = stream.cancelled() => return Ok(()),
                change = changes.recv() => change,
            };
            // What the client did not ask for is refused by the sink, and so it should be.
            let _ = match change {
                Ok(Change::Tools) => stream.sink().notify_tool_list_changed().await,
                Ok(Change::Prompts) => stream.sink().notify_prompt_list_changed().await,
                Ok(Change::Resource(uri)) => stream.sink().notify_resource_updated(uri).await,
                Err(RecvError::Lagged(_)) => Ok(()),
                Err(RecvError::Closed) => return Ok(()),
            };
        }
    }

    /// `text` with a seal that only this process can make.
    pub(crate) fn seal(&self, text: &str) -> String {
        format!("{text}.{:016x}", self.key.hash_one(text))
    }

    /// The text below an unbroken seal.
    pub(crate) fn open<'a>(&self, sealed: &'a str) -> Option<&'a str> {
        let (text, _) = sealed.rsplit_once('.')?;
        (self.seal(text) == sealed).then_some(text)
    }
}

/// Everything that may be listened to.
pub(crate) fn on_offer(wanted: &SubscriptionFilter) -> SubscriptionFilter {
    let mut filter = SubscriptionFilter::builder().tools_list_changed().prompts_list_changed();
    if let Some(uris) = &wanted.resource_subscriptions {
        filter = filter.resource_subscriptions(uris);
    }
    filter.build()
}

/// A lock whose last owner panicked is as good as any: nothing here is left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
