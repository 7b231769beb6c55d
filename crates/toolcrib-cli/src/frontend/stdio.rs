//! MCP over a pair of pipes: for agents that start a command, and for that command when it is attached to a daemon.
//!
//! Both eras may be mixed on one pipe. Requests are worked on at the same time; whatever is still under way when the
//! client hangs up gets a moment to finish.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use toolcrib::wire::dialect::client::{
    self, CANCELLED, Claim, Claimed, Claims, HELLO, LISTEN, PING, ROOTS_CHANGED,
};
use toolcrib::wire::frame::{Frame, Frames};
use toolcrib::wire::message::{
    Answer, ClientMessage, Id, code, error_object, error_reply, id_in_head, reply,
};
use toolcrib::wire::object::Object;
use toolcrib::wire::revision::Era;
use toolcrib::{Caller, Error, ErrorKind, Guest, Project};

use super::batch::{NO_SESSION, Part, is_batch, parts, together, twice};
use super::face::talk::Talk;
use super::face::told::Asks;
use super::face::under_way::UnderWay;
use super::face::watcher::Watcher;
use super::face::{Asker, Face, Presence, Visit, failed};
use super::outbox::{Outbox, outbox};

/// Requests of one client that may be under way.
const MOST_UNDER_WAY: usize = 4096;
/// How long requests may take after the client hung up.
const FAREWELL: Duration = Duration::from_secs(10);

/// Where an answer goes that waits for others.
type Answered = oneshot::Sender<Vec<u8>>;

/// One client on a pipe.
struct Pipe {
    face: Arc<Face>,
    /// Who it is, and what it sees.
    visit: Visit,
    out: Outbox,
    /// The session, once there is one; the stateless era needs none.
    session: watch::Sender<Option<Arc<Talk>>>,
    /// This client in the stateless era.
    presence: Presence,
    guest: Arc<Guest>,
    /// What it says of itself there.
    claims: Claims,
    /// Where it works, if that is known.
    project: Option<Project>,
    /// The highest number of a question that this client was asked before it came here.
    asked: u64,
    under_way: Arc<UnderWay>,
    tasks: TaskTracker,
    /// Ends streams that would otherwise never end.
    ending: CancellationToken,
}

/// What a request asks for, and how it is answered.
enum Work {
    InSession(Arc<Talk>),
    Stateless(Claimed),
    /// Before there is a session.
    Ping,
}

/// Serves one client until it hangs up or, after `stop`, until what it asked for is answered; messages have at most
/// `largest` bytes. It asks as the caller, works in the project, if that is known, and questions to it are numbered after
/// `asked`.
pub(crate) async fn serve<R, W>(
    mut reader: R,
    writer: W,
    face: Arc<Face>,
    largest: usize,
    (caller, project, asked): (Caller, Option<Project>, u64),
    stop: CancellationToken,
) where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let (out, outgoing) = outbox();
    let (session, opened) = watch::channel(None);
    let tasks = TaskTracker::new();
    let mut writing = tasks.spawn(outgoing.write(writer));
    let visit = Visit::by(caller);
    let news = tasks.spawn(announce(face.clone(), visit.clone(), opened, out.clone()));
    let pipe = Pipe {
        presence: face.welcome(),
        visit,
        guest: Arc::new(Guest::default().working_in(project.clone())),
        project,
        asked,
        face,
        out,
        session,
        claims: Claims::default(),
        under_way: Arc::default(),
        tasks: TaskTracker::new(),
        ending: stop.child_token(),
    };
    let mut frames = Frames::new(largest);
    loop {
        let stopping = pipe.tasks.is_closed();
        tokio::select! {
            count = pipe.read(&mut reader, &mut frames) => if !matches!(count, Ok(1..)) { break },
            // Whoever asks for more is told that nothing more is begun; what is under way is still answered.
            () = stop.cancelled(), if !stopping => { pipe.tasks.close(); }
            () = pipe.tasks.wait(), if stopping => break,
            // Nobody takes answers any more.
            _ = &mut writing => break,
        }
        while let Some(frame) = frames.next_frame() {
            pipe.hear(frame).await;
        }
    }
    if let Some(rest) = frames.rest() {
        pipe.receive(&rest).await;
    }
    news.abort();
    pipe.leave().await;
    // The writer ends with the last line; a client that does not read it is not waited for.
    if !writing.is_finished() {
        let _ = timeout(FAREWELL, writing).await;
    }
}

