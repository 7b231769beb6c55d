//! Asks the person at a client to log in to a server that refused a call. All calls of a caller to the server wait for the
//! same login, and each client is asked once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::call::Call;
use crate::call::updates::{CallUpdate, ServerRequest};
use crate::model::caller::Caller;
use crate::model::error::Error;
use crate::model::event::ServerNotification;
use crate::model::hint::Hint;
use crate::oauth::{LoginStarter, Logins, PendingLogin};
use crate::pipeline::router::CallRouter;
use crate::protocol::era::capabilities::ELICIT;
use crate::protocol::era::client::ELICITATION_COMPLETE;
use crate::protocol::json::object::Object;
use crate::protocol::jsonrpc::ResponsePayload;
use crate::registry::Registry;
use crate::spec::{ServerId, ServerSpec};
use crate::supervisor::SupervisorServices;
use crate::util::encoding;
use crate::util::locks::IgnorePoison as _;
use crate::util::tasks::SpawnBoxed as _;

/// Time for the person to answer the client and to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(600);

/// The logins that clients were asked for.
pub(crate) struct InBandLogins {
    starter: Arc<dyn LoginStarter>,
    logins: Logins,
    /// Ends all logins.
    stop: CancellationToken,
    pending: Arc<Mutex<HashMap<InBandLoginKey, SharedLogin>>>,
}

impl std::fmt::Debug for InBandLogins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InBandLogins")
    }
}

/// The server and the caller of a login.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InBandLoginKey {
    server: ServerId,
    caller: Caller,
}

/// A login that several calls may wait for.
#[derive(Debug)]
struct SharedLogin {
    progress: watch::Receiver<LoginProgress>,
    /// Numbers of the clients that were asked.
    asked: Vec<u64>,
    /// Cancelled when the person declines.
    declined: CancellationToken,
}

#[derive(Debug, Clone)]
enum LoginProgress {
    Starting,
    WaitsForPerson { url: String, elicitation_id: String },
    Succeeded,
    Failed,
}

/// The part of a call in a login.
struct JoinedLogin {
    progress: watch::Receiver<LoginProgress>,
    declined: CancellationToken,
    /// True if the client of the call has not been asked yet.
    asks_client: bool,
}

impl InBandLogins {
    pub(crate) fn new(starter: Arc<dyn LoginStarter>, logins: Logins, stop: CancellationToken) -> Self {
        Self { starter, logins, stop, pending: Arc::default() }
    }

    /// Lets the person at the client of a call log in, if the call failed for lack of that. Returns whether the call is
    /// worth making again.
    pub(crate) async fn log_in(&self, router: &CallRouter, call: &Call, error: &Error) -> bool {
        let (Some(Hint::Login { server } | Hint::LoginAs { server, .. }), Some(_)) =
            (error.own_hint(), &call.update_sink)
        else {
            return false;
        };
        let request = url_request("", "", server);
        let missing_capability = call.client.capabilities.missing_for(ELICIT, Some(&request));
        let Some(Ok(entry)) = router.registry.get(server) else { return false };
        let spec = entry.spec();
        let may_log_in = call.caller.is_local() || spec.has_login_per_caller();
        if missing_capability.is_some() || !may_log_in {
            return false;
        }
        let JoinedLogin { mut progress, declined, asks_client } = self.join(router, spec, call);
        let is_open = |progress: &LoginProgress| !matches!(progress, LoginProgress::Starting);
        let Ok(opened) = progress.wait_for(is_open).await.map(|progress| progress.clone()) else {
            return false;
        };
        if let LoginProgress::WaitsForPerson { url, elicitation_id } = &opened
            && asks_client
        {
            let request = url_request(url, elicitation_id, server);
            if !ask_client(call, request, progress.clone()).await {
                declined.cancel();
                return false;
            }
        }
        let ended = progress.wait_for(LoginProgress::has_ended).await;
        ended.is_ok_and(|progress| matches!(*progress, LoginProgress::Succeeded))
    }

