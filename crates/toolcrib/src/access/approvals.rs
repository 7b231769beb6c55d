//! Approvals: calls that a person must allow first.
//!
//! A decision is about one caller, one item of one server and exactly these arguments. The client is asked if it supports
//! elicitation. Otherwise the call is refused, and an operator can approve it before it is made again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::time::timeout;

use crate::access::pins::Fingerprint;
use crate::access::policy::PolicyVerdict;
use crate::call::Call;
use crate::call::updates::{CallUpdate, ServerRequest};
use crate::model::caller::Caller;
use crate::model::denial::Denial;
use crate::model::error::{Error, ErrorKind};
use crate::model::hint::Hint;
use crate::model::target::Target;
use crate::protocol::era::capabilities::ELICIT;
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::spec::ServerId;
use crate::store::{SigningKey, Store, StoreError, StoreKey, StoreKind};
use crate::util::encoding::to_hex;

/// The time that a decision applies to the same call.
const DECISION_TTL: Duration = Duration::from_secs(300);
/// The time that an operator has to decide about a refused call.
const PENDING_TTL: Duration = Duration::from_secs(600);
/// The time limit for the client's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Digits of the id of a pending approval.
const ID_DIGITS: usize = 12;
/// Characters of the arguments that are shown to a person.
const MAX_SHOWN_CHARS: usize = 2000;

/// A call that needs approval and whose client could not be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingApproval {
    /// Identifies the call in a decision.
    pub id: String,
    /// The caller.
    pub caller: Caller,
    /// The server of the item.
    pub server: ServerId,
    /// The server's own name of the item.
    pub name: String,
    /// The arguments as JSON, possibly truncated.
    pub arguments: String,
}

/// Recent decisions and pending approvals.
#[derive(Debug)]
pub(crate) struct Approvals {
    store: Arc<dyn Store>,
    /// Makes ids that no one else can compute; `None` without a source of random numbers.
    id_key: Option<SigningKey>,
}

/// A pending approval as it is stored.
#[derive(Debug, PartialEq, Eq)]
struct PendingEntry {
    /// The key of the decision.
    key: String,
    approval: PendingApproval,
}

impl PendingEntry {
    fn to_bytes(&self) -> Bytes {
        let PendingApproval { id, caller, server, name, arguments } = &self.approval;
        let entry = json!({
            "key": self.key,
            "id": id,
            "caller": caller.as_str(),
            "profile": caller.profile(),
            "server": server.as_str(),
            "name": name,
            "arguments": arguments,
        });
        entry.to_string().into()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let entry: Value = serde_json::from_slice(bytes).ok()?;
        let text = |member: &str| Some(entry[member].as_str()?.to_owned());
        let caller = Caller::new(entry["caller"].as_str()?);
        let approval = PendingApproval {
            id: text("id")?,
            caller: match entry["profile"].as_str() {
                Some(profile) => caller.with_profile(profile),
                None => caller,
            },
            server: entry["server"].as_str()?.parse().ok()?,
            name: text("name")?,
            arguments: text("arguments")?,
        };
        Some(Self { key: text("key")?, approval })
    }
}

/// The stored value of a decision.
fn decision_value(is_approved: bool) -> Bytes {
    Bytes::from_static(if is_approved { b"approved" } else { b"declined" })
}