impl Pipe {
    async fn hear(&self, frame: Frame) {
        match frame {
            Frame::Line(line) if line.trim_ascii().is_empty() => {}
            Frame::Line(line) => self.receive(&line).await,
            Frame::End(_) => {}
            Frame::TooLong(head) => {
                let id = id_in_head(&head);
                self.complain(id.as_ref(), code::INVALID_REQUEST, "the message is too large").await;
            }
        }
    }

    /// Reads what the client says, once it has taken most of what it was told.
    async fn read(&self, reader: &mut (impl AsyncRead + Unpin), frames: &mut Frames) -> io::Result<usize> {
        self.out.has_room().await;
        reader.read_buf(frames.room()).await
    }

    async fn receive(&self, line: &Bytes) {
        if is_batch(line) {
            return self.batch(line).await;
        }
        match ClientMessage::parse(line) {
            Ok(ClientMessage::Request { id, method, params }) => {
                match params.map(|params| Object::parse(&params)).transpose() {
                    Ok(params) => self.ask(id, method, params).await,
                    Err(bad) => self.complain(Some(&id), code::INVALID_PARAMS, &bad.why).await,
                }
            }
            Ok(said) => self.take(said),
            Err(bad) => self.complain(bad.id.as_ref(), bad.code, &bad.why).await,
        }
    }

    /// Takes what wants no answer.
    fn take(&self, said: ClientMessage) {
        match said {
            ClientMessage::Notification { method, params } if method == CANCELLED => {
                self.under_way.cancel(params.and_then(|params| Object::parse(&params).ok()).as_ref());
            }
            ClientMessage::Notification { method, .. } if method == ROOTS_CHANGED => {
                if let Some(talk) = &*self.session.borrow() {
                    talk.moved(&self.face);
                }
            }
            ClientMessage::Reply { id, answer } => {
                if let Some(talk) = &*self.session.borrow() {
                    talk.asks.answer(&id, answer);
                }
            }
            _ => {}
        }
    }

    /// Works on several messages at once, whose answers go together.
    async fn batch(&self, line: &Bytes) {
        let open = self.session.borrow().clone();
        let Some(talk) = open else {
            return self.complain(None, code::INVALID_REQUEST, NO_SESSION).await;
        };
        let parts = match parts(line, talk.revision) {
            Ok(parts) => parts,
            Err((code, why)) => return self.complain(None, code, &why).await,
        };
        let mut answers = Vec::with_capacity(parts.len());
        for part in parts {
            let (to, answer) = oneshot::channel();
            match part {
                Part::Says(said) => self.take(said),
                Part::Refused(refusal) => answers.push(Err(refusal)),
                Part::Asks { id, method, params } => {
                    let fresh = self.work(&id, method, params, Work::InSession(talk.clone()), Some(to));
                    answers.push(if fresh { Ok(answer) } else { Err(twice(&id)) });
                }
            }
        }
        let out = self.out.clone();
        self.tasks.spawn(async move {
            let mut there = Vec::new();
            for answer in answers {
                match answer {
                    // What was taken back gets no answer.
                    Ok(answer) => there.extend(answer.await),
                    Err(refusal) => there.push(refusal),
                }
            }
            if !there.is_empty() {
                out.say(together(&there)).await;
            }
        });
    }

    async fn ask(&self, id: Id, method: String, mut params: Option<Object>) {
        let open = self.session.borrow().clone();
        let work = match self.claims.read(params.as_mut()) {
            Claim::Stateless(claimed) => Work::Stateless(claimed),
            Claim::Unspoken(date) => {
                return self.out.say(error_reply(Some(&id), &client::unsupported(&date))).await;
            }
            Claim::Broken(error) => return self.out.say(error_reply(Some(&id), &error)).await,
            Claim::None if method == HELLO => {
                let hello = self.face.hello(&self.visit, client::agreed_revision(params.as_ref())).await;
                let talk = Talk::new(&self.face, self.visit.clone(), params.as_ref(), self.project.clone());
                talk.asks.begin_after(self.asked);
                talk.line.over(self.out.aside());
                self.out.say(reply(&id, &Answer::Result(hello))).await;
                self.session.send_replace(Some(Arc::new(talk)));
                return;
            }
            Claim::None => match open {
                Some(talk) => Work::InSession(talk),
                None if method == PING => Work::Ping,
                None => {
                    let why = "open a session first, or name a revision in `params._meta`";
                    return self.complain(Some(&id), code::INVALID_REQUEST, why).await;
                }
            },
        };
        if self.tasks.len() >= MOST_UNDER_WAY {
            let error = Error::new(ErrorKind::OverQuota, "too many requests of this client are under way");
            return self.out.say(reply(&id, &failed(&error))).await;
        }
        if !self.work(&id, method, params, work, None) {
            self.out.say(twice(&id)).await;
        }
    }