    /// Returns the login that runs for the caller of a call, or starts one.
    fn join(&self, router: &CallRouter, spec: &ServerSpec, call: &Call) -> JoinedLogin {
        let key = InBandLoginKey { server: spec.id.clone(), caller: call.caller.owner() };
        let mut new_run = None;
        let mut pending = self.pending.lock().ignore_poison();
        let login = pending.entry(key).or_insert_with_key(|key| {
            let (sender, progress) = watch::channel(LoginProgress::Starting);
            let declined = self.stop.child_token();
            let run = LoginRun {
                key: key.clone(),
                starter: self.starter.clone(),
                logins: self.logins.for_caller(&key.caller),
                registry: router.registry.clone(),
                services: router.services.clone(),
                progress: sender,
                pending: self.pending.clone(),
            };
            new_run = Some(run.run(spec.clone(), declined.clone()));
            SharedLogin { progress, asked: Vec::new(), declined }
        });
        let asks_client = !login.asked.contains(&call.client.key);
        if asks_client {
            login.asked.push(call.client.key);
        }
        let joined =
            JoinedLogin { progress: login.progress.clone(), declined: login.declined.clone(), asks_client };
        drop(pending); // a run that ends takes the lock
        if let Some(run) = new_run {
            router.services.tasks.spawn_boxed(run);
        }
        joined
    }
}

impl LoginProgress {
    fn has_ended(&self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// A login in a task of its own, which goes on if the call that asked for it is cancelled.
struct LoginRun {
    key: InBandLoginKey,
    starter: Arc<dyn LoginStarter>,
    logins: Logins,
    registry: Arc<Registry>,
    services: SupervisorServices,
    progress: watch::Sender<LoginProgress>,
    pending: Arc<Mutex<HashMap<InBandLoginKey, SharedLogin>>>,
}

/// Lets later calls start another login, also if the starter panics.
impl Drop for LoginRun {
    fn drop(&mut self) {
        self.pending.lock().ignore_poison().remove(&self.key);
    }
}

impl LoginRun {
    async fn run(self, spec: ServerSpec, declined: CancellationToken) {
        let ended = declined.run_until_cancelled(timeout(LOGIN_TIMEOUT, self.log_in(spec))).await;
        let is_successful = matches!(ended, Some(Ok(true)));
        let end = if is_successful { LoginProgress::Succeeded } else { LoginProgress::Failed };
        self.progress.send_replace(end);
    }

    async fn log_in(&self, spec: ServerSpec) -> bool {
        let InBandLoginKey { server, caller } = &self.key;
        let started = self.starter.start(spec, caller.clone(), self.logins.clone()).await;
        let PendingLogin { url, finished } = match started {
            Ok(login) => login,
            Err(error) => {
                tracing::warn!(%server, "cannot ask the client for a login: {error}");
                return false;
            }
        };
        let Some(elicitation_id) = encoding::random_hex() else { return false };
        let name: Arc<str> = elicitation_id.as_str().into();
        self.progress.send_replace(LoginProgress::WaitsForPerson { url, elicitation_id });
        if let Err(error) = finished.await {
            tracing::warn!(%server, "the login that the client asked for failed: {error}");
            return false;
        }
        if let Some(Ok(entry)) = self.registry.get(server)
            && let Err(error) = entry.reconnect(caller).await
        {
            tracing::warn!(%server, "not connected after the login: {error}");
        }
        let params = json!({"elicitationId": &*name}).to_string().into();
        let notification = ServerNotification::FollowUp {
            server: server.clone(),
            method: ELICITATION_COMPLETE,
            name,
            params,
        };
        self.services.notifications.send(notification);
        true
    }
}

/// Returns the parameters of the request to open a URL.
fn url_request(url: &str, elicitation_id: &str, server: &ServerId) -> Bytes {
    let message = format!("Log in to `{server}` to continue.");
    let params = json!({"mode": "url", "message": message, "url": url, "elicitationId": elicitation_id});
    params.to_string().into()
}

/// Asks the client to open a URL, and returns whether the person agrees or the login has ended.
async fn ask_client(call: &Call, params: Bytes, mut progress: watch::Receiver<LoginProgress>) -> bool {
    let (request, answer) = ServerRequest::new(ELICIT.to_owned(), Some(params));
    let sink = call.update_sink.as_ref();
    if !sink.is_some_and(|sink| sink.deliver_contained(CallUpdate::Request(request))) {
        return false;
    }
    tokio::select! {
        answer = answer => is_accepted(answer),
        _ = progress.wait_for(LoginProgress::has_ended) => true,
    }
}

fn is_accepted(answer: Result<ResponsePayload, oneshot::error::RecvError>) -> bool {
    let Ok(ResponsePayload::Result(result)) = answer else { return false };
    Object::parse(&result)
        .is_ok_and(|result| result.get_string("action").is_some_and(|action| action == "accept"))
}
