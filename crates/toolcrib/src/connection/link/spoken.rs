//! What a server says: answers to whoever waits, and what it tells or asks on its own to the client it belongs to.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::super::pending::{Ended, Unheard};
use super::Shared;
use crate::cache::Stale;
use crate::event::News;
use crate::told::{Ask, Told};
use crate::wire::dialect::client::{
    ACKNOWLEDGED, CANCELLED, DISCOVER, ELICITED, HELLO, LOG, PING, PROGRESS, PROMPTS_CHANGED,
    RESOURCE_UPDATED, RESOURCES_CHANGED, TASK_STATUS, TOOLS_CHANGED, lacks_ability,
};
use crate::wire::dialect::meta;
use crate::wire::dialect::party::{ELICIT, LogLevel, ROOTS, SAMPLE};
use crate::wire::frame::Frame;
use crate::wire::message::{self, Answer, Id, ServerMessage, code, error_object, shortened};
use crate::wire::object::{Object, as_integer};
use crate::wire::revision::Era;

/// Lines that mean nothing before a server has said anything that does: banners are shorter.
const LONGEST_BANNER: u64 = 1000;
/// The call that a question came with, if it did, and where its answer will be.
type Asked = (u64, oneshot::Receiver<Answer>);
/// Why a question reaches nobody: a code and the words.
type Refusal = (i32, String);

impl Unheard {
    fn refusal(self, method: &str) -> Refusal {
        let why = match self {
            Self::Nobody | Self::Over => format!("`{method}` belongs to no call: nobody here can be asked"),
            Self::Several => {
                format!("`{method}` could belong to calls of several clients: nobody is asked")
            }
        };
        (code::INVALID_REQUEST, why)
    }
}

impl Shared {
    /// Notes why what is at the other end is no server at all, and gives it up; one that has made sense before has only
    /// lost its mind.
    pub(in crate::connection) fn is_no_server(&self, why: impl Into<String>) {
        if !self.understood.load(Ordering::Relaxed) {
            let _ = self.alien.set(why.into()); // the first reason counts
            self.broken.cancel();
        }
    }

    /// Counts a line that means nothing; `false` if there were too many before the first that does.
    fn hear_noise(&self, line: &Frame) -> bool {
        let count = self.noise.fetch_add(1, Ordering::Relaxed) + 1;
        if self.understood.load(Ordering::Relaxed) {
            return true;
        }
        if let Frame::Line(line) = line
            && !line.trim_ascii().is_empty()
        {
            self.strange.get_or_init(|| shortened(&self.mask.hide_bytes(line.trim_ascii())));
        }
        if count >= LONGEST_BANNER {
            let first = self.strange.get().map_or("", String::as_str);
            self.is_no_server(format!("it writes {count} lines that are no messages, `{first}` first"));
        }
        count < LONGEST_BANNER
    }

    /// Handles one message of the server's, which came on the stream of the request `origin` if it came on one; `false`
    /// if the stream makes no sense any more.
    pub(in crate::connection) fn receive(self: &Arc<Self>, frame: &Frame, origin: Option<u64>) -> bool {
        let message = match frame {
            Frame::Line(line) => ServerMessage::parse(line),
            Frame::End(_) if !self.unknown_until_end.swap(false, Ordering::Relaxed) => return true,
            Frame::End(tail) => ServerMessage::oversize_end(tail),
            Frame::TooLong(head) => match ServerMessage::oversize(head) {
                Some(message) => message,
                None => {
                    self.unknown_until_end.store(true, Ordering::Relaxed);
                    return head.trim_ascii_start().first() == Some(&b'{');
                }
            },
        };
        match message {
            // On the stream of a request there is no answer to any other.
            ServerMessage::Reply { id, .. } if origin.is_some_and(|origin| origin != id) => {
                self.fail_suspect(origin.as_slice(), format!("the id {id} is another request's"));
            }
            ServerMessage::BadReply { why, .. } if origin.is_some() => {
                self.fail_suspect(origin.as_slice(), why);
            }
            ServerMessage::Reply { id, answer } => {
                self.understood.store(true, Ordering::Relaxed);
                self.end(id, Ended::Answered(answer));
            }
            ServerMessage::BadReply { ids, why } => self.fail_suspect(&ids, why),
            ServerMessage::Request { id, method, params } => {
                self.answer_server(id, &method, params.as_ref(), origin);
            }
            ServerMessage::Notification { method, params } => self.hear(&method, params, origin),
            ServerMessage::Noise => return self.hear_noise(frame),
        }
        true
    }

