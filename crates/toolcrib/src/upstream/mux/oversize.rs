//! Messages of the server over the size limit. They are discarded, and the call that waits for one learns the reason.
//!
//! A response fails the call that it names in its first or last bytes when it ends, or the only request in flight if it names none.
//! A line that is not a message may be output of a tool before its answer, so the only request in flight gets some time for that. If
//! several requests are in flight, none of them is failed, and those that time out name the line.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::MuxInner;
use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::protocol::framing::OversizeMessage;
use crate::protocol::jsonrpc::{OversizeKind, ResponsePayload, code, error_object};
use crate::upstream::pending::{DiscardedMessage, RequestEnd};
use crate::util::format;

/// Time in which a message over the limit must end, and in which an answer must follow a line that is not a message.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

impl MuxInner {
    /// Returns the config key of the limit.
    fn message_limit_key(&self) -> String {
        format!("servers.{}.limits.message", self.server)
    }

    /// Returns the error of a request whose response is over the limit.
    pub(super) fn oversize_error(&self, oversize: &OversizeMessage) -> Error {
        let server = &self.server;
        let key = self.message_limit_key();
        let message = format!("`{server}` sent a bad response: {}", oversize.describe("it", &key));
        Error::new(ErrorKind::BadReply, message).with_server(server).with_hint(Hint::RaiseLimit { key })
    }

    /// Handles a message over the limit: when it exceeds the limit, and when it ends. Returns `false` if the stream cannot be read
    /// further.
    pub(super) fn receive_oversize(&self, oversize: &OversizeMessage, origin: Option<u64>) -> bool {
        let kind = oversize.kind();
        let has_ended = oversize.end.is_some();
        if kind == OversizeKind::Garbage && !self.has_spoken_mcp.load(Ordering::Relaxed) {
            let size = oversize.describe("it", &self.message_limit_key());
            self.mark_not_mcp(format!("it writes a line that is not a message, and {size}"));
            return false;
        }
        if has_ended {
            let description = oversize.describe("a message", &self.message_limit_key());
            tracing::warn!(server = %self.server, "{description}, so it was discarded");
            if matches!(kind, OversizeKind::Garbage | OversizeKind::Notification) {
                self.garbage_lines.fetch_add(1, Ordering::Relaxed);
            }
        }
        let owner = match (&kind, origin) {
            (OversizeKind::Request(id), _) => {
                if has_ended {
                    let reason = oversize.describe("the request", &self.message_limit_key());
                    self.reply(
                        id,
                        &ResponsePayload::Error(error_object(code::INVALID_REQUEST, &reason, None)),
                    );
                }
                return true;
            }
            (OversizeKind::Notification, _) => return true,
            (_, Some(origin)) => Some(origin),
            (OversizeKind::Response(id), None) => Some(*id),
            (OversizeKind::Unidentified | OversizeKind::Garbage, None) => None,
        };
        if has_ended && kind != OversizeKind::Garbage {
            self.fail_owner(owner, oversize);
        } else {
            self.expect_answer(owner, oversize, kind == OversizeKind::Garbage);
        }
        true
    }

    /// Fails the request that a message over the limit answers.
    fn fail_owner(&self, owner: Option<u64>, oversize: &OversizeMessage) {
        let mut pending = self.pending();
        pending.forget_discarded();
        match pending.take_likely_owner(owner.as_slice()) {
            Some(request) => {
                drop(pending);
                request.finish(RequestEnd::Failed(self.oversize_error(oversize)));
            }
            None if owner.is_none() => {
                drop(pending);
                self.expect_answer(None, oversize, false);
            }
            None => {}
        }
    }

    /// Remembers a discarded message, and limits the time of the request that may wait for it.
    fn expect_answer(&self, owner: Option<u64>, oversize: &OversizeMessage, is_garbage: bool) {
        let what = if is_garbage { "a line" } else { "a message" };
        let size = match &oversize.end {
            Some(end) => format!("{what} of {} bytes", end.size),
            None => format!("{what} of more than {} bytes", oversize.limit),
        };
        let purpose = if is_garbage { " that is not a message" } else { "" };
        let (key, limit) = (self.message_limit_key(), format::format_size(oversize.limit));
        let description = format!("{size}{purpose} (`{key}` is {limit})");
        let discarded = DiscardedMessage::new(description, oversize.end.is_none());
        let mut pending = self.pending();
        let must_wake_timer =
            pending.record_discarded(discarded, owner.as_slice(), Instant::now() + ANSWER_GRACE);
        drop(pending);
        if must_wake_timer {
            self.timer_changed.notify_one();
        }
    }

    /// Adds the reason to the error of a request that has timed out, if a message was discarded that it may have waited for.
    pub(super) fn explain_timeout(&self, id: u64, error: Error) -> Error {
        let pending = self.pending();
        let Some(discarded) = pending.find_discarded(id) else { return error };
        let server = &self.server;
        let description = &discarded.description;
        let hint = Hint::RaiseLimit { key: self.message_limit_key() };
        let (kind, message) = match discarded.limits_time_of(id) {
            true => {
                let grace = format::format_duration(ANSWER_GRACE);
                (ErrorKind::BadReply, format!("`{server}` did not answer within {grace} after {description}"))
            }
            false => (ErrorKind::TimedOut, format!("`{server}` did not answer in time, after {description}")),
        };
        error.into_kind(kind, message).with_hint(hint)
    }
}
