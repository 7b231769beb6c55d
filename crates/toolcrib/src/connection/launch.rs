//! From a spec to a connection that has been greeted and listed.

use std::sync::Arc;

use tokio::sync::broadcast;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::child::{Process, SpawnError};
use super::greet::{Opening, Unwelcome, greet};
use super::interest::Interest;
use super::link::{Link, Remote};
use super::listing::Listing;
use super::stderr::StderrTail;
use super::turns::Turns;
use super::{Connection, FarEnd};
use crate::error::{Error, ErrorKind};
use crate::event::News;
use crate::last_words::LastWords;
use crate::spec::{CommandSpec, Endpoint, HttpSpec, InProcessServer, ServerSpec, Transport};
use crate::wire::revision::{Era, Revision};

/// Bytes that may be under way to or from a server in this process.
const PIPE: usize = 64 << 10;

/// Why a server did not come up.
#[derive(Debug)]
pub(crate) struct StartFailure {
    pub(crate) error: Error,
    /// It died; the next attempt may go better, so those who wait may go on waiting.
    pub(crate) died: bool,
    /// It died when asked for its era, too; there is no use in asking again.
    pub(crate) died_on_probe: bool,
}

/// What a connection has to do with besides its server.
#[derive(Debug, Clone)]
pub(crate) struct Around {
    /// Owns every task.
    pub(crate) tasks: TaskTracker,
    /// Counts what was started and is not gone yet.
    pub(crate) lives: TaskTracker,
    /// Where the server's stderr goes.
    pub(crate) stderr: Arc<StderrTail>,
    /// Where the server is heard that speaks to nobody in particular.
    pub(crate) news: broadcast::Sender<News>,
}

/// Starts the server, opens the conversation, asks what it offers. A server that dies when asked for its era is
/// started once more and offered a session. Dropping the future kills what was started; nothing is started before
/// everything that was started before is gone.
pub(crate) async fn launch(
    spec: &ServerSpec,
    remembered: Option<Revision>,
    around: &Around,
) -> Result<(Connection, Listing), StartFailure> {
    let events = matches!(&spec.endpoint, Endpoint::Http(http) if http.transport == Transport::Events);
    let opening = match Opening::choose(spec.era, remembered) {
        // That way of carrying messages is older than the question.
        Opening::Probe | Opening::Remembered if events => Opening::Session(Revision::newest(Era::Session)),
        opening => opening,
    };
    let mut died_on_probe = false;
    let connected = match connect(spec, opening, around).await {
        Err(Unwelcome::DiedOnProbe) => {
            died_on_probe = true;
            let session = Opening::Session(Revision::newest(Era::Session));
            connect(spec, session, around).await
        }
        connected => connected,
    };
    let failed = |error: Error| {
        let died = error.kind() == ErrorKind::Lost;
        StartFailure { error: could_not(spec, &error), died, died_on_probe }
    };
    let connection = connected.map_err(|unwelcome| match unwelcome {
        Unwelcome::Failed(error) => failed(error),
        Unwelcome::DiedOnProbe => failed(Error::new(ErrorKind::Lost, "it died at once")),
    })?;
    match Listing::fetch(&connection).await {
        Ok(listing) => Ok((connection, listing)),
        Err(error) => Err(failed(error)),
    }
}

/// Waits until nothing is left of what was started before.
pub(crate) async fn all_gone(lives: &TaskTracker) {
    lives.close();
    lives.wait().await;
    lives.reopen();
}

async fn connect(spec: &ServerSpec, opening: Opening, around: &Around) -> Result<Connection, Unwelcome> {
    all_gone(&around.lives).await;
    let (link, far_end) = match &spec.endpoint {
        Endpoint::Command(command) => open_child(spec, command, around)?,
        Endpoint::Http(http) => open_remote(spec, http, around).await?,
        Endpoint::InProcess(server) => open_in_process(spec, server, around),
    };
    let patient = matches!(far_end, FarEnd::Remote);
    let welcome = greet(&link, opening, patient).await?;
    let (server, limits) = (spec.id.clone(), spec.limits.clone());
    let turns = Turns::new(limits.in_flight.get());
    Ok(Connection { server, link, far_end, welcome, limits, turns, interest: Interest::default() })
}

fn open_child(spec: &ServerSpec, command: &CommandSpec, around: &Around) -> Result<(Link, FarEnd), Error> {
    let (process, stdin, stdout) =
        Process::spawn(command, around.stderr.clone(), &around.tasks, &around.lives)
            .map_err(|SpawnError(why)| Error::new(ErrorKind::CouldNotStart, why))?;
    let (gone, farewell) = (process.silent(), Box::pin(process.farewell()));
    let (link, queue) = Link::new(spec.id.clone(), around.news.clone(), around.tasks.clone());
    let link = link.over_pipes(queue, (stdout, stdin), spec.limits.message, gone, farewell);
    Ok((link, FarEnd::Process(process)))
}

async fn open_remote(spec: &ServerSpec, http: &HttpSpec, around: &Around) -> Result<(Link, FarEnd), Error> {
    let remote = Remote::new(http, spec.limits.message, &around.tasks).await;
    let remote = remote.map_err(|why| Error::new(ErrorKind::CouldNotStart, why))?;
    let (link, queue) = Link::new(spec.id.clone(), around.news.clone(), around.tasks.clone());
    Ok((link.over_http(queue, remote), FarEnd::Remote))
}

fn open_in_process(spec: &ServerSpec, server: &InProcessServer, around: &Around) -> (Link, FarEnd) {
    let (ours, theirs) = tokio::io::duplex(PIPE);
    // Served wholly in a task of its own: should it panic, that is its own death and not its supervisor's.
    let server = server.0.clone();
    let served = async move { server.serve(theirs).await };
    let task = AbortOnDropHandle::new(around.tasks.spawn(around.lives.track_future(served)));
    let farewell = Box::pin(std::future::ready(LastWords::default()));
    let gone = std::future::pending();
    let (link, queue) = Link::new(spec.id.clone(), around.news.clone(), around.tasks.clone());
    let link = link.over_pipes(queue, tokio::io::split(ours), spec.limits.message, gone, farewell);
    (link, FarEnd::Task(task))
}

fn could_not(spec: &ServerSpec, cause: &Error) -> Error {
    let server = &spec.id;
    let kind = match cause.kind() {
        ErrorKind::AuthNeeded => ErrorKind::AuthNeeded,
        _ => ErrorKind::CouldNotStart,
    };
    let error = match cause.words() {
        Some(words) => Error::new(kind, format!("`{server}` could not start: {words}")),
        None => Error::new(kind, format!("`{server}` could not start: {cause}")),
    };
    let error = match cause.own_hint() {
        Some(hint) => error.at(server).hint(hint),
        None => error.at(server),
    };
    let error = match cause.wait() {
        Some(wait) => error.retry_in(wait),
        None => error,
    };
    match cause.words() {
        Some(words) => error.last_words(words.clone()),
        None => error,
    }
}
