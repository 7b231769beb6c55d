//! Maps HTTP failures to errors of requests.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER, WWW_AUTHENTICATE};
use hyper::{StatusCode, Uri};

use super::outgoing_message::OutgoingMessage;
use crate::http_client::root_cause;
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::FailureClass;
use crate::model::hint::Hint;
use crate::oauth::Challenge;
use crate::protocol::jsonrpc::excerpt;
use crate::secrets::Redactor;
use crate::spec::auth::Grant;
use crate::spec::{HttpSpec, ServerId};
use crate::upstream::pending::RequestEnd;
use crate::util::clock;

/// Upper bound for `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Retry delay for a rate limit without `Retry-After`.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);

/// The reason why there is no response.
pub(super) enum HttpError {
    /// No connection could be opened.
    Unreachable(String),
    /// The connection broke after data was sent.
    Broken(String),
    /// A redirect to another origin, or too many redirects.
    BadRedirect,
    /// The credentials of the request could not be fetched.
    NoCredentials(Error),
}

impl From<hyper_util::client::legacy::Error> for HttpError {
    fn from(error: hyper_util::client::legacy::Error) -> Self {
        let cause = root_cause(&error);
        if error.is_connect() { Self::Unreachable(cause) } else { Self::Broken(cause) }
    }
}

/// Maps the HTTP failures of one server to errors of requests.
#[derive(Debug)]
pub(super) struct HttpErrorMapper {
    pub(super) server: ServerId,
    pub(super) host: String,
    /// Removes secrets, also from text that the server echoes.
    pub(super) redactor: Arc<Redactor>,
    /// The next step after a refusal for the credentials.
    pub(super) auth_hint: Hint,
}

impl HttpErrorMapper {
    pub(super) fn new(server: ServerId, url: &Uri, http: &HttpSpec, redactor: Arc<Redactor>) -> Self {
        let host = url.authority().map(ToString::to_string).unwrap_or_default();
        let host = redactor.redact(&host).into_owned();
        let auth_hint = auth_hint(&server, http);
        Self { server, host, redactor, auth_hint }
    }

    pub(super) fn request_error(&self, error: HttpError, message: &OutgoingMessage) -> RequestEnd {
        let server = &self.server;
        let host = &self.host;
        let is_handshake = message.is_handshake();
        let failed = |error: Error| {
            RequestEnd::Failed(error.with_server(server).with_class(FailureClass::Unreachable))
        };
        match error {
            HttpError::Unreachable(reason) if is_handshake => {
                let error =
                    Error::new(ErrorKind::CouldNotStart, format!("`{host}` cannot be reached: {reason}"));
                failed(error.with_hint(self.connection_hint(&reason)))
            }
            HttpError::Unreachable(reason) => {
                let message = format!("`{server}` cannot be reached at `{host}`: {reason}");
                failed(Error::new(ErrorKind::Lost, message).with_hint(self.connection_hint(&reason)))
            }
            HttpError::Broken(reason) if is_handshake => {
                let error =
                    Error::new(ErrorKind::CouldNotStart, format!("`{host}` closed the connection: {reason}"));
                failed(error.with_hint(self.connection_hint(&reason)))
            }
            HttpError::Broken(reason) => self.connection_broken(&reason),
            HttpError::BadRedirect => {
                RequestEnd::BadReply("it redirects to another server, which is not followed".into())
            }
            HttpError::NoCredentials(error) => RequestEnd::Failed(error.with_server(server)),
        }
    }

    /// Returns the error for a connection that broke during a request.
    pub(super) fn connection_broken(&self, reason: &str) -> RequestEnd {
        let message =
            format!("the connection to `{}` broke before the response was complete: {reason}", self.server);
        RequestEnd::Failed(
            Error::new(ErrorKind::Lost, message)
                .with_server(&self.server)
                .with_hint(self.connection_hint(reason)),
        )
    }

    /// Returns the hint for a server that cannot be reached.
    fn connection_hint(&self, reason: &str) -> String {
        let host = &self.host;
        match reason.contains("certificate") {
            true => format!(
                "check the certificate of `{host}`: its names and its issuer; `SSL_CERT_FILE` adds a trusted issuer"
            ),
            false => format!("check that `{host}` is up and can be reached from this machine"),
        }
    }

    /// Returns the error for a session that expired and could not be renewed; the call was not processed.
    pub(super) fn session_not_renewed(&self, end: RequestEnd) -> RequestEnd {
        let server = &self.server;
        let reason = match end {
            RequestEnd::Failed(error) => error.to_string(),
            RequestEnd::BadReply(reason) => reason,
            RequestEnd::Answered(_) | RequestEnd::Lost(_) | RequestEnd::TimedOut(_) => {
                "the server refused".to_owned()
            }
        };
        let message = format!("the session at `{server}` expired and cannot be renewed: {reason}");
        RequestEnd::Failed(Error::new(ErrorKind::BadReply, message).with_server(server))
    }

