//! The MCP handshake: finds out which era a server speaks and reads its capabilities.

use std::time::Duration;

use tokio::time::timeout;

use super::mux::{Mux, PendingReply};
use crate::model::error::{Error, ErrorKind};
use crate::model::exit_report::ProcessExit;
use crate::model::failure_class::{Delivery, FailureClass};
use crate::protocol::era::handshake::{
    self, HandshakeClient, HandshakeRequest, HandshakeResult, INITIALIZED, ProbeOutcome,
};
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::{Era, Revision};
use crate::spec::{Endpoint, EraChoice, ServerSpec, TransportKind};

/// Time for the probe to be answered before `initialize` is sent as well.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for `initialize` to be answered before the probe is sent as well. It is longer, because servers that take long to
/// start are far more common than servers that ignore `initialize`, and some expect no other request after it.
const INITIALIZE_TIMEOUT: Duration = Duration::from_secs(5);

/// The way to start the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakePlan {
    /// Only the stateless era.
    Stateless,
    /// A session, in this revision if the server agrees.
    Session(Revision),
    /// This era first, then the other one. A server that exits is started again for the other one.
    Prefer(Era),
    /// The same for an era that the server is known to speak, so that an exit has another reason.
    Expect(Era),
    /// This era, for a server that exited when the other one was tried.
    AfterExit(Era),
    /// Like `Prefer`, but the start fails if the server speaks only the other era.
    Require(Era),
}

impl HandshakePlan {
    /// Returns the plan that the config demands; `None` if it leaves the era open.
    pub(crate) fn from_config(spec: &ServerSpec) -> Option<Self> {
        let is_legacy_sse =
            matches!(&spec.endpoint, Endpoint::Http(http) if http.transport == TransportKind::Sse);
        match spec.era {
            EraChoice::Revision(revision) if revision.era() == Era::Session => Some(Self::Session(revision)),
            EraChoice::Era(Era::Session) => Some(Self::Session(Revision::newest(Era::Session))),
            EraChoice::Era(Era::Stateless) | EraChoice::Revision(_) => Some(Self::Stateless),
            // HTTP+SSE is older than the stateless era.
            EraChoice::Auto if is_legacy_sse => Some(Self::Session(Revision::newest(Era::Session))),
            EraChoice::Auto => None,
        }
    }

    /// Returns whether an exit during the handshake may mean that the server does not know the era.
    fn restarts_after_exit(self, has_refused: bool) -> bool {
        match self {
            Self::Prefer(_) | Self::Require(_) => true,
            Self::Expect(_) => has_refused,
            Self::AfterExit(_) | Self::Stateless | Self::Session(_) => false,
        }
    }
}

/// The reason why the handshake failed.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The server exited when this era was tried; the other one may still work. Some servers refuse the first message
    /// before they exit.
    Exited { tried: Era, refusal: Option<Error> },
    /// The server exited after it had run for a while, which is more likely a crash than the refusal of an era.
    ExitedLate(Error),
    /// The server exited, refused, or sent an invalid response.
    Failed(Error),
}

impl From<Error> for HandshakeError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The result of a handshake, and what it showed about the other era.
#[derive(Debug)]
pub(super) struct HandshakeSuccess {
    pub(super) result: HandshakeResult,
    /// The era that the server refused.
    pub(super) refused: Option<Era>,
}

impl HandshakeSuccess {
    fn new(result: HandshakeResult) -> Self {
        Self { result, refused: None }
    }

    fn after_refusal(result: HandshakeResult) -> Self {
        let refused = Some(result.revision.era().other());
        Self { result, refused }
    }
}