    /// Starts to work on a request, in a task of its own; the answer goes to the client, or into a batch. `false` if one
    /// with its id is under way.
    fn work(
        &self,
        id: &Id,
        method: String,
        params: Option<Object>,
        work: Work,
        batch: Option<Answered>,
    ) -> bool {
        let (face, out, under_way) = (self.face.clone(), self.out.clone(), self.under_way.clone());
        let (entered, ending) = (id.clone(), self.ending.clone());
        let (key, guest, visit) = (self.presence.key, self.guest.clone(), self.visit.clone());
        self.under_way.enter(id, || {
            let work = async move {
                let answer = match work {
                    Work::InSession(talk) => talk.respond(&face, &method, params, Some(&out)).await,
                    Work::Ping => Answer::Result(client::empty_result(Era::Session)),
                    Work::Stateless(claimed) => {
                        let asker = Face::stateless(visit, &claimed, key, Some(guest));
                        match method == LISTEN {
                            true => listen(&face, asker, &entered, params.as_ref(), &out, &ending).await,
                            false => stateless(&face, asker, &method, params, claimed, &out).await,
                        }
                    }
                };
                under_way.leave(&entered);
                let line = reply(&entered, &answer);
                match batch {
                    None => out.say(line).await,
                    Some(batch) => drop(batch.send(line)),
                }
            };
            self.tasks.spawn(work).abort_handle()
        })
    }

    /// The client hung up: what is under way gets a moment, but nobody can be asked any more.
    async fn leave(self) {
        self.ending.cancel();
        if let Some(talk) = &*self.session.borrow() {
            talk.asks.close();
        }
        self.tasks.close();
        if timeout(FAREWELL, self.tasks.wait()).await.is_err() {
            self.under_way.cancel_all();
        }
    }

    async fn complain(&self, id: Option<&Id>, code: i32, why: &str) {
        self.out.say(error_reply(id, &error_object(code, why, None))).await;
    }
}

async fn stateless(
    face: &Face,
    asker: Asker,
    method: &str,
    params: Option<Object>,
    claimed: Claimed,
    out: &Outbox,
) -> Answer {
    let tells = claimed.progress.is_some() || claimed.log.is_some();
    if !tells || !Face::goes_out(&asker.visit.view, Era::Stateless, method) {
        return face.respond(asker, method, params, None).await;
    }
    // A stateless client is never asked while its call runs.
    face.respond_aloud(asker, method, params, (claimed.progress, &Arc::<Asks>::default()), out).await
}

/// Tells what changes until the client takes its request back, or everything ends.
async fn listen(
    face: &Arc<Face>,
    asker: Asker,
    id: &Id,
    params: Option<&Object>,
    out: &Outbox,
    ending: &CancellationToken,
) -> Answer {
    let mut watcher = Watcher::new(face.clone(), asker.visit.clone());
    let mut told = match face.listen(&asker, id, params).await {
        Ok(told) => told,
        Err(answer) => return answer,
    };
    out.say(told.first()).await;
    while !told.is_empty() {
        let messages = tokio::select! {
            messages = watcher.next_messages(&mut told) => messages,
            () = ending.cancelled() => None,
        };
        let Some(messages) = messages else { break };
        for message in messages {
            out.say(message).await;
        }
    }
    told.last()
}

/// Tells an open session what happens.
async fn announce(
    face: Arc<Face>,
    visit: Visit,
    mut opened: watch::Receiver<Option<Arc<Talk>>>,
    out: Outbox,
) {
    loop {
        let talk = match opened.wait_for(Option::is_some).await {
            Ok(talk) => talk.clone(),
            Err(_) => return,
        };
        let Some(mut talk) = talk else { return };
        let mut watcher = Watcher::new(face.clone(), visit.clone());
        loop {
            tokio::select! {
                messages = watcher.next_messages(&mut talk) => {
                    let Some(messages) = messages else { return };
                    for message in messages {
                        out.say(message).await;
                    }
                }
                opened_again = opened.changed() => match opened_again {
                    Ok(()) => break,
                    Err(_) => return,
                },
            }
        }
    }
}
