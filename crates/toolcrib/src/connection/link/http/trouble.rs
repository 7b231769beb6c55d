//! What went wrong over HTTP, in the words that callers know.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::{StatusCode, Uri};

use super::super::super::pending::Ended;
use super::dial::said_last;
use super::parcel::Parcel;
use crate::class::FailureClass;
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::secret::Mask;
use crate::spec::ServerId;
use crate::wire::message::shortened;

/// The longest that a server's wish to be left alone is believed.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long a server is left alone that has too many requests and does not say for how long.
const A_WHILE: Duration = Duration::from_secs(1);

/// Why there is no response to look at.
pub(super) enum Trouble {
    /// Nobody could be asked.
    Unreachable(String),
    /// The connection broke after something was sent.
    Broken(String),
    /// It sends us where we do not go.
    Astray,
}

impl From<hyper_util::client::legacy::Error> for Trouble {
    fn from(error: hyper_util::client::legacy::Error) -> Self {
        let said = said_last(&error);
        if error.is_connect() { Self::Unreachable(said) } else { Self::Broken(said) }
    }
}

/// Says what went wrong with the messages to one server.
#[derive(Debug)]
pub(super) struct Plaint {
    pub(super) server: ServerId,
    pub(super) host: String,
    /// Keeps our secrets out of it, also if the server repeats them.
    mask: Arc<Mask>,
}

impl Plaint {
    pub(super) fn new(server: ServerId, address: &Uri, mask: Arc<Mask>) -> Self {
        let host = address.authority().map(ToString::to_string).unwrap_or_default();
        let host = mask.hide(&host).into_owned();
        Self { server, host, mask }
    }

    pub(super) fn trouble(&self, trouble: Trouble, parcel: &Parcel) -> Ended {
        let (server, host) = (&self.server, &self.host);
        let opens = parcel.opens();
        let failed = |error: Error| Ended::Failed(error.at(server).of_class(FailureClass::Unreachable));
        match trouble {
            Trouble::Unreachable(why) if opens => {
                let error =
                    Error::new(ErrorKind::CouldNotStart, format!("`{host}` cannot be reached: {why}"));
                failed(error.hint(self.hint(&why)))
            }
            Trouble::Unreachable(why) => {
                let message = format!("`{server}` cannot be reached at `{host}`: {why}");
                failed(Error::new(ErrorKind::Lost, message).hint(self.hint(&why)).unsent())
            }
            Trouble::Broken(why) if opens => {
                let error = Error::new(ErrorKind::CouldNotStart, format!("`{host}` broke off: {why}"));
                failed(error.hint(self.hint(&why)))
            }
            Trouble::Broken(why) => self.broken_off(&why),
            Trouble::Astray => {
                Ended::BadReply("it redirects to another server, which is not followed".into())
            }
        }
    }

    /// The connection broke with the request under way.
    pub(super) fn broken_off(&self, why: &str) -> Ended {
        let message = format!("`{}` broke off before its answer was whole: {why}", self.server);
        Ended::Failed(Error::new(ErrorKind::Lost, message).at(&self.server).hint(self.hint(why)))
    }

    /// What to do about a server that cannot be asked: its log is somewhere else.
    fn hint(&self, why: &str) -> String {
        let host = &self.host;
        match why.contains("certificate") {
            true => format!(
                "see whom the certificate of `{host}` names and who signed it; `SSL_CERT_FILE` trusts another"
            ),
            false => format!("see whether `{host}` is up and can be reached from here"),
        }
    }

    /// Its session is gone, and there is no other; the call was not looked at.
    pub(super) fn no_other_session(&self, ended: Ended) -> Ended {
        let server = &self.server;
        let why = match ended {
            Ended::Failed(error) => error.to_string(),
            Ended::BadReply(why) => why,
            Ended::Answered(_) | Ended::Lost { .. } => "it refuses".to_owned(),
        };
        let message = format!("`{server}` forgot its session and opens no other: {why}");
        Ended::Failed(Error::new(ErrorKind::BadReply, message).at(server))
    }

    /// A response that is no answer.
    pub(super) fn status(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &Bytes,
        parcel: &Parcel,
    ) -> Ended {
        let server = &self.server;
        let who = if parcel.opens() { "it".to_owned() } else { format!("`{server}`") };
        let busy = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::AuthNeeded,
            _ if busy && parcel.opens() => ErrorKind::CouldNotStart,
            _ => ErrorKind::BadReply,
        };
        if kind == ErrorKind::AuthNeeded {
            let what =
                if status == StatusCode::UNAUTHORIZED { "wants authentication" } else { "refuses access" };
            let hint = format!(
                "set `servers.{server}.headers`, such as `headers = {{ Authorization = \"Bearer ${{env:TOKEN}}\" }}`"
            );
            let message = format!("{who} {what} (HTTP {})", status.as_u16());
            let error = Error::new(kind, message).at(server).hint(hint);
            // Who is known, and may not do this one thing, may do others.
            let known = status == StatusCode::FORBIDDEN && !parcel.opens();
            return Ended::Failed(if known { error } else { error.of_class(FailureClass::NeedsAuth) });
        }
        let mut message = format!("{who} answered HTTP {}", status.as_u16());
        let said = shortened(&self.mask.hide_bytes(body.trim_ascii()));
        if !said.is_empty() && !said.starts_with('<') {
            message = format!("{message}: {said}");
        }
        let error =
            Error::new(kind, message).at(server).hint(format!("see what `{}` says about it", self.host));
        let wait = retry_after(headers);
        let class = match (status, wait) {
            (StatusCode::TOO_MANY_REQUESTS, _) | (StatusCode::SERVICE_UNAVAILABLE, Some(_)) => {
                Some(FailureClass::RateLimited)
            }
            _ => None,
        };
        let wait = wait.or_else(|| class.map(|_| A_WHILE));
        let error = wait.into_iter().fold(error, Error::retry_in);
        Ended::Failed(class.into_iter().fold(error, Error::of_class))
    }
}

/// How long a server wants to be left alone: seconds, or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let written = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match written.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) if !written.is_empty() && written.bytes().all(|byte| byte.is_ascii_digit()) => LONGEST_WAIT,
        Err(_) => date(written)?.duration_since(clock::wall()).unwrap_or_default(),
    };
    Some(wait.min(LONGEST_WAIT))
}

/// A date as HTTP writes them: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn date(written: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let words: Vec<&str> = written.split_once(", ")?.1.split([' ', ':']).collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    let month = words.get(1).and_then(|name| MONTHS.iter().position(|month| month == name))?;
    let (day, year, hour, minute, second) = (number(0)?, number(2)?, number(3)?, number(4)?, number(5)?);
    if !(1..=31).contains(&day) || year > 9999 || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970-01-01, with years that begin in March.
    let month = u64::try_from(month).ok()? + 1;
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = (year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day)
        .checked_sub(719_469)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_say_when_to_come_back() {
        let wait = |written: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, written.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(wait("1"), Some(Duration::from_secs(1)));
        assert_eq!(wait("1000000000"), Some(LONGEST_WAIT));
        assert_eq!(wait("99999999999999999999999"), Some(LONGEST_WAIT));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("Fri, 01 Jan 2100 00:00:00 GMT"), Some(LONGEST_WAIT));
        for bad in ["soon", "-1", "", "Sun, 06 Foo 1994 08:49:37 GMT", "1.5"] {
            assert_eq!(wait(bad), None, "{bad}");
        }
        let moment = date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(moment.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(), 784_111_777);
    }
}