    fn fail_suspect(&self, ids: &[u64], why: String) {
        let suspect = self.pending().suspect(ids);
        match suspect {
            Some(waiter) => waiter.end(Ended::BadReply(why)),
            None => drop(self.noise.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Every request gets an answer: at once, or when the client it belongs to has given one.
    fn answer_server(self: &Arc<Self>, id: Id, method: &str, params: Option<&Bytes>, origin: Option<u64>) {
        let asked = match method {
            PING => return self.reply(&id, &Answer::Result(Bytes::from_static(b"{}"))),
            // Only clients say these; whoever says them to us repeats what it was told.
            HELLO | DISCOVER => return self.is_no_server("it sends back what it is sent, as `cat` does"),
            SAMPLE | ELICIT | ROOTS => self.ask_client(&id, method, params, origin),
            _ => Err((code::METHOD_NOT_FOUND, format!("no method `{method}` here"))),
        };
        match asked {
            Err((code, why)) => self.reply(&id, &Answer::Error(error_object(code, &why, None))),
            Ok((question, answered)) => {
                let shared = self.clone();
                self.tasks.spawn(async move {
                    let answer = tokio::select! {
                        answer = answered => answer.unwrap_or_else(|_| {
                            let why = "the client went away without an answer";
                            Answer::Error(error_object(code::INVALID_REQUEST, why, None))
                        }),
                        () = shared.broken.cancelled() => return,
                    };
                    if shared.pending().answered(question) {
                        shared.reply(&id, &answer);
                    }
                });
            }
        }
    }

    fn reply(&self, id: &Id, answer: &Answer) {
        self.send(None, message::reply(id, answer));
    }

    /// Hands a question to the client it belongs to, or says why there is none. A client whose own server this is can be
    /// asked without a call, too.
    fn ask_client(
        self: &Arc<Self>,
        id: &Id,
        method: &str,
        params: Option<&Bytes>,
        origin: Option<u64>,
    ) -> Result<Asked, Refusal> {
        let mut pending = self.pending();
        let (call, client) = match pending.client_of(origin) {
            Ok(found) => found,
            Err(unheard) => {
                drop(pending);
                return self.ask_owner(id, method, params).ok_or_else(|| unheard.refusal(method));
            }
        };
        let unable = || (code::METHOD_NOT_FOUND, format!("the client cannot be asked for `{method}`"));
        if let Some(lacking) = client.abilities.lacking(method, params) {
            // The stateless era has an error of its own for this, which ends the call. Not for roots: servers ask for
            // them because we can, whatever the call needs, and manage without.
            let ends = client.era == Era::Stateless && method != ROOTS;
            if let Some(waiter) = ends.then(|| pending.take_back(call)).flatten() {
                drop(pending);
                waiter.end(Ended::Answered(Answer::Error(lacks_ability(&lacking))));
                self.take_back(call);
            }
            return Err(unable());
        }
        let asked = pending.asks(call, id.clone(), origin.is_some());
        drop(pending);
        if let Some((question, asked)) = asked {
            let (ask, answered) = Ask::new(method.to_owned(), params.cloned());
            if asked.hear(Told::Asked(self.wanted(ask, question))) {
                return Ok((question, answered));
            }
            self.pending().answered(question);
        }
        self.ask_owner(id, method, params).ok_or_else(unable)
    }

    /// Hands a question that came with no call to the one client whose server this is, if it can be asked.
    fn ask_owner(self: &Arc<Self>, id: &Id, method: &str, params: Option<&Bytes>) -> Option<Asked> {
        let (ear, abilities) = (self.whose.ear.as_ref()?, self.whose.abilities.as_ref()?);
        if abilities.lacking(method, params).is_some() {
            return None;
        }
        let question = self.pending().asks_owner(id.clone());
        let (ask, answered) = Ask::new(method.to_owned(), params.cloned());
        if ear.hear(Told::Asked(self.wanted(ask, question))) {
            return Some((question, answered));
        }
        self.pending().answered(question);
        None
    }

    /// A question that is over when the server does not wait for its answer any more.
    fn wanted(self: &Arc<Self>, ask: Ask, question: u64) -> Ask {
        let link = Arc::downgrade(self);
        ask.until(move || link.upgrade().is_none_or(|link| !link.pending().is_asked(question)))
    }

    /// Tells whoever waits under this number, which may be nobody; one that cannot keep up misses some.
    fn tell(&self, id: u64, told: Told) {
        let hears = self.pending().hears(id, matches!(told, Told::Progress(_)));
        if let Some(hears) = hears {
            hears.hear(told);
        }
    }

    /// Tells the server that nobody waits for this any more.
    pub(super) fn take_back(&self, id: u64) {
        let params = format!(r#"{{"requestId":{id},"reason":"the caller gave up"}}"#);
        self.send(Some(id), message::notification(CANCELLED, Some(params.as_bytes())));
    }

    fn hear(&self, method: &str, params: Option<Bytes>, origin: Option<u64>) {
        match method {
            PROGRESS => {
                let Some(Ok(mut progress)) = params.map(|params| Object::parse(&params)) else { return };
                let token = progress.remove("progressToken").and_then(|raw| as_integer(&raw));
                if let Some(id) = token {
                    self.tell(id, Told::Progress(progress));
                }
            }
            LOG => {
                if let Some(params) = params {
                    self.hear_log(params, origin);
                }
            }
            CANCELLED => {
                let params = params.and_then(|params| Object::parse(&params).ok());
                let id = params.and_then(|params| Id::read(params.get("requestId")?.clone()));
                let asked = id.and_then(|id| self.pending().unasked(&id));
                if let Some(asked) = asked.as_ref().or(self.whose.ear.as_ref()) {
                    asked.hear(Told::Unasked);
                }
            }
            ELICITED => self.note(ELICITED, "elicitationId", params),
            TASK_STATUS => self.note(TASK_STATUS, "taskId", params),
            TOOLS_CHANGED | PROMPTS_CHANGED | RESOURCES_CHANGED => {
                self.cache.forget(&self.server, Some(&self.whose.key), Stale::All);
                self.relist.notify_one();
            }
            ACKNOWLEDGED => {
                let tagged = params.as_ref().and_then(subscription_of).or(origin);
                self.acknowledged.send_replace((tagged.unwrap_or_default(), params));
            }
            RESOURCE_UPDATED => {
                let params = params.and_then(|params| Object::parse(&params).ok());
                if let Some(uri) = params.as_ref().and_then(|params| params.string("uri")) {
                    let (server, instance) = (self.server.clone(), self.whose.key.clone());
                    self.cache.forget(&server, Some(&instance), Stale::Resource(&uri));
                    // Nobody has to listen.
                    let _ = self.news.send(News::Updated { server, instance, uri: (&*uri).into() });
                }
            }
            _ => {}
        }
    }

    /// What is said of something that `key` names concerns whoever knows it by that name.
    fn note(&self, method: &'static str, key: &str, params: Option<Bytes>) {
        let Some(params) = params else { return };
        let named = Object::parse(&params).ok();
        if let Some(name) = named.as_ref().and_then(|named| named.string(key)) {
            let (server, name) = (self.server.clone(), (&*name).into());
            // Nobody has to listen.
            let _ = self.news.send(News::Noted { server, method, name, params });
        }
    }

    /// A line of log belongs to the one client whose call is under way; without any call, to whoever listens.
    fn hear_log(&self, params: Bytes, origin: Option<u64>) {
        let level = LogLevel::of_message(&params);
        let call = match self.pending().client_of(origin) {
            Ok((call, client)) => client.wants_log(level).then_some(call),
            Err(Unheard::Several | Unheard::Over) => None,
            Err(Unheard::Nobody) => {
                // Nobody has to listen.
                let (server, instance) = (self.server.clone(), self.whose.key.clone());
                let _ = self.news.send(News::Logged { server, instance, params });
                return;
            }
        };
        if let Some(call) = call {
            self.tell(call, Told::Log(params));
        }
    }
}

/// The request whose stream a notification is for.
fn subscription_of(params: &Bytes) -> Option<u64> {
    let meta = Object::parse(Object::parse(params).ok()?.get("_meta")?).ok()?;
    as_integer(meta.get(meta::SUBSCRIPTION)?)
}
