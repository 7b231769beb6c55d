//! From a spec to a connection that has been greeted and listed.

use std::sync::{Arc, OnceLock};

use tokio::sync::{broadcast, mpsc};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::child::{Home, Nursery, Process, SpawnError};
use super::greet::{Opening, Unwelcome, greet};
use super::link::{Link, Outgoing, Remote};
use super::listing::Listing;
use super::stderr::StderrTail;
use super::turns::Turns;
use super::{Connection, FarEnd};
use crate::cache::Cache;
use crate::class::FailureClass;
use crate::error::{Error, ErrorKind};
use crate::event::News;
use crate::last_words::{Exit, LastWords};
use crate::secret::{Mask, Purse, Source};
use crate::sharing::Whose;
use crate::spec::{CommandSpec, Endpoint, HttpSpec, InProcessServer, ServerSpec, Transport};
use crate::wire::revision::{Era, Revision};

/// Bytes that may be under way to or from a server in this process.
const PIPE: usize = 64 << 10;

/// Why a server did not come up.
#[derive(Debug)]
pub(crate) struct StartFailure {
    /// Of a class, which says what is to be done.
    pub(crate) error: Error,
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
    /// Where processes are started.
    pub(crate) nursery: Arc<Nursery>,
    /// Where the server's stderr goes.
    pub(crate) stderr: Arc<StderrTail>,
    /// Where the server is heard that speaks to nobody in particular.
    pub(crate) news: broadcast::Sender<News>,
    /// What the server has said that may be said again.
    pub(crate) cache: Arc<Cache>,
    /// The first line of this start's stdout that was no message.
    pub(crate) strange: Arc<OnceLock<String>>,
    /// Whose it is.
    pub(crate) whose: Arc<Whose>,
    /// Who keeps the secrets.
    pub(crate) secrets: Option<Source>,
}

/// The secrets of the connection that is being made, and what hides them.
struct Confidence {
    purse: Purse,
    mask: Arc<Mask>,
}

