//! `Subscription`: the wish to hear of one resource's changes, kept through the deaths of its server.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::call::{Call, Wanted};
use crate::catalog::Target;
use crate::error::{Error, ErrorKind};
use crate::event::News;
use crate::sharing::SharingKey;
use crate::spec::ServerId;
use crate::stock::Stock;

/// How long to wait before a server that is away is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Which instance of the server tells.
type At = Arc<Mutex<SharingKey>>;

/// The wish to hear of one resource's changes. The server stays awake for it; dropping it is the end of it.
#[derive(Debug)]
pub struct Subscription {
    asked: String,
    server: ServerId,
    own: Arc<str>,
    at: At,
    _end: DropGuard,
}

impl Subscription {
    /// The address as it was asked for.
    pub fn uri(&self) -> &str {
        &self.asked
    }

    /// Whether this is what was wished for.
    pub fn concerns(&self, news: &News) -> bool {
        matches!(news, News::Updated { server, instance, uri }
            if *server == self.server && *uri == self.own && *instance == *self.at.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A subscription that its server has not answered yet.
pub(crate) struct Begun {
    subscription: Subscription,
    answered: oneshot::Receiver<Result<(), Error>>,
}

impl Begun {
    /// Waits for the server; an error means that it does not take it.
    pub(crate) async fn taken(self) -> Result<Subscription, Error> {
        match self.answered.await {
            Ok(answer) => answer.map(|()| self.subscription),
            Err(_) => Err(Error::new(ErrorKind::ShuttingDown, "toolcrib is being shut down")),
        }
    }
}

/// Begins a subscription.
pub(crate) async fn begin(stock: &Arc<Stock>, call: Call) -> Result<Begun, Error> {
    let found = stock.find(&call.caller, &call.wanted).await;
    let (target, view) = found.map_err(|unknown| stock.denied(&call).unwrap_or(unknown))?;
    stock.permit(&call, &target, Some(view)).await?;
    let (Wanted::Resource(asked) | Wanted::On(_, asked)) = &call.wanted else {
        return Err(Error::new(ErrorKind::Malformed, "only resources can be subscribed to"));
    };
    let (asked, at) = (asked.clone(), At::default());
    let (answer, answered) = oneshot::channel();
    let end = CancellationToken::new();
    let (server, own) = (target.server.clone(), target.name.clone());
    let kept = Kept { stock: Arc::downgrade(stock), call, server, own, at: at.clone() };
    let keeping = end.clone();
    stock.around.tasks.spawn(async move {
        tokio::select! { () = kept.keep(answer, &keeping) => {}, () = kept.over() => {} }
    });
    let subscription =
        Subscription { asked, server: target.server, own: target.name, at, _end: end.drop_guard() };
    Ok(Begun { subscription, answered })
}

/// What the task of one subscription holds.
struct Kept {
    stock: Weak<Stock>,
    /// On whose behalf.
    call: Call,
    server: ServerId,
    own: Arc<str>,
    at: At,
}

/// How one round with the server ended.
enum Round {
    Refused(Error),
    Over,
    Again,
}

impl Kept {
    async fn over(&self) {
        if let Some(hurry) = self.stock.upgrade().map(|stock| stock.around.hurry.clone()) {
            hurry.cancelled().await;
        }
    }

    async fn keep(&self, answer: oneshot::Sender<Result<(), Error>>, end: &CancellationToken) {
        let mut answer = Some(answer);
        loop {
            match self.round(&mut answer, end).await {
                Round::Over => return,
                Round::Again => {}
                Round::Refused(error) => match answer.take() {
                    // Whoever asked may have left.
                    Some(answer) => return drop(answer.send(Err(error))),
                    None => tokio::select! { () = end.cancelled() => return, () = sleep(AGAIN) => {} },
                },
            }
        }
    }

    async fn round(
        &self,
        answer: &mut Option<oneshot::Sender<Result<(), Error>>>,
        end: &CancellationToken,
    ) -> Round {
        let Some(stock) = self.stock.upgrade() else { return Round::Over };
        let target = Target { server: self.server.clone(), name: self.own.clone() };
        if let Err(error) = stock.permit(&self.call, &target, None).await {
            return Round::Refused(error);
        }
        let leased = tokio::select! {
            leased = stock.registry.lease_at(&self.server, &self.call) => leased,
            () = end.cancelled() => return Round::Over,
        };
        let news = stock.around.news.clone();
        drop(stock);
        let (lease, spot) = match leased {
            Ok((lease, spot)) => (lease, spot),
            Err(error) => return Round::Refused(error),
        };
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = spot.key.clone();
        let connection = lease.connection().clone();
        if let Err(error) = connection.subscribe(&self.own).await {
            return Round::Refused(error);
        }
        if lease.is_probe() {
            // It is well enough; whoever calls next shall not wait for us.
            lease.take_for_well();
            connection.unsubscribe(&self.own).await;
            return Round::Again;
        }
        match answer.take() {
            // Whoever asked may have left.
            Some(answer) => drop(answer.send(Ok(()))),
            // Nobody knows what happened while it was away. Nobody has to listen.
            None => {
                let (server, instance, uri) = (self.server.clone(), spot.key.clone(), self.own.clone());
                drop(news.send(News::Updated { server, instance, uri }));
            }
        }
        tokio::select! {
            biased;
            () = end.cancelled() => {
                connection.unsubscribe(&self.own).await;
                return Round::Over;
            }
            () = connection.closed() => {}
            () = spot.supervisor.leaving() => {}
        }
        drop(lease);
        if connection.is_closed() && !connection.was_dismissed() {
            return Round::Again;
        }
        // It was told to leave: whoever did that does not want it back because of us.
        tokio::select! {
            () = end.cancelled() => Round::Over,
            () = spot.up_again() => Round::Again,
        }
    }
}
