//! Listing a running server again: on request, after announced changes, and after failures.

use super::running::UpdatedListing;
use super::*;
use crate::access::pins::Pins;
use crate::upstream::listing::fetch_lists;
use crate::upstream::relist::{EarliestRelist, RelistRequest};

/// Shortest time between two announcements of a list that clients are notified of. Those in between are merged. Clients that wait for
/// the effect of a call give up after a second.
const ANNOUNCEMENT_INTERVAL: Duration = Duration::from_millis(500);
/// Shortest time between two listings that no caller waits for.
const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// A listing that takes longer is expensive: the server is listed less often, also if a caller waits or a change is announced.
const EXPENSIVE_LISTING: Duration = Duration::from_secs(1);
/// The time that a server is not listed again, as a multiple of the time that listing it took.
const RELIST_PAUSE_FACTOR: u32 = 10;
/// The wait before the first new attempt to read a list; it doubles with each one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// The longest wait before a new attempt to read a list.
const MAX_RETRY: Duration = Duration::from_secs(5 * 60);
/// Items in all lists above which fingerprints are computed on a blocking thread. To hand them over costs as much as two of
/// them.
const LARGE_LISTING: usize = 32;

/// The result of listing a running server again.
#[derive(Debug)]
pub(in crate::supervisor) struct Relisted {
    cause: ListingCause,
    fetched: Result<FetchedListing, Error>,
}

/// The reason why lists were read.
#[derive(Debug)]
enum ListingCause {
    /// They were requested from the watcher of the connection.
    Requested(RelistRequest),
    /// A client has read them itself, and waits until they are recorded.
    Client(oneshot::Sender<()>),
}

impl Relisted {
    /// Creates the result of a listing by a client.
    pub(in crate::supervisor) fn of_client(fetched: FetchedListing) -> (Self, oneshot::Receiver<()>) {
        let (recorded, confirmation) = oneshot::channel();
        (Self { cause: ListingCause::Client(recorded), fetched: Ok(fetched) }, confirmation)
    }
}

impl Actor {
    /// Records the result of a new listing. Clients are notified of announced changes even if the lists are the same.
    pub(super) fn handle_relisted(&mut self, connection: &Connection, relisted: Relisted) {
        let Relisted { cause, fetched } = relisted;
        match fetched {
            Ok(fetched) => {
                // The first listing of a server that was started without one is no change.
                let is_change = self.known_listing.is_some();
                let UpdatedListing { changed, unsaved } =
                    self.update_listing(connection, &fetched, is_change);
                unsaved.into_iter().for_each(|known| self.save_listing(known));
                if let ListingCause::Requested(request) = &cause {
                    // What changed is announced with the new catalog, in which the first listing is no change.
                    let shown = if is_change { changed } else { ListKinds::default() };
                    self.pass_on_announcement(connection, request.announced.difference(shown));
                }
            }
            Err(error) => {
                warn!(server = %self.spec.id, %error, "cannot list the server again");
            }
        }
        match cause {
            ListingCause::Requested(request) => connection.finish_relist(request.number),
            ListingCause::Client(recorded) => confirm(recorded),
        }
    }

    /// Notifies clients of announced changes that the lists do not show. Those of lists that were just announced follow after
    /// the next listing.
    fn pass_on_announcement(&mut self, connection: &Connection, lists: ListKinds) {
        let now = Instant::now();
        let is_recent = |kind: &ListKind| {
            self.last_announcements[*kind as usize].is_some_and(|last| now < last + ANNOUNCEMENT_INTERVAL)
        };
        let deferred: ListKinds = lists.iter().filter(is_recent).collect();
        if !deferred.is_empty() {
            connection.defer_announcement(deferred);
        }
        let announced = lists.difference(deferred);
        announced.iter().for_each(|kind| self.last_announcements[kind as usize] = Some(now));
        self.send_list_change(announced);
    }
}

/// The new attempts to read lists that could not be read.
struct ListRetry {
    kinds: ListKinds,
    wait: Duration,
    at: Option<Instant>,
}

impl ListRetry {
    fn new(failed: ListKinds, now: Instant) -> Self {
        let mut retry = Self { kinds: ListKinds::default(), wait: FIRST_RETRY, at: None };
        retry.update(failed, failed, now);
        retry
    }

    /// Takes over the result of a listing and schedules the next attempt.
    fn update(&mut self, listed: ListKinds, failed: ListKinds, now: Instant) {
        self.kinds = self.kinds.difference(listed).union(failed);
        if self.kinds.is_empty() {
            self.wait = FIRST_RETRY;
            self.at = None;
        } else if !failed.is_empty() {
            self.at = Some(now + self.wait);
            self.wait = (self.wait * 2).min(MAX_RETRY);
        }
    }

