//! `ClientContext`: facts about a client that outlast a call. They select the instance of a server that a call uses.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::call::Call;
use crate::call::instance_clients::InstanceClients;
use crate::call::updates::{CallUpdate, ServerRequest, UpdateSink};
use crate::model::caller::Caller;
use crate::model::instance_key::InstanceKey;
use crate::model::instance_key::Project;
use crate::protocol::era::capabilities::{ClientCapabilities, LIST_ROOTS};
use crate::protocol::json::object::{Object, parse_array};
use crate::protocol::jsonrpc::ResponsePayload;
use crate::protocol::versions::Era;
use crate::spec::Sharing;
use crate::util::locks::IgnorePoison as _;

/// The time limit for a client's answer to `roots/list`.
const ROOTS_TIMEOUT: Duration = Duration::from_secs(10);

impl Call {
    /// Returns the key of the instance that serves this call, and asks the client for its roots if the project decides. A
    /// client without a known project has its own instance.
    pub(crate) async fn instance_key(&self, sharing: Sharing) -> InstanceKey {
        if let Some(key) = self.try_instance_key(sharing) {
            return key;
        }
        let project = match &self.client_context {
            Some(context) => Box::pin(context.resolve_project(self)).await,
            None => None,
        };
        match project {
            Some(project) => InstanceKey::Project { caller: self.caller.owner(), project },
            None => self.client_instance_key(),
        }
    }

    /// Returns the key of the instance that serves this call, or `None` if the client may have to be asked first.
    pub(crate) fn try_instance_key(&self, sharing: Sharing) -> Option<InstanceKey> {
        match sharing {
            Sharing::Auto | Sharing::Shared | Sharing::One => Some(InstanceKey::Shared),
            Sharing::PerCaller => Some(InstanceKey::Caller(self.caller.owner())),
            Sharing::PerClient => Some(self.client_instance_key()),
            Sharing::PerProject => None,
        }
    }

    /// Returns the capabilities that an instance of this client alone gets to see: the client's, and those of handlers.
    pub(crate) fn announced_capabilities(&self) -> ClientCapabilities {
        let declared = declared_capabilities(self);
        match &self.handlers {
            Some(handlers) => declared.union(handlers.capabilities()),
            None => declared.clone(),
        }
    }

    /// Returns whether the client announces extensions.
    pub(crate) fn has_client_extensions(&self) -> bool {
        declared_capabilities(self).has_extensions()
    }

    /// Returns the key of the instance of the client alone.
    pub(crate) fn client_instance_key(&self) -> InstanceKey {
        let capabilities = self.announced_capabilities().as_json().clone();
        InstanceKey::Client { number: self.client.key, capabilities }
    }
}

/// Returns the capabilities that a client declared for its session, or else with the call.
fn declared_capabilities(call: &Call) -> &ClientCapabilities {
    let of_session = call.client_context.as_ref().and_then(|context| context.capabilities.as_ref());
    of_session.unwrap_or(&call.client.capabilities)
}

/// Facts about a client that outlast a single call.
#[derive(Debug, Default)]
pub struct ClientContext {
    capabilities: Option<ClientCapabilities>,
    update_sink: Option<Arc<dyn UpdateSink>>,
    /// The project that the client was started in.
    project: Option<Project>,
    /// The id of the client's session.
    session_id: OnceLock<Arc<str>>,
    /// The client's answer to `roots/list`, which is requested once.
    roots: Mutex<Arc<OnceCell<Option<Project>>>>,
}

impl ClientContext {
    /// Returns whether this client may see notifications of an instance that are not about one of its calls.
    pub fn can_see_instance(&self, key: &InstanceKey, client: u64, caller: &Caller) -> bool {
        match key.without_era() {
            InstanceKey::Shared => true,
            InstanceKey::Discovery | InstanceKey::Stateless(_) => false,
            InstanceKey::Client { number, .. } => *number == client,
            InstanceKey::Project { caller: owner, project } => {
                *owner == caller.owner() && self.known_project().as_ref() == Some(project)
            }
            InstanceKey::Caller(owner) => *owner == caller.owner(),
        }
    }

    /// Sets the capabilities that the client declared for its session.
    #[must_use]
    pub fn capabilities(mut self, capabilities: ClientCapabilities) -> Self {
        self.capabilities = Some(capabilities);
        self
    }

    /// Sets the sink for requests to the client while none of its calls is running.
    #[must_use]
    pub fn update_sink(mut self, sink: Arc<dyn UpdateSink>) -> Self {
        self.update_sink = Some(sink);
        self
    }

