//! `Approvals`: calls that need a person's yes, who is asked for it, and how long an answer holds.
//!
//! An answer is about one caller, one thing of one server and exactly these arguments. The client is asked if it can be;
//! else the call is refused, and whoever looks after the gateway can say yes before it is made again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout};

use crate::call::{Call, Caller};
use crate::catalog::Target;
use crate::error::{Error, ErrorKind};
use crate::pins::Fingerprint;
use crate::policy::{Denial, Finding};
use crate::spec::ServerId;
use crate::told::{Ask, Told};
use crate::wire::dialect::party::ELICIT;
use crate::wire::message::Answer;
use crate::wire::object::Object;

/// How long an answer holds for the same call.
const HOLDS: Duration = Duration::from_secs(300);
/// How long a call that could not be asked about can be decided.
const WAITS: Duration = Duration::from_secs(600);
/// How long a person may take.
const ANSWERING: Duration = Duration::from_secs(600);
/// Answers and open questions that are kept; the oldest make room.
const MOST: usize = 1000;
/// Characters of arguments that a person is shown.
const SHOWN: usize = 2000;

/// Stands for a caller, a thing and its arguments.
type Key = [u8; 32];

/// A call that needs a yes and whose client could not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenCall {
    /// To decide about it by.
    pub id: String,
    /// Who wants it.
    pub caller: Caller,
    /// Whose it is.
    pub server: ServerId,
    /// The server's own name for it.
    pub name: String,
    /// The arguments as JSON, maybe cut.
    pub arguments: String,
}

/// What was decided, and what waits to be.
#[derive(Debug, Default)]
pub(crate) struct Approvals(Mutex<Book>);

#[derive(Debug, Default)]
struct Book {
    decided: HashMap<Key, (bool, Instant)>,
    open: HashMap<String, (Key, OpenCall, Instant)>,
}

impl Book {
    fn decide(&mut self, key: Key, yes: bool, now: Instant) {
        self.decided.retain(|_, (_, until)| *until > now);
        make_room(&mut self.decided, |(_, until)| *until);
        self.decided.insert(key, (yes, now + HOLDS));
    }
}

/// The one that would end first goes when there are too many.
fn make_room<K: Clone + Eq + std::hash::Hash, V>(all: &mut HashMap<K, V>, until: impl Fn(&V) -> Instant) {
    if all.len() >= MOST
        && let Some(oldest) = all.iter().min_by_key(|(_, value)| until(value)).map(|(key, _)| key.clone())
    {
        all.remove(&oldest);
    }
}

impl Approvals {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on if a person says yes, or has said so of the same call a moment ago.
    pub(crate) async fn obtain(
        &self,
        call: &Call,
        target: &Target,
        finding: &Finding<'_>,
    ) -> Result<(), Error> {
        let (key, arguments) = (key(call, target), arguments(call));
        let refuse = |why: &str| refusal(call, target, finding, why);
        match self.answer(&key, Instant::now()) {
            Some(true) => return Ok(()),
            Some(false) => return Err(refuse("a person said no to this very call a moment ago")),
            None => {}
        }
        let message = format!(
            "`{}` wants to use `{}.{}` with {arguments}. Allow it?",
            call.caller.as_str(),
            target.server,
            target.name
        );
        match ask(call, &message).await {
            Reply::Yes => {
                self.book().decide(key, true, Instant::now());
                Ok(())
            }
            Reply::No => {
                self.book().decide(key, false, Instant::now());
                Err(refuse("a person said no"))
            }
            Reply::Nothing => Err(refuse("nobody answered")),
            Reply::NotAsked => {
                let id = self.open(key, call, target, arguments, Instant::now());
                let error = refuse("a person must say yes, and this client cannot be asked");
                Err(error.hint(format!("toolcrib approve --call {id}")).needs_approval(id))
            }
        }
    }

    fn answer(&self, key: &Key, now: Instant) -> Option<bool> {
        self.book().decided.get(key).filter(|(_, until)| *until > now).map(|(yes, _)| *yes)
    }

