//! Resource subscriptions that survive restarts of their server.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::call::Call;
use crate::catalog::Catalog;
use crate::model::error::{Error, ErrorKind};
use crate::model::event::ServerNotification;
use crate::model::instance_key::InstanceKey;
use crate::model::selector::Selector;
use crate::model::target::Target;
use crate::pipeline::router::CallRouter;
use crate::spec::ServerId;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// The pause before a failed subscription is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The time that a client waits until the server was told about the end of a subscription.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// The instance of the server that holds the subscription; it changes with restarts.
type SubscribedInstance = Arc<Mutex<InstanceKey>>;

/// A subscription to changes of one resource. It keeps the server running; dropping it ends the subscription.
pub struct Subscription {
    uri: String,
    server: ServerId,
    own_uri: Arc<str>,
    instance: SubscribedInstance,
    router: Weak<CallRouter>,
    /// The subscribe request, with its caller.
    call: Call,
    cancel: DropGuard,
    /// Cancelled when the server is no longer subscribed to.
    ended: CancellationToken,
}

impl std::fmt::Debug for Subscription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("uri", &self.uri)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Subscription {
    /// Ends the subscription, and waits a moment until the server has been told.
    ///
    /// # Cancel safety
    /// The subscription ends in any case.
    pub async fn end(self) {
        drop(self.cancel);
        let _ = timeout(END_TIMEOUT, self.ended.cancelled()).await;
    }

    /// Returns the URI as it was requested.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns whether a notification belongs to this subscription.
    pub fn matches(&self, notification: &ServerNotification) -> bool {
        self.updated_uri(notification).is_some()
    }

    /// Returns the URI of the resource that a notification of this subscription is about: the requested one, or the public
    /// URI of a sub-resource that the caller may read. A sub-resource is below the subscribed URI: that URI is followed by
    /// `/`, `?` or `#`.
    pub fn updated_uri(&self, notification: &ServerNotification) -> Option<Cow<'_, str>> {
        let ServerNotification::ResourceUpdated { server, instance, uri, .. } = notification else {
            return None;
        };
        if *server != self.server || *instance != *self.instance.lock().ignore_poison() {
            return None;
        }
        if *uri == self.own_uri {
            return Some(Cow::Borrowed(&self.uri));
        }
        let is_visible =
            || self.router.upgrade().is_some_and(|router| router.can_subscribe(&self.call, server, uri));
        if !is_sub_resource(&self.own_uri, uri) || !is_visible() {
            return None;
        }
        let is_own = *self.uri == *self.own_uri;
        Some(Cow::Owned(if is_own { uri.to_string() } else { Catalog::qualified_uri(server, uri) }))
    }
}

/// Returns whether a URI is below another one.
fn is_sub_resource(parent: &str, uri: &str) -> bool {
    let Some(rest) = uri.strip_prefix(parent) else { return false };
    parent.ends_with('/') || rest.starts_with(['/', '?', '#'])
}

/// A subscription that the server has not confirmed yet.
pub(crate) struct PendingSubscription {
    subscription: Subscription,
    confirmed: oneshot::Receiver<Result<(), Error>>,
}

impl PendingSubscription {
    /// Waits until the server confirms the subscription; an error means that it refused.
    pub(crate) async fn wait_until_accepted(self) -> Result<Subscription, Error> {
        match self.confirmed.await {
            Ok(answer) => answer.map(|()| self.subscription),
            Err(_) => Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is shutting down")),
        }
    }
}

/// Starts a subscription.
pub(crate) async fn start(router: &Arc<CallRouter>, call: Call) -> Result<PendingSubscription, Error> {
    let found = router.find_target(&call.caller, &call.selector, call.client.era).await;
    let (target, visible) = found.map_err(|error| router.denial_error(&call).unwrap_or(error))?;
    router.authorize(&call, &target, Some(&visible)).await?;
    let (Selector::Resource(uri) | Selector::OnServer(_, uri)) = &call.selector else {
        return Err(Error::new(ErrorKind::Malformed, "only resources can be subscribed to"));
    };
    let cancel = CancellationToken::new();
    let instance = SubscribedInstance::default();
    let (confirm, confirmed) = oneshot::channel();
    let ended = CancellationToken::new();
    let subscription = Subscription {
        uri: uri.clone(),
        server: target.server.clone(),
        own_uri: target.name.clone(),
        instance: instance.clone(),
        router: Arc::downgrade(router),
        call: call.clone(),
        cancel: cancel.clone().drop_guard(),
        ended: ended.clone(),
    };
    let task = SubscriptionTask {
        router: Arc::downgrade(router),
        call,
        server: target.server,
        own_uri: target.name,
        instance,
        _ended: ended.drop_guard(),
    };
    task.spawn(router, confirm, cancel);
    Ok(PendingSubscription { subscription, confirmed })
}

