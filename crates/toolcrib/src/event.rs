//! `Event`: the closed list of things that can happen, said once for logs, metrics and dashboards alike.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::call::Caller;
use crate::class::FailureClass;
use crate::error::ErrorKind;
use crate::pins::Mark;
use crate::policy::Denial;
use crate::sharing::SharingKey;
use crate::spec::ServerId;
use crate::wire::kind::Kind;

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A server answered its first listing.
    Started {
        /// Which.
        server: ServerId,
        /// Its process, if it has one.
        pid: Option<u32>,
        /// How long that took.
        took: Duration,
    },
    /// A server is gone that should not be, or did not come up; it is started again.
    Crashed {
        /// Which.
        server: ServerId,
        /// What is wrong with it.
        class: FailureClass,
        /// How it ended.
        why: String,
    },
    /// A server was stopped: idle, asked to, or replaced.
    Stopped {
        /// Which.
        server: ServerId,
    },
    /// A server fails too often and is left alone for a while.
    Tripped {
        /// Which.
        server: ServerId,
    },
    /// A tripped server answered again.
    Recovered {
        /// Which.
        server: ServerId,
    },
    /// A server cannot be asked now, and is left alone for a while.
    Paused {
        /// Which.
        server: ServerId,
        /// What is wrong with it.
        class: FailureClass,
        /// How it said so.
        why: String,
        /// For how long.
        wait: Duration,
    },
    /// A server died too often, or can never work; it needs a person.
    Ejected {
        /// Which.
        server: ServerId,
        /// What is wrong with it.
        class: FailureClass,
        /// How it ended.
        why: String,
    },
    /// A server offers something else than it did.
    Changed {
        /// Which.
        server: ServerId,
    },
    /// A server offers tools that are not what was approved.
    Unapproved {
        /// Which.
        server: ServerId,
        /// Those that were not known to be so, by the server's own names.
        tools: Vec<(Arc<str>, Mark)>,
        /// Whether nobody gets them until a person approves.
        withheld: bool,
    },
    /// A call came to its end.
    Called(Arc<Called>),
}

/// How one call went: everything but what was said in it.
#[derive(Debug, Clone)]
pub struct Called {
    /// When it ended.
    pub at: SystemTime,
    /// Who made it.
    pub caller: Caller,
    /// The request's method.
    pub method: Cow<'static, str>,
    /// The server that has what was asked for, if one was found.
    pub server: Option<ServerId>,
    /// The server's own name for it; the name asked for, if no server was found.
    pub name: Arc<str>,
    /// What the rules said.
    pub decision: Decision,
    /// The rule that forbids it, also where whoever made the call does not get to know of it.
    pub denial: Option<Denial>,
    /// What the cache had for it, if it was asked.
    pub cache: Option<CacheUse>,
    /// Bytes of its parameters.
    pub asked: usize,
    /// Bytes of its result, or of the error that the server answered with.
    pub answered: usize,
    /// How it ended.
    pub ending: Ending,
    /// How long it took.
    pub took: Duration,
    /// Its arguments, for a [`Witness`](crate::Witness) that wants them and nobody else.
    pub arguments: Option<Bytes>,
}

/// What the rules said about a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Decision {
    /// It did not come that far.
    #[default]
    Unjudged,
    /// Nothing against it.
    Allowed,
    /// A person said yes to it.
    Approved,
    /// Not this.
    Denied,
}

impl Decision {
    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unjudged => "none",
            Self::Allowed => "allowed",
            Self::Approved => "approved",
            Self::Denied => "denied",
        }
    }
}

/// What the cache had for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheUse {
    /// Nothing: the server was asked.
    Miss,
    /// The answer.
    Hit,
    /// An equal call under way, whose answer was shared.
    Joined,
}

impl CacheUse {
    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::Hit => "hit",
            Self::Joined => "joined",
        }
    }
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With a result.
    Done,
    /// The tool, or the server, said that it failed.
    ToolError,
    /// With questions that its client has to answer first.
    Asks,
    /// No answer came from a server.
    Failed(ErrorKind),
    /// Whoever made it took it back.
    Cancelled,
}

impl Ending {
    /// Its stable name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::ToolError => "tool_error",
            Self::Asks => "input_required",
            Self::Failed(kind) => kind.facts().name,
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a server says unasked and to nobody in particular.
#[derive(Debug, Clone)]
pub enum News {
    /// A resource has another content now.
    Updated {
        /// Whose it is.
        server: ServerId,
        /// Which instance of that server says so.
        instance: SharingKey,
        /// The server's own address of it.
        uri: Arc<str>,
    },
    /// An instance offers something else now, and what its server is known for stays as it was.
    Relisted {
        /// Whose instance it is.
        server: ServerId,
        /// Which one.
        instance: SharingKey,
        /// The lists that are others now.
        lists: Arc<[Kind]>,
    },
    /// How something goes on that outlives the call it began with: a task, or what a person does at an address.
    Noted {
        /// Who says so.
        server: ServerId,
        /// The notification's method.
        method: &'static str,
        /// The server's own name of it.
        name: Arc<str>,
        /// The notification's parameters.
        params: Bytes,
    },
    /// A line of log that belongs to no call.
    Logged {
        /// Who wrote it.
        server: ServerId,
        /// Which instance of that server.
        instance: SharingKey,
        /// The notification's parameters.
        params: Bytes,
    },
}
