//! The first words with a server: which era it speaks, and what it says about itself.

use std::time::Duration;

use tokio::time::timeout;

use super::link::{Link, Ticket};
use crate::class::FailureClass;
use crate::error::{Error, ErrorKind};
use crate::spec::EraChoice;
use crate::wire::dialect::greeting::{self, Probed, Question, SESSION_OPEN, Welcome};
use crate::wire::dialect::party::Abilities;
use crate::wire::message::Answer;
use crate::wire::revision::{Era, Revision};

/// How long a server may stay silent after the probe before it is also offered a session.
const SILENCE: Duration = Duration::from_secs(2);

/// How to open the conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Find out which era it is.
    Probe,
    /// The stateless era or nothing.
    Stateless,
    /// A session, in this revision if the server agrees.
    Session(Revision),
    /// A session, as the last time; only if it refuses one now, find out which era it is.
    Remembered,
    /// The same for one that died when asked for its era, which may have been the question or a mere accident.
    Instead,
}

impl Opening {
    /// What the spec says, or else what was learned the last time. A remembered stateless server is probed all the
    /// same: the probe is how that era begins.
    pub(crate) fn choose(choice: EraChoice, remembered: Option<Revision>) -> Self {
        match choice {
            EraChoice::Revision(revision) if revision.era() == Era::Session => Self::Session(revision),
            EraChoice::Era(Era::Session) => Self::Session(Revision::newest(Era::Session)),
            EraChoice::Era(Era::Stateless) | EraChoice::Revision(_) => Self::Stateless,
            EraChoice::Auto => match remembered.map(Revision::era) {
                Some(Era::Session) => Self::Remembered,
                _ => Self::Probe,
            },
        }
    }
}

/// Why there was no conversation.
#[derive(Debug)]
pub(super) enum Unwelcome {
    /// It died when asked for its era; a session may still suit it.
    DiedOnProbe,
    /// It died, or what it said makes no sense.
    Failed(Error),
}

impl From<Error> for Unwelcome {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Opens the conversation, on behalf of one client or of whoever comes. A server that answers every request on its own is waited for `patient`ly: its silence says
/// nothing about its era.
pub(super) async fn greet(
    link: &Link,
    opening: Opening,
    patient: bool,
    client: Option<&Abilities>,
) -> Result<Welcome, Unwelcome> {
    match opening {
        Opening::Session(revision) => open_session(link, revision, client).await,
        Opening::Stateless => match greeting::read_probe(&ask(link, &greeting::probe())?.await?) {
            Probed::Stateless(welcome) => Ok(welcome),
            Probed::Session => Err(nonsense("it does not speak the stateless era".to_owned()).into()),
        },
        Opening::Probe => probe(link, patient, client).await,
        Opening::Remembered | Opening::Instead => {
            match open_session(link, Revision::newest(Era::Session), client).await {
                Err(Unwelcome::Failed(refusal)) if refusal.kind() == ErrorKind::BadReply => {
                    match greeting::read_probe(&ask(link, &greeting::probe())?.await?) {
                        Probed::Stateless(welcome) => Ok(welcome),
                        Probed::Session => Err(refusal.into()),
                    }
                }
                opened => opened,
            }
        }
    }
}

async fn probe(link: &Link, patient: bool, client: Option<&Abilities>) -> Result<Welcome, Unwelcome> {
    let newest = Revision::newest(Era::Session);
    let mut probe = ask(link, &greeting::probe())?;
    let silence = if patient { Duration::MAX } else { SILENCE };
    let Ok(answer) = timeout(silence, &mut probe).await else {
        // Silent: it may still be booting, or ignore what it does not know. Offer a session on the same pipe and take
        // the first answer that means something.
        let mut hello = ask(link, &greeting::hello(newest, client))?;
        return tokio::select! {
            biased;
            answer = &mut probe => match probed(answer)? {
                Some(welcome) => Ok(welcome),
                None => finish_session(link, &hello.await?),
            },
            answer = &mut hello => finish_session(link, &answer?),
        };
    };
    match probed(answer)? {
        Some(welcome) => Ok(welcome),
        None => open_session(link, newest, client).await,
    }
}

/// `None` means: open a session.
fn probed(answer: Result<Answer, Error>) -> Result<Option<Welcome>, Unwelcome> {
    match answer {
        Ok(answer) => match greeting::read_probe(&answer) {
            Probed::Stateless(welcome) => Ok(Some(welcome)),
            Probed::Session => Ok(None),
        },
        Err(error) if error.kind() == ErrorKind::Lost => Err(Unwelcome::DiedOnProbe),
        // It could not be asked, which says nothing about its era.
        Err(error) if matches!(error.kind(), ErrorKind::CouldNotStart | ErrorKind::AuthNeeded) => {
            Err(error.into())
        }
        Err(_) => Ok(None),
    }
}

async fn open_session(
    link: &Link,
    revision: Revision,
    client: Option<&Abilities>,
) -> Result<Welcome, Unwelcome> {
    let answer = ask(link, &greeting::hello(revision, client))?.await?;
    finish_session(link, &answer)
}

fn finish_session(link: &Link, answer: &Answer) -> Result<Welcome, Unwelcome> {
    let welcome = greeting::read_hello(answer).map_err(|why| match answer {
        Answer::Error(_) => Error::new(ErrorKind::BadReply, why).of_class(FailureClass::Refused),
        Answer::Result(_) => nonsense(why),
    })?;
    link.tell(SESSION_OPEN);
    Ok(welcome)
}

fn ask(link: &Link, question: &Question) -> Result<Ticket, Error> {
    Ok(link.ask(question.method, None, |_, line| question.params.write(line))?.uncancellable())
}

fn nonsense(why: String) -> Error {
    Error::new(ErrorKind::BadReply, why).of_class(FailureClass::Misconfigured)
}
