//! `Event`: the closed list of things that can happen, said once for logs, metrics and dashboards alike.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::class::FailureClass;
use crate::error::ErrorKind;
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
    /// A call came to its end.
    Called {
        /// The server that has the tool, if one was found.
        server: Option<ServerId>,
        /// The tool's name as asked for.
        tool: String,
        /// Why it failed, if it did.
        error: Option<ErrorKind>,
        /// Whether the tool itself said that it failed.
        tool_error: bool,
        /// How long it took.
        took: Duration,
    },
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
