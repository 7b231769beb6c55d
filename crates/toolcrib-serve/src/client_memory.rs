//! The memory that clients cause: bodies of their requests, messages that are kept or not read yet, and what their sessions
//! declare. All of it counts against one limit.
//!
//! A caller may use at most as much as it leaves free for others, so that there is always room for one more caller. The
//! local caller may use everything. A part is kept for small bodies: a few large ones do not stop ordinary requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::sync::Notify;
use toolcrib::{Caller, Error, ErrorKind, Hint};

/// Largest body that may use the part for small bodies.
const MAX_SMALL_BODY: usize = 64 << 10;
/// The part for small bodies is the limit divided by this.
const SMALL_PART_DIVISOR: usize = 8;
/// Size from which a body keeps its claim until its last slice is dropped. The claim of a smaller one ends with its request.
pub(crate) const MIN_OWNED_BODY: usize = 16 << 10;
/// Use above which its end is reported, so that free memory can be returned to the system.
const MIN_BURST: usize = 16 << 20;

/// The config key that sets the limit.
const LIMIT_KEY: &str = "limits.client-memory";

/// The memory of all clients of a gateway.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    limit: usize,
    used: AtomicUsize,
    /// Highest use since the end of the last burst, if it was a burst.
    peak: AtomicUsize,
    burst_ended: Notify,
}

/// The memory of one caller's clients.
#[derive(Debug)]
pub(crate) struct CallerMemory {
    used: AtomicUsize,
    has_whole_limit: bool,
}

/// The memory that messages of one session, or one request, count against.
#[derive(Debug, Clone)]
pub(crate) struct MemoryAccount {
    pub(crate) total: Arc<ClientMemory>,
    pub(crate) caller: Arc<CallerMemory>,
}

/// A part of the memory, until this is dropped.
#[derive(Debug)]
pub(crate) struct MemoryClaim {
    account: MemoryAccount,
    bytes: usize,
}

/// Bytes and the memory that they count against.
struct ClaimedBytes<B> {
    bytes: B,
    _claim: MemoryClaim,
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for ClaimedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl CallerMemory {
    pub(crate) fn new(caller: &Caller) -> Self {
        Self { used: AtomicUsize::new(0), has_whole_limit: caller.is_local() }
    }
}

impl ClientMemory {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0), peak: AtomicUsize::new(0), burst_ended: Notify::new() }
    }

    /// Returns the bytes that are used.
    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Waits until clients have released most of what they used in a burst.
    pub(crate) async fn wait_for_end_of_burst(&self) {
        self.burst_ended.notified().await;
    }

    fn release(&self, bytes: usize) {
        let left = self.used.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        if left < MIN_BURST / 2 && self.peak.load(Ordering::Relaxed) > 0 {
            self.peak.store(0, Ordering::Relaxed);
            self.burst_ended.notify_one();
        }
    }
}

impl MemoryAccount {
    /// Counts more bytes. Returns `false`, and counts nothing, if the limit or the share of the caller does not allow it.
    #[must_use]
    pub(crate) fn try_add(&self, bytes: usize) -> bool {
        self.try_add_up_to(bytes, self.total.limit - self.total.limit / SMALL_PART_DIVISOR)
    }

    fn try_add_up_to(&self, bytes: usize, limit: usize) -> bool {
        let own = self.caller.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let all = self.total.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let free = limit.checked_sub(all);
        let fits = free.is_some_and(|free| self.caller.has_whole_limit || own <= free);
        if !fits {
            self.release(bytes);
        } else if all >= MIN_BURST {
            self.total.peak.fetch_max(all, Ordering::Relaxed);
        }
        fits
    }

    /// Counts the bytes of a short message that is needed in any case.
    pub(crate) fn add(&self, bytes: usize) {
        self.caller.used.fetch_add(bytes, Ordering::Relaxed);
        self.total.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Stops counting bytes.
    pub(crate) fn release(&self, bytes: usize) {
        self.caller.used.fetch_sub(bytes, Ordering::Relaxed);
        self.total.release(bytes);
    }

    /// Claims memory; `None` if there is too little.
    pub(crate) fn claim(&self, bytes: usize) -> Option<MemoryClaim> {
        self.try_add(bytes).then(|| MemoryClaim { account: self.clone(), bytes })
    }

    /// Returns the error for a request that is refused because there is too little memory.
    pub(crate) fn refusal(&self, subject: &str) -> Error {
        let limit = self.total.limit;
        let message =
            format!("{subject}: clients use too much memory, at most {limit} bytes (`{LIMIT_KEY}`)");
        Error::new(ErrorKind::Overloaded, message).with_hint(Hint::RaiseLimit { key: LIMIT_KEY.to_owned() })
    }
}

impl MemoryClaim {
    /// Creates the claim of a body of which nothing has been read yet.
    pub(crate) fn for_body(account: MemoryAccount) -> Self {
        Self { account, bytes: 0 }
    }

