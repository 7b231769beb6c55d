//! Tasks that take over what other gateways on the same store change: revoked credentials, and sessions.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::store::{Store, StoreError, StoreKind, StoreNotice};
use toolcrib::util::tasks::SpawnBoxed as _;

use crate::callers::ActiveCallers;
use crate::service::McpService;
use crate::service::session_record::SessionNotice;
use crate::session::Sessions;

/// Pause before changes are read again from a store that did not answer.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Spawns the tasks of a gateway on a store that other gateways use. They end when the sessions are closed.
pub(super) fn spawn_watchers(
    store: &Arc<dyn Store>,
    service: &Arc<McpService>,
    callers: &Arc<ActiveCallers>,
    sessions: &Arc<Sessions>,
    tasks: &TaskTracker,
) {
    callers.share(store.clone());
    let revocations = RevocationWatcher {
        store: store.clone(),
        callers: callers.clone(),
        sessions: Arc::downgrade(sessions),
        notices: store.watch(StoreKind::Revocation),
        closed: sessions.closed().clone(),
    };
    tasks.spawn_boxed(revocations.run());
    let sessions = SessionWatcher {
        service: service.clone(),
        sessions: Arc::downgrade(sessions),
        notices: store.watch(StoreKind::Session),
        tasks: tasks.clone(),
        closed: sessions.closed().clone(),
        latest: sessions.closed().child_token(),
    };
    tasks.spawn_boxed(sessions.run());
}

/// Refuses credentials that other gateways have revoked.
struct RevocationWatcher {
    store: Arc<dyn Store>,
    callers: Arc<ActiveCallers>,
    sessions: Weak<Sessions>,
    notices: Receiver<StoreNotice>,
    closed: CancellationToken,
}

impl RevocationWatcher {
    async fn run(mut self) {
        // Revocations from before the start, and those whose notices were lost, are read from the store.
        let mut is_complete = false;
        loop {
            let applied = match is_complete {
                true => self.apply_next().await,
                false => Some(self.callers.fetch_all_revocations(&self.store).await.map(|()| true)),
            };
            let (Some(applied), Some(sessions)) = (applied, self.sessions.upgrade()) else { return };
            let removed = sessions.remove_ended().await;
            drop(sessions);
            match applied.and_then(|is_complete| removed.map(|()| is_complete)) {
                Ok(applied) => is_complete = applied,
                Err(error) => {
                    tracing::warn!("credentials that other gateways revoked may still be accepted: {error}");
                    is_complete = false;
                    self.pause().await;
                }
            }
        }
    }

    /// Waits for a revocation and applies it. Returns `false` if notices were lost, and `None` when the gateway stops.
    async fn apply_next(&mut self) -> Option<Result<bool, StoreError>> {
        match next_notice(&mut self.notices, &self.closed).await? {
            StoreNotice::Changed(credential) => {
                Some(self.callers.fetch_revocation(&self.store, &credential).await.map(|()| true))
            }
            _ => Some(Ok(false)),
        }
    }

    async fn pause(&self) {
        tokio::select! {
            () = sleep(RETRY_DELAY) => {}
            () = self.closed.cancelled() => {}
        }
    }
}

/// Ends or updates sessions that other gateways have ended or changed.
struct SessionWatcher {
    service: Arc<McpService>,
    sessions: Weak<Sessions>,
    notices: Receiver<StoreNotice>,
    /// Owns the changes, because a subscription may have to start a server.
    tasks: TaskTracker,
    closed: CancellationToken,
    /// Ends the check of all sessions that was started last, when the next one starts.
    latest: CancellationToken,
}

impl SessionWatcher {
    async fn run(mut self) {
        while let Some(notice) = next_notice(&mut self.notices, &self.closed).await {
            let Some(sessions) = self.sessions.upgrade() else { return };
            match notice {
                StoreNotice::Changed(name) => {
                    self.apply(sessions, vec![SessionNotice::parse(&name)], self.closed.clone());
                }
                _ => {
                    self.latest.cancel();
                    self.latest = self.closed.child_token();
                    let notices = sessions.ids().into_iter().map(SessionNotice::Changed).collect();
                    self.apply(sessions, notices, self.latest.clone());
                }
            }
        }
    }

    /// Applies changes one after the other, until `stop` is cancelled. A change that cannot be read is tried again.
    fn apply(&self, sessions: Arc<Sessions>, notices: Vec<SessionNotice>, stop: CancellationToken) {
        let service = self.service.clone();
        let changes = async move {
            for notice in notices {
                while let Err(error) = sessions.apply_notice(&service, &notice).await {
                    tracing::warn!("cannot read what another gateway changed in a session: {error}");
                    sleep(RETRY_DELAY).await;
                }
            }
        };
        self.tasks.spawn_boxed(async move {
            tokio::select! {
                () = changes => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

/// Returns the next notice, or `None` when the gateway stops.
async fn next_notice(notices: &mut Receiver<StoreNotice>, closed: &CancellationToken) -> Option<StoreNotice> {
    let notice = tokio::select! {
        notice = notices.recv() => notice,
        () = closed.cancelled() => return None,
    };
    match notice {
        Ok(notice) => Some(notice),
        Err(RecvError::Lagged(_)) => Some(StoreNotice::Missed),
        Err(RecvError::Closed) => None,
    }
}