    /// Returns why the server refuses the credentials of a request, in its own words.
    fn challenge_reason(&self, headers: &HeaderMap) -> Option<String> {
        let challenge = Challenge::parse(headers.get(WWW_AUTHENTICATE)?.to_str().ok()?)?;
        let description = challenge.error_description.filter(|text| !text.is_empty())?;
        Some(excerpt(self.redactor.redact(&description).as_bytes()))
    }

    /// Returns the error for an HTTP status without a JSON-RPC response.
    pub(super) fn status_error(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &Bytes,
        message: &OutgoingMessage,
    ) -> RequestEnd {
        let server = &self.server;
        let is_handshake = message.is_handshake();
        let subject = if is_handshake { "it".to_owned() } else { format!("`{server}`") };
        let is_unavailable = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let kind = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::AuthNeeded,
            _ if is_unavailable && is_handshake => ErrorKind::CouldNotStart,
            _ => ErrorKind::BadReply,
        };
        if kind == ErrorKind::AuthNeeded {
            let refusal =
                if status == StatusCode::UNAUTHORIZED { "requires authentication" } else { "denies access" };
            let hint = self.auth_hint.clone();
            let reason = self.challenge_reason(headers).map(|reason| format!(": {reason}"));
            let reason = reason.unwrap_or_default();
            let message = format!("{subject} {refusal} (HTTP {}){reason}", status.as_u16());
            let error = Error::new(kind, message).with_server(server).with_hint(hint);
            // An authenticated client may be forbidden one call and allowed others.
            let is_authenticated = status == StatusCode::FORBIDDEN && !is_handshake;
            return RequestEnd::Failed(if is_authenticated {
                error
            } else {
                error.with_class(FailureClass::NeedsAuth)
            });
        }
        let mut message = format!("{subject} answered HTTP {}", status.as_u16());
        let body_text = excerpt(&self.redactor.redact_bytes(body.trim_ascii()));
        if !body_text.is_empty() && !body_text.starts_with('<') {
            message = format!("{message}: {body_text}");
        }
        let error = Error::new(kind, message)
            .with_server(server)
            .with_hint(format!("check the status of `{}`", self.host));
        let wait = retry_after(headers);
        let class = match (status, wait) {
            (StatusCode::TOO_MANY_REQUESTS, _) | (StatusCode::SERVICE_UNAVAILABLE, Some(_)) => {
                Some(FailureClass::RateLimited)
            }
            _ => None,
        };
        // A server that limits rates refuses a request before it processes it.
        let error = if status == StatusCode::TOO_MANY_REQUESTS { error.mark_not_sent() } else { error };
        let wait = wait.or_else(|| class.map(|_| DEFAULT_RETRY_AFTER));
        let error = wait.into_iter().fold(error, Error::with_retry_in);
        RequestEnd::Failed(class.into_iter().fold(error, Error::with_class))
    }
}

/// Returns the next step if a server refuses its credentials.
fn auth_hint(server: &ServerId, http: &HttpSpec) -> Hint {
    if http.has_authorization() {
        Hint::Text(format!("check `Authorization` in `servers.{server}.headers`"))
    } else if http.auth.grant == Grant::AuthorizationCode {
        Hint::Login { server: server.clone() }
    } else {
        Hint::Text(format!("check `servers.{server}.auth`"))
    }
}

/// Returns the delay that `Retry-After` asks for, in seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) => MAX_RETRY_AFTER,
        Err(_) => parse_http_date(text)?.duration_since(clock::wall_time()).unwrap_or_default(),
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// Parses an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn parse_http_date(text: &str) -> Option<SystemTime> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let parts: Vec<&str> = text.split_once(", ")?.1.split([' ', ':']).collect();
    let number = |at: usize| parts.get(at)?.parse::<u64>().ok();
    let month = parts.get(1).and_then(|name| MONTHS.iter().position(|month| month == name))?;
    let day = number(0)?;
    let year = number(2)?;
    let hour = number(3)?;
    let minute = number(4)?;
    let second = number(5)?;
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
    fn retry_after_accepts_seconds_and_dates() {
        let wait = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, text.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(wait("1"), Some(Duration::from_secs(1)));
        assert_eq!(wait("1000000000"), Some(MAX_RETRY_AFTER));
        assert_eq!(wait("99999999999999999999999"), Some(MAX_RETRY_AFTER));
        assert_eq!(wait("Sun, 06 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
        assert_eq!(wait("Fri, 01 Jan 2100 00:00:00 GMT"), Some(MAX_RETRY_AFTER));
        for bad in ["soon", "-1", "", "Sun, 06 Foo 1994 08:49:37 GMT", "1.5"] {
            assert_eq!(wait(bad), None, "{bad}");
        }
        let parsed = parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        assert_eq!(parsed.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs(), 784_111_777);
    }
}