    /// Claims more bytes of a body. Returns `false`, and claims nothing, if there is too little memory.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let is_small = self.bytes + bytes <= MAX_SMALL_BODY;
        let fits = match is_small {
            true => self.account.try_add_up_to(bytes, self.account.total.limit),
            false => self.account.try_add(bytes),
        };
        if fits {
            self.bytes += bytes;
        }
        fits
    }

    /// Returns the account.
    pub(crate) fn account(&self) -> &MemoryAccount {
        &self.account
    }

    /// Returns a body as bytes that keep the claim, if it is large.
    pub(crate) fn attach_large(&mut self, body: impl Into<Bytes>) -> Bytes {
        let body = body.into();
        if body.len() < MIN_OWNED_BODY {
            return body;
        }
        let claim = Self { account: self.account.clone(), bytes: std::mem::take(&mut self.bytes) };
        claim.attach(body)
    }

    /// Returns bytes that keep the claim until their last slice is dropped.
    pub(crate) fn attach(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(ClaimedBytes { bytes, _claim: self })
    }
}

impl Drop for MemoryClaim {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.account.release(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(total: &Arc<ClientMemory>, name: &str) -> MemoryAccount {
        let caller = Caller::new(name);
        MemoryAccount { total: total.clone(), caller: Arc::new(CallerMemory::new(&caller)) }
    }

    #[test]
    fn caller_leaves_as_much_as_it_uses() {
        let total = Arc::new(ClientMemory::new(800));
        let [first, second, third] = ["a", "b", "c"].map(|name| account(&total, name));
        assert!(!first.try_add(351) && first.try_add(350));
        assert!(!second.try_add(176) && second.try_add(175));
        assert!(third.try_add(80) && !first.try_add(1));
        first.release(350);
        second.release(175);
        third.release(80);
        assert_eq!(total.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn local_caller_may_use_everything_except_the_part_for_small_bodies() {
        let total = Arc::new(ClientMemory::new(800 << 10));
        let local = account(&total, "local");
        assert!(!local.try_add(701 << 10) && local.try_add(700 << 10));
        let mut body = MemoryClaim::for_body(local);
        assert!(body.grow(MAX_SMALL_BODY) && !body.grow(1), "a body that is no longer small is refused");
        drop(body);
        assert_eq!(total.used.load(Ordering::Relaxed), 700 << 10);
    }

    #[test]
    fn large_body_keeps_its_claim_until_the_last_slice_is_dropped() {
        let total = Arc::new(ClientMemory::new(1 << 20));
        let used = || total.used.load(Ordering::Relaxed);
        let mut claim = MemoryClaim::for_body(account(&total, "local"));
        assert!(claim.grow(MIN_OWNED_BODY));
        let body = claim.attach_large(vec![b'x'; MIN_OWNED_BODY]);
        let slice = body.slice(5..9);
        drop((claim, body));
        assert_eq!(used(), MIN_OWNED_BODY);
        drop(slice);
        assert_eq!(used(), 0);
        let mut claim = MemoryClaim::for_body(account(&total, "local"));
        assert!(claim.grow(10));
        let small = claim.attach_large(vec![b'x'; 10]);
        drop(claim);
        assert_eq!((used(), small.len()), (0, 10));
    }

    #[tokio::test]
    async fn end_of_a_burst_is_reported_once() {
        let total = Arc::new(ClientMemory::new(1 << 30));
        let burst = account(&total, "local").claim(MIN_BURST);
        drop(burst);
        total.wait_for_end_of_burst().await;
        drop(account(&total, "local").claim(MIN_BURST - 1));
        let waiting = tokio::time::timeout(std::time::Duration::ZERO, total.wait_for_end_of_burst());
        assert!(waiting.await.is_err());
    }
}