impl Approvals {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, id_key: SigningKey::random().ok() }
    }

    /// Waits until a person allows the call. Returns immediately if the same call was decided recently.
    pub(crate) async fn require(
        &self,
        call: &Call,
        target: &Target,
        verdict: &PolicyVerdict<'_>,
    ) -> Result<(), Error> {
        let key = approval_key(call, target);
        let deny = |reason: &str| denied(call, target, verdict, reason);
        let unavailable = |error: StoreError| store_error(&error, target);
        match self.find_decision(&key).await.map_err(unavailable)? {
            Some(true) => return Ok(()),
            Some(false) => return Err(deny("this call was declined a moment ago")),
            None => {}
        }
        let arguments = shown_arguments(call);
        let message = format!(
            "`{}` wants to use `{}.{}` with {arguments}. Allow it?",
            call.caller.as_str(),
            target.server,
            target.name
        );
        match ask_client(call, &message).await {
            ApprovalReply::Accepted => {
                self.save_decision(&key, true).await;
                Ok(())
            }
            ApprovalReply::Declined => {
                self.save_decision(&key, false).await;
                Err(deny("the call was declined"))
            }
            ApprovalReply::NoAnswer => Err(deny("the approval request was not answered")),
            ApprovalReply::CannotAsk => {
                let error = deny("it needs approval and this client cannot be asked");
                let Some(id) = self.pending_id(&key) else { return Err(error) };
                self.add_pending(key, &id, call, target, arguments).await.map_err(unavailable)?;
                Err(error.with_hint(Hint::ApproveCall { id: id.clone() }).with_approval_id(id))
            }
        }
    }

    /// Returns a recent decision.
    async fn find_decision(&self, key: &str) -> Result<Option<bool>, StoreError> {
        let key = StoreKey::new(StoreKind::ApprovalDecision, key);
        let Some(value) = self.store.get(key).wait().await? else { return Ok(None) };
        Ok([true, false].into_iter().find(|is_approved| decision_value(*is_approved) == value))
    }

    async fn save_decision(&self, key: &str, is_approved: bool) {
        let key = StoreKey::new(StoreKind::ApprovalDecision, key);
        or_warn(self.store.put(key, decision_value(is_approved), Some(DECISION_TTL)).wait().await);
    }

    /// Returns the id of a pending approval: the same for the same call while this process runs, and unpredictable.
    fn pending_id(&self, key: &str) -> Option<String> {
        let mut mac = Hmac::<Sha256>::new_from_slice(self.id_key.as_ref()?.as_bytes()).ok()?;
        mac.update(key.as_bytes());
        let mut id = to_hex(&mac.finalize().into_bytes());
        id.truncate(ID_DIGITS);
        Some(id)
    }

    /// Lets an operator decide about a refused call.
    async fn add_pending(
        &self,
        key: String,
        id: &str,
        call: &Call,
        target: &Target,
        arguments: String,
    ) -> Result<(), StoreError> {
        let approval = PendingApproval {
            id: id.to_owned(),
            caller: call.caller.clone(),
            server: target.server.clone(),
            name: target.name.to_string(),
            arguments,
        };
        let value = PendingEntry { key, approval }.to_bytes();
        let key = StoreKey::new(StoreKind::PendingApproval, id);
        self.store.put(key, value, Some(PENDING_TTL)).wait().await
    }

    /// Returns the calls that an operator can decide about, ordered by id.
    pub(crate) async fn pending(&self) -> Vec<PendingApproval> {
        let stored = or_warn(self.store.list(StoreKind::PendingApproval, "").wait().await);
        let entries = stored.iter().filter_map(|stored| PendingEntry::parse(&stored.value));
        entries.map(|entry| entry.approval).collect()
    }

    /// Approves or declines a pending call. Returns `None` if the id is unknown or has expired. The approval is replaced by
    /// the decision in one step: it is never lost, and of several decisions one is made.
    pub(crate) async fn decide(
        &self,
        id: &str,
        is_approved: bool,
    ) -> Result<Option<PendingApproval>, StoreError> {
        let pending = StoreKey::new(StoreKind::PendingApproval, id);
        let found = self.store.get(pending).wait().await?;
        let Some(entry) = found.and_then(|value| PendingEntry::parse(&value)) else { return Ok(None) };
        let decision = StoreKey::new(StoreKind::ApprovalDecision, &entry.key);
        let value = decision_value(is_approved);
        let taken = self.store.take_and_put(pending, decision, value, Some(DECISION_TTL)).wait().await?;
        Ok(taken.map(|_| entry.approval))
    }
}