    /// Returns the sink for what belongs to none of the client's calls.
    pub(crate) fn idle_sink(&self) -> Option<&Arc<dyn UpdateSink>> {
        self.update_sink.as_ref()
    }

    /// Sets the project that the client was started in. It takes precedence over the client's roots.
    #[must_use]
    pub fn project(mut self, project: Option<Project>) -> Self {
        self.project = project;
        self
    }

    /// Sets the id of the client's session, for the spans of its calls. The first one is kept.
    pub fn set_session_id(&self, id: &str) {
        self.session_id.get_or_init(|| id.into());
    }

    /// Returns the id of the client's session, if it has one.
    pub(crate) fn session_id(&self) -> Option<Arc<str>> {
        self.session_id.get().cloned()
    }

    /// Discards the client's roots, so that it is asked again when they are needed.
    pub fn forget_roots(&self) {
        *self.lock_roots() = Arc::default();
    }

    fn lock_roots(&self) -> MutexGuard<'_, Arc<OnceCell<Option<Project>>>> {
        self.roots.lock().ignore_poison()
    }

    /// Returns the client's project without asking the client.
    fn known_project(&self) -> Option<Project> {
        self.project.clone().or_else(|| self.lock_roots().get().cloned().flatten())
    }

    /// Returns the client's project. Asks a client in a session for its roots, once, if it supports that.
    async fn resolve_project(&self, call: &Call) -> Option<Project> {
        if self.project.is_some() {
            return self.project.clone();
        }
        let has_roots = declared_capabilities(call).missing_for(LIST_ROOTS, None).is_none();
        if call.client.era != Era::Session || !has_roots {
            return None;
        }
        let roots = self.lock_roots().clone();
        roots.get_or_init(|| self.request_roots(call)).await.clone()
    }

    async fn request_roots(&self, call: &Call) -> Option<Project> {
        for sink in call.update_sink.iter().chain(&self.update_sink) {
            let (request, answer) = ServerRequest::new(LIST_ROOTS.to_owned(), None);
            if !sink.deliver_contained(CallUpdate::Request(request)) {
                continue;
            }
            let answer = timeout(ROOTS_TIMEOUT, answer).await.ok()?.ok()?;
            let project = canonicalize_roots(Project::from_roots(root_uris(&answer)?)?).await;
            // A client that says so may be on another machine, or of another user.
            return Some(project.untrusted());
        }
        None
    }
}

/// Resolves symbolic links in the paths of a project that exist.
async fn canonicalize_roots(project: Project) -> Project {
    let mut roots = Vec::with_capacity(project.roots().len());
    for root in project.roots() {
        let canonical = match root.starts_with('/') {
            true => tokio::fs::canonicalize(root).await.ok(),
            false => None,
        };
        roots.push(canonical.and_then(|path| path.to_str().map(str::to_owned)).unwrap_or(root.clone()));
    }
    Project::from_roots(roots).unwrap_or(project)
}

/// Returns the URIs in an answer to `roots/list`.
fn root_uris(answer: &ResponsePayload) -> Option<Vec<String>> {
    let ResponsePayload::Result(result) = answer else { return None };
    let roots = parse_array(Object::parse(result).ok()?.get("roots")?).ok()?;
    let uri = |root: &Bytes| Some(Object::parse(root).ok()?.get_string("uri")?.into_owned());
    Some(roots.iter().filter_map(uri).collect())
}

/// The owner of an instance, as far as its connection needs to know.
#[derive(Debug, Default)]
pub(crate) struct InstanceOwner {
    pub(crate) key: InstanceKey,
    /// The caller of the call that the instance is started for.
    pub(crate) caller: Option<Caller>,
    /// The capabilities of the only client of the instance.
    pub(crate) capabilities: Option<ClientCapabilities>,
    /// The name and version of the only client, as JSON.
    pub(crate) client_info: Option<Bytes>,
    /// Receives requests to the only client while no call is running.
    pub(crate) update_sink: Option<Arc<dyn UpdateSink>>,
    /// The clients that use the instance.
    pub(crate) clients: InstanceClients,
}

impl InstanceOwner {
    /// Returns the owner of the instance that a call uses.
    pub(crate) fn for_call(key: InstanceKey, call: &Call) -> Self {
        let caller = Some(call.caller.clone());
        match key.without_era() {
            InstanceKey::Client { .. } => Self {
                key,
                caller,
                capabilities: Some(call.announced_capabilities()),
                update_sink: call.client_context.as_ref().and_then(|context| context.update_sink.clone()),
                client_info: call.client.info.clone(),
                clients: InstanceClients::default(),
            },
            _ => Self { key, caller, ..Self::default() },
        }
    }
}

#[cfg(test)]
mod tests;