/// Performs the handshake as `client`. `waits_for_reply` disables the timeouts of its first request: over HTTP every
/// request gets its own response, so a late one says nothing about the era.
pub(super) async fn perform_handshake(
    mux: &Mux,
    plan: HandshakePlan,
    waits_for_reply: bool,
    client: &HandshakeClient,
) -> Result<HandshakeSuccess, HandshakeError> {
    let first_era = match plan {
        HandshakePlan::Session(revision) => {
            return open_session(mux, revision, client).await.map(HandshakeSuccess::new);
        }
        HandshakePlan::Stateless => {
            let response = request(mux, &handshake::probe_request(&client.info)).await?;
            return match handshake::parse_probe_response(&response) {
                ProbeOutcome::Stateless(result) => Ok(HandshakeSuccess::new(result)),
                ProbeOutcome::Session => {
                    Err(bad_reply("it does not support the stateless era".to_owned()).into())
                }
            };
        }
        HandshakePlan::Prefer(era)
        | HandshakePlan::Expect(era)
        | HandshakePlan::AfterExit(era)
        | HandshakePlan::Require(era) => era,
    };
    // A server that exited on the first message of the other era must not get it now.
    let waits_for_reply = waits_for_reply || matches!(plan, HandshakePlan::AfterExit(_));
    let performed = match first_era {
        Era::Session => try_session_first(mux, waits_for_reply, client).await,
        Era::Stateless => try_stateless_first(mux, waits_for_reply, client).await,
    };
    match performed {
        Err(HandshakeError::Exited { refusal, .. })
            if !plan.restarts_after_exit(refusal.is_some()) || was_shim_killed(mux) =>
        {
            Err(refusal.unwrap_or_else(|| mux.exit_error(Delivery::MaybeSent)).into())
        }
        performed => performed,
    }
}

/// Opens a session. A server that refuses it, or does not answer, is probed for the stateless era.
async fn try_session_first(
    mux: &Mux,
    waits_for_reply: bool,
    client: &HandshakeClient,
) -> Result<HandshakeSuccess, HandshakeError> {
    let newest = Revision::newest(Era::Session);
    let mut initialize = send(mux, &handshake::initialize_request(newest, client))?;
    let limit = if waits_for_reply { Duration::MAX } else { INITIALIZE_TIMEOUT };
    let Ok(response) = timeout(limit, &mut initialize).await else {
        // No response yet: the server may be starting, or ignore unknown methods. Use the first valid response.
        let mut probe = send(mux, &handshake::probe_request(&client.info))?;
        return tokio::select! {
            biased;
            response = &mut initialize => match read_session_reply(mux, response) {
                Ok(SessionReply::Open(result)) => Ok(HandshakeSuccess::new(result)),
                Ok(SessionReply::Refused(refusal)) => use_probe_after(refusal, probe.await),
                // It had `initialize` for a while, and the probe came last.
                Err(HandshakeError::Exited { .. }) => Err(exited_in(Era::Stateless)),
                Err(error) => Err(error),
            },
            response = &mut probe => match read_probe_reply(response)? {
                Some(result) => Ok(HandshakeSuccess::new(result)),
                None => finish_session(mux, &initialize.await?).map(HandshakeSuccess::new),
            },
        };
    };
    match read_session_reply(mux, response)? {
        SessionReply::Open(result) => Ok(HandshakeSuccess::new(result)),
        SessionReply::Refused(refusal) => {
            let probed = request(mux, &handshake::probe_request(&client.info)).await;
            use_probe_after(refusal, probed)
        }
    }
}

/// Returns the result of the probe of a server that refused a session. If it refuses the stateless era as well, the first
/// refusal explains more.
fn use_probe_after(
    refusal: Error,
    probed: Result<ResponsePayload, Error>,
) -> Result<HandshakeSuccess, HandshakeError> {
    match probed.map(|response| handshake::parse_probe_response(&response)) {
        Ok(ProbeOutcome::Stateless(result)) => Ok(HandshakeSuccess::after_refusal(result)),
        Err(error) if error.kind() == ErrorKind::Lost => {
            Err(HandshakeError::Exited { tried: Era::Session, refusal: Some(refusal) })
        }
        Ok(ProbeOutcome::Session) | Err(_) => Err(refusal.into()),
    }
}

/// Returns whether the shim of the server was killed, so that processes of the server may be left: no start is tried again
/// because of the era then.
fn was_shim_killed(mux: &Mux) -> bool {
    let error = mux.exit_error(Delivery::MaybeSent);
    error.exit_report().is_some_and(|report| report.exit == Some(ProcessExit::ShimKilled))
}

/// Returns the error for a server that exited when an era was tried.
fn exited_in(tried: Era) -> HandshakeError {
    HandshakeError::Exited { tried, refusal: None }
}

/// The response of a server to `initialize`.
enum SessionReply {
    Open(HandshakeResult),
    /// The server may speak only the stateless era.
    Refused(Error),
}