    fn open(&self, key: Key, call: &Call, target: &Target, arguments: String, now: Instant) -> String {
        let id: String = key[..6].iter().map(|byte| format!("{byte:02x}")).collect();
        let (caller, server, name) = (call.caller.clone(), target.server.clone(), target.name.to_string());
        let open = OpenCall { id: id.clone(), caller, server, name, arguments };
        let mut book = self.book();
        book.open.retain(|_, (_, _, until)| *until > now);
        make_room(&mut book.open, |(_, _, until)| *until);
        book.open.insert(id.clone(), (key, open, now + WAITS));
        id
    }

    /// Calls that somebody can decide about.
    pub(crate) fn waiting(&self, now: Instant) -> Vec<OpenCall> {
        let book = self.book();
        let waiting = book.open.values().filter(|(_, _, until)| *until > now);
        let mut waiting: Vec<OpenCall> = waiting.map(|(_, open, _)| open.clone()).collect();
        waiting.sort_by(|one, other| one.id.cmp(&other.id));
        waiting
    }

    /// Says yes or no to one of them; `None` if there is none of this name.
    pub(crate) fn decide(&self, id: &str, yes: bool, now: Instant) -> Option<OpenCall> {
        let mut book = self.book();
        let (key, open, _) = book.open.remove(id).filter(|(_, _, until)| *until > now)?;
        book.decide(key, yes, now);
        Some(open)
    }
}

/// What came of a question.
enum Reply {
    Yes,
    No,
    Nothing,
    NotAsked,
}

async fn ask(call: &Call, message: &str) -> Reply {
    // Nothing to fill in: to accept is to say yes.
    let params = json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}});
    let params = params.to_string().into();
    if call.client.abilities.lacking(ELICIT, Some(&params)).is_some() {
        return Reply::NotAsked;
    }
    let (ask, answered) = Ask::new(ELICIT.to_owned(), Some(params));
    if !call.told.as_ref().is_some_and(|sink| sink.hear(Told::Asked(ask))) {
        return Reply::NotAsked;
    }
    match timeout(ANSWERING, answered).await {
        Ok(Ok(Answer::Result(result))) => {
            let action =
                Object::parse(&result).ok().and_then(|result| Some(result.string("action")?.into_owned()));
            match action.as_deref() {
                Some("accept") => Reply::Yes,
                Some("decline") => Reply::No,
                _ => Reply::Nothing,
            }
        }
        Ok(Ok(Answer::Error(_))) => Reply::NotAsked,
        Ok(Err(_)) | Err(_) => Reply::Nothing,
    }
}

fn refusal(call: &Call, target: &Target, finding: &Finding<'_>, why: &str) -> Error {
    let Target { server, name } = target;
    let denial = Denial { rule: finding.to_string(), origin: finding.origin().cloned() };
    call.record.note(|met| met.denial = Some(denial.clone()));
    denial.error_because(&call.caller, server, name, why).hint("ask the person in front of the client")
}

/// The arguments for people: on one line, with nothing in them that a terminal would obey.
fn arguments(call: &Call) -> String {
    let raw = call.params.get("arguments").map_or(&b"{}"[..], |raw| raw);
    let text = String::from_utf8_lossy(raw);
    let mut shown: String =
        text.chars().take(SHOWN).map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    if shown.len() < text.len() {
        shown.push_str(&format!("… ({} bytes in all)", text.len()));
    }
    shown
}

fn key(call: &Call, target: &Target) -> Key {
    let arguments = call.params.get("arguments").map(Fingerprint::of_text);
    let arguments = arguments.map_or_else(String::new, |print| print.to_string());
    let mut digest = Sha256::new();
    let parts = [call.caller.as_str(), target.server.as_str(), &target.name, call.method(), &arguments];
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    digest.finalize().into()
}

impl Error {
    /// What to type when a call of this name cannot be decided about.
    pub(crate) fn no_open_call(id: &str) -> Self {
        let message = format!("no call `{id}` waits for a yes: it was decided, or is too old");
        Self::new(ErrorKind::Unknown, message).hint("make the call again, and approve the one that it names")
    }
}

#[cfg(test)]
mod tests;