fn or_warn<T: Default>(reply: Result<T, StoreError>) -> T {
    reply.unwrap_or_else(|error| {
        tracing::warn!("cannot read or save an approval: {error}");
        T::default()
    })
}

/// The client's answer to an approval request.
enum ApprovalReply {
    Accepted,
    Declined,
    NoAnswer,
    CannotAsk,
}

async fn ask_client(call: &Call, message: &str) -> ApprovalReply {
    // An empty form: accepting it approves the call.
    let params = json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}});
    let params = params.to_string().into();
    if call.client.capabilities.missing_for(ELICIT, Some(&params)).is_some() {
        return ApprovalReply::CannotAsk;
    }
    let (request, answer) = ServerRequest::new(ELICIT.to_owned(), Some(params));
    if !call.update_sink.as_ref().is_some_and(|sink| sink.deliver_contained(CallUpdate::Request(request))) {
        return ApprovalReply::CannotAsk;
    }
    match timeout(ANSWER_TIMEOUT, answer).await {
        Ok(Ok(ResponsePayload::Result(result))) => {
            let result = Object::parse(&result).ok();
            let action = result.and_then(|result| Some(result.get_string("action")?.into_owned()));
            match action.as_deref() {
                Some("accept") => ApprovalReply::Accepted,
                Some("decline") => ApprovalReply::Declined,
                _ => ApprovalReply::NoAnswer,
            }
        }
        Ok(Ok(ResponsePayload::Error(_))) => ApprovalReply::CannotAsk,
        Ok(Err(_)) | Err(_) => ApprovalReply::NoAnswer,
    }
}

/// Records the denial and returns its error.
fn denied(call: &Call, target: &Target, verdict: &PolicyVerdict<'_>, reason: &str) -> Error {
    let Target { server, name } = target;
    let denial = Denial { rule: verdict.to_string(), origin: verdict.origin().cloned() };
    call.trace.record(|facts| facts.denial = Some(denial.clone()));
    let error = denial.into_error_with_reason(&call.caller, server, name, reason);
    error.with_hint("ask the user of the client to approve the call")
}

/// Formats the arguments for a person: one line, without control characters, truncated.
fn shown_arguments(call: &Call) -> String {
    let raw = call.params.get("arguments").map_or(&b"{}"[..], |raw| raw);
    let text = String::from_utf8_lossy(raw);
    let printable = text.chars().map(|char| if char.is_control() { ' ' } else { char });
    let mut shown: String = printable.take(MAX_SHOWN_CHARS).collect();
    if shown.len() < text.len() {
        shown.push_str(&format!("… ({} bytes in all)", text.len()));
    }
    shown
}

/// Returns the digest of a caller, an item and its arguments, in hexadecimal digits.
fn approval_key(call: &Call, target: &Target) -> String {
    let arguments = call.params.get("arguments").map(Fingerprint::from_json);
    let arguments = arguments.map_or_else(String::new, |fingerprint| fingerprint.to_string());
    let mut digest = Sha256::new();
    let parts = [call.caller.as_str(), target.server.as_str(), &target.name, call.method(), &arguments];
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    to_hex(&digest.finalize())
}

/// Returns the error for a call whose approval could not be looked up.
fn store_error(error: &StoreError, target: &Target) -> Error {
    let Target { server, name } = target;
    let message =
        format!("`{server}.{name}` was not called, because its approval could not be checked: {error}");
    Error::new(ErrorKind::StoreUnavailable, message).with_server(server)
}

impl Error {
    /// Returns the error for a decision about a call that is not pending.
    pub(crate) fn no_pending_call(id: &str) -> Self {
        let message = format!("no call `{id}` is waiting for approval: it was decided or has expired");
        Self::new(ErrorKind::Unknown, message).with_hint("repeat the call and approve the id that it reports")
    }
}

#[cfg(test)]
mod tests;
