//! The MCP handshake: finds out which era a server speaks and reads its capabilities.

use std::time::Duration;

use tokio::time::timeout;

use super::mux::{Mux, PendingReply};
use crate::model::error::{Error, ErrorKind};
use crate::model::failure_class::FailureClass;
use crate::protocol::era::handshake::{
    self, HandshakeClient, HandshakeRequest, HandshakeResult, INITIALIZED, ProbeOutcome,
};
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::{Era, Revision};
use crate::spec::EraChoice;

/// Time for the probe to be answered before `initialize` is sent as well.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// The way to start the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HandshakePlan {
    /// Probe for the era.
    Probe,
    /// Only the stateless era.
    Stateless,
    /// A session, in this revision if the server agrees.
    Session(Revision),
    /// A session, as last time. If the server refuses it, probe for the era.
    RememberedSession,
    /// The same, for a server that exited when probed.
    AfterProbeExit,
}

impl HandshakePlan {
    /// Returns the plan for the configured era, or else for the revision used last time. A remembered stateless
    /// server is probed as well: the probe is how that era starts.
    pub(crate) fn choose(choice: EraChoice, remembered: Option<Revision>) -> Self {
        match choice {
            EraChoice::Revision(revision) if revision.era() == Era::Session => Self::Session(revision),
            EraChoice::Era(Era::Session) => Self::Session(Revision::newest(Era::Session)),
            EraChoice::Era(Era::Stateless) | EraChoice::Revision(_) => Self::Stateless,
            EraChoice::Auto => match remembered.map(Revision::era) {
                Some(Era::Session) => Self::RememberedSession,
                _ => Self::Probe,
            },
        }
    }
}

/// The reason why the handshake failed.
#[derive(Debug)]
pub(super) enum HandshakeError {
    /// The server exited when probed; a session may still work.
    ExitedOnProbe,
    /// The server exited, refused, or sent an invalid response.
    Failed(Error),
}

impl From<Error> for HandshakeError {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Performs the handshake as `client`. `wait_for_probe`
/// disables the probe timeout: over HTTP every request gets its own response, so a late one says nothing about the
/// era.
pub(super) async fn perform_handshake(
    mux: &Mux,
    plan: HandshakePlan,
    wait_for_probe: bool,
    client: &HandshakeClient,
) -> Result<HandshakeResult, HandshakeError> {
    match plan {
        HandshakePlan::Session(revision) => open_session(mux, revision, client).await,
        HandshakePlan::Stateless => {
            match handshake::parse_probe_response(&send(mux, &handshake::probe_request(&client.info))?.await?)
            {
                ProbeOutcome::Stateless(result) => Ok(result),
                ProbeOutcome::Session => {
                    Err(bad_reply("it does not support the stateless era".to_owned()).into())
                }
            }
        }
        HandshakePlan::Probe => probe(mux, wait_for_probe, client).await,
        HandshakePlan::RememberedSession | HandshakePlan::AfterProbeExit => {
            match open_session(mux, Revision::newest(Era::Session), client).await {
                Err(HandshakeError::Failed(refusal)) if refusal.kind() == ErrorKind::BadReply => {
                    match handshake::parse_probe_response(
                        &send(mux, &handshake::probe_request(&client.info))?.await?,
                    ) {
                        ProbeOutcome::Stateless(result) => Ok(result),
                        ProbeOutcome::Session => Err(refusal.into()),
                    }
                }
                opened => opened,
            }
        }
    }
}

async fn probe(
    mux: &Mux,
    wait_for_probe: bool,
    client: &HandshakeClient,
) -> Result<HandshakeResult, HandshakeError> {
    let newest = Revision::newest(Era::Session);
    let mut probe = send(mux, &handshake::probe_request(&client.info))?;
    let probe_timeout = if wait_for_probe { Duration::MAX } else { PROBE_TIMEOUT };
    let Ok(response) = timeout(probe_timeout, &mut probe).await else {
        // No response yet: the server may be starting, or ignore unknown methods. Send `initialize` as well and use
        // the first valid response.
        let mut initialize = send(mux, &handshake::initialize_request(newest, client))?;
        return tokio::select! {
            biased;
            response = &mut probe => match read_probe_reply(response)? {
                Some(result) => Ok(result),
                None => finish_session(mux, &initialize.await?),
            },
            response = &mut initialize => finish_session(mux, &response?),
        };
    };
    match read_probe_reply(response)? {
        Some(result) => Ok(result),
        None => open_session(mux, newest, client).await,
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
        Err(error) if error.kind() == ErrorKind::Lost => Err(HandshakeError::ExitedOnProbe),
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
    let response = send(mux, &handshake::initialize_request(revision, client))?.await?;
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

fn send(mux: &Mux, request: &HandshakeRequest) -> Result<PendingReply, Error> {
    Ok(mux
        .send_request(request.method, None, |_, line| request.params.write_to(line))?
        .without_cancellation())
}

fn bad_reply(reason: String) -> Error {
    Error::new(ErrorKind::BadReply, reason).with_class(FailureClass::Misconfigured)
}