impl Around {
    fn link(&self, spec: &ServerSpec, mask: Arc<Mask>) -> (Link, mpsc::UnboundedReceiver<Outgoing>) {
        let (news, tasks, cache) = (self.news.clone(), self.tasks.clone(), self.cache.clone());
        Link::new(spec.id.clone(), (news, cache), tasks, (self.strange.clone(), mask), self.whose.clone())
    }
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
    let confidence = match Purse::fill(spec, around.secrets.as_ref(), &around.tasks).await {
        Ok(purse) => Confidence { mask: Arc::new(purse.mask()), purse },
        Err((name, none)) => {
            let error = Error::new(ErrorKind::AuthNeeded, none.of(&name)).hint(none.hint(&name));
            let error = could_not(spec, &error, &Mask::default()).of_class(FailureClass::NeedsAuth);
            return Err(StartFailure { error, died_on_probe: false });
        }
    };
    let mut died_on_probe = false;
    let connected = match connect(spec, opening, around, &confidence).await {
        Err(Unwelcome::DiedOnProbe) => {
            died_on_probe = true;
            connect(spec, Opening::Instead, around, &confidence).await
        }
        connected => connected,
    };
    let failed = |error: Error| {
        let (class, could_not) = (class_of(spec, &error), could_not(spec, &error, &confidence.mask));
        let error = match (class, error.own_hint()) {
            (FailureClass::Misconfigured, None) => could_not.hint(repair(spec)),
            _ => could_not,
        };
        StartFailure { error: error.of_class(class), died_on_probe }
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

async fn connect(
    spec: &ServerSpec,
    opening: Opening,
    around: &Around,
    confidence: &Confidence,
) -> Result<Connection, Unwelcome> {
    all_gone(&around.lives).await;
    let (link, far_end) = match &spec.endpoint {
        Endpoint::Command(command) => open_child(spec, command, around, confidence).await?,
        Endpoint::Http(http) => open_remote(spec, http, around, confidence).await?,
        Endpoint::InProcess(server) => open_in_process(spec, server, around),
    };
    let patient = matches!(far_end, FarEnd::Remote);
    let welcome = match greet(&link, opening, patient, around.whose.abilities.as_ref()).await {
        Ok(welcome) => welcome,
        Err(unwelcome) => return Err(named(&link, unwelcome, opening)),
    };
    let (server, limits, tools) = (spec.id.clone(), spec.limits.clone(), spec.tools.clone());
    let turns = Turns::new(limits.in_flight.get());
    let (interest, errands) = Default::default();
    Ok(Connection { server, link, far_end, welcome, limits, tools, turns, interest, errands })
}

/// What is at the other end, if it has shown that it is no server at all.
fn named(link: &Link, unwelcome: Unwelcome, opening: Opening) -> Unwelcome {
    let (lost, probing) = match unwelcome {
        Unwelcome::DiedOnProbe => (link.lost(false), true),
        Unwelcome::Failed(error) => (error, false),
    };
    let silent_end = || {
        let ended_well = lost.words().is_some_and(|words| words.exit == Some(Exit::Status(0)));
        ended_well && link.heard() == 0 && matches!(opening, Opening::Session(_) | Opening::Instead)
    };
    let why = match link.alien() {
        Some(why) => format!("{why}: it is no MCP server"),
        None if lost.kind() == ErrorKind::Lost && silent_end() => {
            "it ended at once with exit status 0 and without a word: it is no MCP server, or misses an argument"
                .to_owned()
        }
        None if probing => return Unwelcome::DiedOnProbe,
        None => return Unwelcome::Failed(lost),
    };
    Unwelcome::Failed(Error::new(ErrorKind::CouldNotStart, why).of_class(FailureClass::Misconfigured))
}

/// What is wrong with a server that did not come up, if nobody has said so yet. One that somebody else runs is not to
/// blame for what it says while it is down.
fn class_of(spec: &ServerSpec, error: &Error) -> FailureClass {
    let remote = matches!(spec.endpoint, Endpoint::Http(_));
    match error.class() {
        Some(FailureClass::Misconfigured) if remote && error.kind() == ErrorKind::BadReply => {
            FailureClass::Unreachable
        }
        Some(class) => class,
        None if remote => FailureClass::Unreachable,
        None if error.kind() == ErrorKind::Lost => FailureClass::Crashed,
        None => FailureClass::Refused,
    }
}

fn misconfigured(why: String) -> Error {
    Error::new(ErrorKind::CouldNotStart, why).of_class(FailureClass::Misconfigured)
}

/// What to do about a server that cannot work as it is declared.
fn repair(spec: &ServerSpec) -> String {
    let server = &spec.id;
    format!("repair `servers.{server}` or what it names, then: toolcrib restart {server}")
}

async fn open_child(
    spec: &ServerSpec,
    command: &CommandSpec,
    around: &Around,
    Confidence { purse, mask }: &Confidence,
) -> Result<(Link, FarEnd), Error> {
    let Around { tasks, lives, nursery, stderr, .. } = around;
    let spawned = Process::spawn(command, Home { nursery, stderr, tasks, lives, purse, mask }).await;
    let failed = |SpawnError { why, class }| Error::new(ErrorKind::CouldNotStart, why).of_class(class);
    let (process, stdin, stdout) = spawned.map_err(failed)?;
    let (gone, farewell) = (process.silent(), Box::pin(process.farewell()));
    let (link, queue) = around.link(spec, mask.clone());
    let link = link.over_pipes(queue, (stdout, stdin), spec.limits.message, gone, farewell);
    Ok((link, FarEnd::Process(process)))
}

async fn open_remote(
    spec: &ServerSpec,
    http: &HttpSpec,
    around: &Around,
    Confidence { purse, mask }: &Confidence,
) -> Result<(Link, FarEnd), Error> {
    let remote = Remote::new(http, purse, spec.limits.message, &around.tasks).await;
    let remote = remote.map_err(misconfigured)?;
    let (link, queue) = around.link(spec, mask.clone());
    Ok((link.over_http(queue, remote), FarEnd::Remote))
}

fn open_in_process(spec: &ServerSpec, server: &InProcessServer, around: &Around) -> (Link, FarEnd) {
    let (ours, theirs) = tokio::io::duplex(PIPE);
    // Served wholly in a task of its own: should it panic, that is its own death and not its supervisor's.
    let server = server.0.clone();
    let serving = server.clone();
    let served = async move { serving.serve(theirs).await };
    let task = AbortOnDropHandle::new(around.tasks.spawn(around.lives.track_future(served)));
    let farewell = Box::pin(std::future::ready(LastWords::default()));
    let gone = std::future::pending();
    let (link, queue) = around.link(spec, Arc::default());
    let link = link.over_pipes(queue, tokio::io::split(ours), spec.limits.message, gone, farewell);
    (link, FarEnd::Task(task, InProcessServer(server)))
}

/// Whatever is known of the failure but the secrets in it.
fn could_not(spec: &ServerSpec, cause: &Error, mask: &Mask) -> Error {
    let server = &spec.id;
    let kind = match cause.kind() {
        ErrorKind::AuthNeeded => ErrorKind::AuthNeeded,
        _ => ErrorKind::CouldNotStart,
    };
    let why = cause.words().map_or_else(|| cause.to_string(), ToString::to_string);
    let error = Error::new(kind, format!("`{server}` could not start: {}", mask.hide(&why)));
    let error = match cause.own_hint() {
        Some(hint) => error.at(server).hint(mask.hide(hint)),
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