/// The background task of one subscription.
struct SubscriptionTask {
    router: Weak<CallRouter>,
    /// The subscribe request, with its caller and client.
    call: Call,
    server: ServerId,
    own_uri: Arc<str>,
    instance: SubscribedInstance,
    _ended: DropGuard,
}

/// The end of a subscription at one connection.
enum SubscriptionRound {
    Refused(Error),
    Ended,
    Retry,
}

impl SubscriptionTask {
    fn spawn(
        self,
        router: &CallRouter,
        confirm: oneshot::Sender<Result<(), Error>>,
        cancel: CancellationToken,
    ) {
        router.services.tasks.spawn_boxed(async move {
            tokio::select! { () = self.run(confirm, &cancel) => {}, () = self.wait_for_shutdown() => {} }
        });
    }

    async fn wait_for_shutdown(&self) {
        if let Some(shutdown) = self.router.upgrade().map(|router| router.services.abort_drain.clone()) {
            shutdown.cancelled().await;
        }
    }

    async fn run(&self, confirm: oneshot::Sender<Result<(), Error>>, cancel: &CancellationToken) {
        let mut confirm = Some(confirm);
        loop {
            match self.run_round(&mut confirm, cancel).await {
                SubscriptionRound::Ended => return,
                SubscriptionRound::Retry => {}
                SubscriptionRound::Refused(error) => match confirm.take() {
                    // An error means that the subscriber is gone.
                    Some(confirm) => return drop(confirm.send(Err(error))),
                    None => {
                        tokio::select! { () = cancel.cancelled() => return, () = sleep(RETRY_DELAY) => {} }
                    }
                },
            }
        }
    }

    fn updated_notification(&self, instance: InstanceKey) -> ServerNotification {
        ServerNotification::ResourceUpdated {
            server: self.server.clone(),
            instance,
            uri: self.own_uri.clone(),
            details: None,
        }
    }

    async fn run_round(
        &self,
        confirm: &mut Option<oneshot::Sender<Result<(), Error>>>,
        cancel: &CancellationToken,
    ) -> SubscriptionRound {
        let Some(router) = self.router.upgrade() else { return SubscriptionRound::Ended };
        let target = Target { server: self.server.clone(), name: self.own_uri.clone() };
        if let Err(error) = router.authorize(&self.call, &target, None).await {
            return SubscriptionRound::Refused(error);
        }
        let leased = tokio::select! {
            leased = router.registry.lease_with_origin(&self.server, &self.call) => leased,
            () = cancel.cancelled() => return SubscriptionRound::Ended,
        };
        let notifications = router.services.notifications.clone();
        drop(router);
        let (lease, origin) = match leased {
            Ok((lease, origin)) => (lease, origin),
            Err(error) => return SubscriptionRound::Refused(error),
        };
        *self.instance.lock().ignore_poison() = origin.key.clone();
        let connection = lease.connection().clone();
        connection.add_client(&self.call);
        if let Err(error) = connection.subscribe(&self.own_uri).await {
            return SubscriptionRound::Refused(error);
        }
        if lease.is_probe() {
            // A subscription must not hold the probe of the circuit breaker, or the next call would wait for it.
            lease.release_healthy();
            connection.unsubscribe(&self.own_uri).await;
            return SubscriptionRound::Retry;
        }
        match confirm.take() {
            // An error means that the subscriber is gone.
            Some(confirm) => drop(confirm.send(Ok(()))),
            // The resource may have changed while the server was down.
            None => notifications.send(self.updated_notification(origin.key.clone())),
        }
        tokio::select! {
            biased;
            () = cancel.cancelled() => {
                connection.unsubscribe(&self.own_uri).await;
                return SubscriptionRound::Ended;
            }
            () = connection.closed() => {}
            () = origin.supervisor.wait_until_stopping() => {}
        }
        drop(lease);
        if connection.is_closed() && !connection.was_stopped() {
            return SubscriptionRound::Retry;
        }
        // The server was stopped on purpose: the subscription alone must not start it again.
        tokio::select! {
            () = cancel.cancelled() => SubscriptionRound::Ended,
            () = origin.wait_until_up() => SubscriptionRound::Retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_resource_is_below_the_subscribed_uri() {
        for (uri, expected) in [
            ("note://a/b", true),
            ("note://a?x=1", true),
            ("note://a#part", true),
            ("note://ab", false),
            ("note://b/a", false),
            ("note://", false),
        ] {
            assert_eq!(is_sub_resource("note://a", uri), expected, "{uri}");
        }
        assert!(
            is_sub_resource("file:///dir/", "file:///dir/x")
                && !is_sub_resource("file:///dir/", "file:///dir")
        );
    }
}