/// Reads the response to `initialize`, and confirms the session if one was opened.
fn read_session_reply(
    mux: &Mux,
    response: Result<ResponsePayload, Error>,
) -> Result<SessionReply, HandshakeError> {
    match response {
        Ok(response) => match finish_session(mux, &response) {
            Ok(result) => Ok(SessionReply::Open(result)),
            Err(HandshakeError::Failed(refusal)) => Ok(SessionReply::Refused(refusal)),
            Err(error) => Err(error),
        },
        Err(error) if error.kind() == ErrorKind::Lost => Err(exited_in(Era::Session)),
        Err(error) if error.kind() == ErrorKind::BadReply => Ok(SessionReply::Refused(error)),
        Err(error) => Err(error.into()),
    }
}

/// Probes for the stateless era. A server that refuses it, or does not answer, gets `initialize`.
async fn try_stateless_first(
    mux: &Mux,
    waits_for_reply: bool,
    client: &HandshakeClient,
) -> Result<HandshakeSuccess, HandshakeError> {
    let newest = Revision::newest(Era::Session);
    let mut probe = send(mux, &handshake::probe_request(&client.info))?;
    let limit = if waits_for_reply { Duration::MAX } else { PROBE_TIMEOUT };
    let Ok(response) = timeout(limit, &mut probe).await else {
        // No response yet: the server may be starting, or ignore unknown methods. Send `initialize` as well and use
        // the first valid response.
        let mut initialize = send(mux, &handshake::initialize_request(newest, client))?;
        return tokio::select! {
            biased;
            response = &mut probe => match read_probe_reply(response)? {
                Some(result) => Ok(HandshakeSuccess::new(result)),
                None => finish_session(mux, &initialize.await?).map(HandshakeSuccess::after_refusal),
            },
            response = &mut initialize => finish_session(mux, &response?).map(HandshakeSuccess::new),
        };
    };
    match read_probe_reply(response)? {
        Some(result) => Ok(HandshakeSuccess::new(result)),
        None => match open_session(mux, newest, client).await {
            // It has refused the probe, and exited then.
            Err(HandshakeError::Failed(error)) if error.kind() == ErrorKind::Lost => {
                Err(exited_in(Era::Stateless))
            }
            opened => opened.map(HandshakeSuccess::after_refusal),
        },
    }
}

/// Reads the response to the probe. `None` means that a session is needed.
fn read_probe_reply(
    response: Result<ResponsePayload, Error>,
) -> Result<Option<HandshakeResult>, HandshakeError> {
    match response {
        Ok(response) => match handshake::parse_probe_response(&response) {
            ProbeOutcome::Stateless(result) => Ok(Some(result)),
            ProbeOutcome::Session => Ok(None),
        },
        Err(error) if error.kind() == ErrorKind::Lost => Err(exited_in(Era::Stateless)),
        // The probe was not delivered, which says nothing about the era.
        Err(error) if matches!(error.kind(), ErrorKind::CouldNotStart | ErrorKind::AuthNeeded) => {
            Err(error.into())
        }
        Err(_) => Ok(None),
    }
}

async fn open_session(
    mux: &Mux,
    revision: Revision,
    client: &HandshakeClient,
) -> Result<HandshakeResult, HandshakeError> {
    let response = request(mux, &handshake::initialize_request(revision, client)).await?;
    finish_session(mux, &response)
}

fn finish_session(mux: &Mux, response: &ResponsePayload) -> Result<HandshakeResult, HandshakeError> {
    let result = handshake::parse_initialize_response(response).map_err(|reason| match response {
        ResponsePayload::Error(_) => {
            Error::new(ErrorKind::BadReply, reason).with_class(FailureClass::Refused)
        }
        ResponsePayload::Result(_) => bad_reply(reason),
    })?;
    mux.notify(INITIALIZED);
    Ok(result)
}

async fn request(mux: &Mux, request: &HandshakeRequest) -> Result<ResponsePayload, Error> {
    send(mux, request)?.await
}

fn send(mux: &Mux, request: &HandshakeRequest) -> Result<PendingReply, Error> {
    Ok(mux
        .send_request(request.method, None, None, |_, line| request.params.write_to(line))?
        .without_cancellation())
}

fn bad_reply(reason: String) -> Error {
    Error::new(ErrorKind::BadReply, reason).with_class(FailureClass::Misconfigured)
}
