//! Revocations that gateways on one store share.
//!
//! A reload that removes or changes a caller stores the revocation of its credential and announces it. Every other gateway
//! then refuses the credential, although its own config still has it, until its own config is read again. A gateway that
//! starts applies the revocations of the last day.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use toolcrib::store::{Store, StoreError, StoreFuture, StoreKey, StoreKind};
use toolcrib::util::encoding;

use super::ActiveCallers;

/// The time that a revocation applies to gateways that start.
const REVOCATION_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// Revocations on their way to the store. They have taken effect in this gateway, and are stored even if this is dropped.
#[must_use = "other gateways may not learn of a revocation"]
pub struct PendingRevocations {
    replies: Vec<StoreFuture<Result<(), StoreError>>>,
}

impl std::fmt::Debug for PendingRevocations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PendingRevocations").field("replies", &self.replies.len()).finish()
    }
}

impl PendingRevocations {
    /// Starts to store the revocations, and to withdraw those of credentials that were granted again.
    pub(super) fn start(store: Option<&Arc<dyn Store>>, revoked: &[Arc<str>], granted: &[Arc<str>]) -> Self {
        let mut pending = Self { replies: Vec::new() };
        let Some(store) = store else { return pending };
        for credential in granted {
            let removed = store.remove(key(credential));
            pending.replies.push(Box::pin(async { removed.wait().await.map(drop) }));
        }
        for credential in revoked {
            // Tells a repeated revocation from one that was applied before.
            let value = encoding::random_hex().unwrap_or_default().into();
            let stored = store.put(key(credential), value, Some(REVOCATION_TTL));
            let published = store.publish(key(credential));
            pending.replies.push(Box::pin(stored.wait()));
            pending.replies.push(Box::pin(published.wait()));
        }
        pending
    }

    /// Waits until every other gateway can see the revocations. Returns immediately if there are no other gateways.
    ///
    /// # Errors
    /// Fails if the store did not accept all of them. Other gateways may accept the credentials until their own reload.
    ///
    /// # Cancel safety
    /// Dropping the future only skips waiting.
    pub async fn wait(self) -> Result<(), StoreError> {
        let mut result = Ok(());
        for reply in self.replies {
            let reply = reply.await;
            result = result.and(reply);
        }
        result
    }
}

impl ActiveCallers {
    /// Applies the revocation of a credential, unless it was withdrawn.
    pub(crate) async fn fetch_revocation(
        &self,
        store: &Arc<dyn Store>,
        credential: &str,
    ) -> Result<(), StoreError> {
        if let Some(value) = store.get(key(credential)).wait().await? {
            self.apply_revocation(credential, value);
        }
        Ok(())
    }

    /// Applies every revocation in the store.
    pub(crate) async fn fetch_all_revocations(&self, store: &Arc<dyn Store>) -> Result<(), StoreError> {
        for stored in store.list(StoreKind::Revocation, "").wait().await? {
            self.apply_revocation(&stored.name, stored.value);
        }
        Ok(())
    }

    /// Revokes a credential. A revocation that was applied before has no effect: a reload may have granted the credential
    /// since.
    fn apply_revocation(&self, credential: &str, value: Bytes) {
        let mut state = self.write();
        if state.applied.get(credential) != Some(&value) {
            state.applied.insert(credential.to_owned(), value);
            state.callers.revoke(credential);
        }
    }
}

fn key(credential: &str) -> StoreKey<'_> {
    StoreKey::new(StoreKind::Revocation, credential)
}