    /// Waits until the next attempt is due; forever if there is none.
    async fn wait(&self) {
        match self.at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

/// Watches a connection on behalf of its actor.
pub(super) struct ConnectionWatcher {
    pub(super) connection: Arc<Connection>,
    pub(super) generation: u64,
    pub(super) actor: Weak<Mailbox>,
    pub(super) pins: Option<Arc<Pins>>,
}

impl ConnectionWatcher {
    /// Keeps the listing and the listen stream of the server up to date, and reports the end of the connection. `failed`
    /// are the lists that could not be read when the server was started.
    pub(super) async fn run(self, failed: ListKinds) {
        tokio::select! {
            biased;
            () = self.connection.closed() => {}
            () = self.relist(failed) => {}
            () = self.connection.run_listen_stream() => {}
        }
        // Has no effect if the actor has ended, which closes the connection.
        self.report(WatchEvent::Closed);
    }

    /// Reports an event to the actor; returns whether it can receive it.
    fn report(&self, event: WatchEvent) -> bool {
        let generation = self.generation;
        match self.actor.upgrade() {
            Some(actor) => actor.send(ActorCommand::Watched { generation, event }).is_ok(),
            None => false,
        }
    }

    /// Lists the server whenever that is requested, one listing at a time.
    async fn relist(&self, failed: ListKinds) {
        let now = Instant::now();
        let mut earliest = EarliestRelist::at(now);
        let mut retry = ListRetry::new(failed, now);
        loop {
            tokio::select! {
                () = self.connection.wait_for_relist(earliest) => {}
                () = retry.wait() => self.connection.request_relist(retry.kinds),
            }
            let request = self.connection.begin_relist();
            if request.kinds.is_empty() {
                self.connection.finish_relist(request.number);
                continue;
            }
            let began = Instant::now();
            let fetched = self.fetch(request.kinds).await;
            let now = Instant::now();
            let announced = request.announced;
            let failed = fetched.as_ref().map_or(request.kinds, FetchedListing::failed_kinds);
            retry.update(request.kinds, failed, now);
            let relisted = Relisted { cause: ListingCause::Requested(request), fetched };
            if !self.report(WatchEvent::Relisted(Box::new(relisted))) {
                return;
            }
            earliest = next_relist(earliest, announced, now, now - began);
        }
    }

    async fn fetch(&self, kinds: ListKinds) -> Result<FetchedListing, Error> {
        let fetched = fetch_lists(&self.connection, kinds).await?;
        Ok(match &self.pins {
            Some(pins) => compute_fingerprints(fetched, pins).await,
            None => fetched,
        })
    }
}

/// Returns when a server may be listed again, after a listing that took this long, of lists with these announced changes.
fn next_relist(before: EarliestRelist, listed: ListKinds, now: Instant, took: Duration) -> EarliestRelist {
    let pause = took * RELIST_PAUSE_FACTOR;
    let urgent_pause = if took > EXPENSIVE_LISTING { pause } else { Duration::ZERO };
    let was_just = if now < before.announced { before.just_announced } else { ListKinds::default() };
    let next_announced = now + ANNOUNCEMENT_INTERVAL.max(urgent_pause);
    EarliestRelist {
        routine: now + RELIST_INTERVAL.max(pause),
        announced: if listed.is_empty() { before.announced.max(now + urgent_pause) } else { next_announced },
        just_announced: was_just.union(listed),
        urgent: now + urgent_pause,
    }
}

/// Computes the fingerprints of a large listing on a blocking thread, so that calls go on meanwhile.
pub(super) async fn compute_fingerprints(fetched: FetchedListing, pins: &Arc<Pins>) -> FetchedListing {
    let fetched_items: usize = ListKind::ALL.into_iter().map(|kind| fetched.listing.items(kind).len()).sum();
    if fetched_items + pins.uncompared_items() <= LARGE_LISTING {
        return fetched;
    }
    let pins = pins.clone();
    let fetched = Arc::new(fetched);
    let shared = fetched.clone();
    // If this fails, they are computed later.
    let _ = tokio::task::spawn_blocking(move || pins.compute_fingerprints(&shared.listing)).await;
    Arc::unwrap_or_clone(fetched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_listing_delays_announced_changes_only_if_it_is_expensive() {
        let now = Instant::now();
        let waits = |listed, took| {
            let earliest = next_relist(EarliestRelist::at(now), listed, now, Duration::from_millis(took));
            [earliest.routine, earliest.announced, earliest.urgent].map(|at| (at - now).as_millis())
        };
        assert_eq!(waits(ListKinds::ALL, 20), [1000, 500, 0]);
        assert_eq!(waits(ListKinds::ALL, 400), [4000, 500, 0]);
        assert_eq!(waits(ListKinds::ALL, 2000), [20_000, 20_000, 20_000]);
        assert_eq!(waits(ListKinds::default(), 20), [1000, 0, 0], "nothing was announced");
    }

    #[test]
    fn second_announcement_of_a_list_waits_and_that_of_another_does_not() {
        let now = Instant::now();
        let took = Duration::from_millis(20);
        let tools: ListKinds = ListKind::Tools.into();
        let first = next_relist(EarliestRelist::at(now), tools, now, took);
        assert!(first.just_announced == tools && first.announced == now + ANNOUNCEMENT_INTERVAL);
        let between = now + ANNOUNCEMENT_INTERVAL / 2;
        let second = next_relist(first, ListKinds::default(), between, took);
        assert!(second.just_announced == tools && second.announced == first.announced);
        let later = now + ANNOUNCEMENT_INTERVAL * 2;
        assert!(next_relist(second, ListKinds::default(), later, took).just_announced.is_empty());
    }
}
