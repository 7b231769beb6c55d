//! `Call`: one request from a caller, with its target, timeout, client and updates.

pub mod budget;
pub mod client_context;
pub(crate) mod client_declaration;
pub mod client_handlers;
pub mod executor;
pub(crate) mod instance_clients;
mod requests;
pub(crate) mod trace;
pub mod trace_meta;
pub mod updates;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::call::budget::Budget;
use crate::call::client_context::ClientContext;
use crate::call::client_handlers::ClientHandlers;
use crate::call::trace::CallTrace;
use crate::call::updates::{CallUpdate, UpdateSink};
use crate::model::caller::Caller;
use crate::model::error::{Error, ErrorKind};
use crate::model::selector::Selector;
use crate::model::trace_context::NetworkTransport;
use crate::protocol::era::capabilities::Client;
use crate::protocol::era::{extensions, meta};
use crate::protocol::json::object::{self, Object};
use crate::spec::ServerId;

/// One request with its caller, target, timeout and update sink. Dropping the future that runs it cancels the call,
/// also at the server.
///
/// ```
/// use std::time::Duration;
/// use serde_json::json;
/// use toolcrib::{Call, Caller, Crib, Delivery, ErrorKind, ServerSpec, Toolbox};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let hang = |_| std::future::pending();
/// let tools = Toolbox::new().tool("hang", "Never ends", &json!({"type": "object"}), hang);
/// let crib = Crib::builder().server(ServerSpec::in_process("house".parse()?, tools)).build()?;
/// let call = Call::tool_on("house".parse()?, "hang")
///     .arguments(&json!({"reason": "example"}))
///     .caller(Caller::new("ada"))
///     .id("toolu_1")
///     .timeout(Duration::from_millis(50));
/// let error = crib.call(call).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::TimedOut);
/// assert_eq!(error.delivery(), Delivery::MaybeSent, "the tool may have run");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Call {
    /// The caller.
    pub(crate) caller: Caller,
    /// The item that the call is addressed to.
    pub(crate) selector: Selector,
    /// The method of the request.
    pub(crate) method: Cow<'static, str>,
    /// The parameters as the caller wrote them; the public name in them is replaced before they are sent.
    pub(crate) params: Object,
    /// The time limit of the whole call, including the start of the server. The server's own limits apply as well.
    pub(crate) timeout: Option<Duration>,
    /// The time at which the whole call times out. `timeout` sets it when the call starts.
    pub(crate) deadline: Option<Instant>,
    /// The id that the embedder gave the call.
    pub(crate) id: Option<Arc<str>>,
    /// The client that made the request.
    pub(crate) client: Client,
    /// The name of the client program, if it is known.
    pub(crate) client_name: Option<Arc<str>>,
    /// How the client is connected, if it is known.
    pub(crate) client_transport: Option<NetworkTransport>,
    /// Receives everything that arrives before the outcome.
    pub(crate) update_sink: Option<Arc<dyn UpdateSink>>,
    /// Whether it is a notification, which has no response.
    pub(crate) is_notification: bool,
    /// Whether the request was sent to a server at least once.
    pub(crate) dispatched: bool,
    /// Whether the call waited for a turn or for a restart, so that the server had less than the whole time limit.
    pub(crate) sent_late: bool,
    /// State of the client that outlives this call.
    pub(crate) client_context: Option<Arc<ClientContext>>,
    /// The embedder's handlers, if they answer what the client cannot.
    pub(crate) handlers: Option<Arc<ClientHandlers>>,
    /// The budget that this call shares with others.
    pub(crate) budget: Option<Budget>,
    /// Facts about the call for its [`CallRecord`](crate::CallRecord).
    pub(crate) trace: CallTrace,
    /// The reason why the call cannot be made, if the embedder set something invalid.
    pub(crate) invalid: Option<Error>,
    /// Whether a server answers calls of names that it does not list.
    pub(crate) forwards_unknown: bool,
}

impl Call {
    /// Creates a call of a tool by its public name, or by its bare name if only one server has it.
    pub fn tool(name: impl Into<String>) -> Self {
        Self::call_tool(Selector::Tool(name.into()))
    }

    /// Creates a call of one server's tool, by the server's own name for it.
    pub fn tool_on(server: ServerId, tool: impl Into<String>) -> Self {
        Self::call_tool(Selector::OnServer(server, tool.into()))
    }

    fn call_tool(selector: Selector) -> Self {
        let mut params = Object::default();
        let name = match &selector {
            Selector::OnServer(_, tool) => object::to_json_string(tool),
            _ => Bytes::from_static(b"\"\""),
        };
        params.set_unchecked("name", name);
        Self::request("tools/call", selector, params)
    }

    /// Creates any request, with the client's own parameters. The member that names the item is set to the name in
    /// `selector` unless it has that value already.
    pub fn request(method: impl Into<Cow<'static, str>>, selector: Selector, params: Object) -> Self {
        Self::from_client(Caller::local(), Client::without_capabilities(), method.into(), selector, params)
    }

    /// Creates a request of a client. The setters would replace the caller, which is an allocation, and move the call.
    #[doc(hidden)]
    pub fn from_client(
        caller: Caller,
        client: Client,
        method: Cow<'static, str>,
        selector: Selector,
        params: Object,
    ) -> Self {
        Self {
            caller,
            selector,
            method,
            params,
            timeout: None,
            deadline: None,
            id: None,
            client,
            client_name: None,
            client_transport: None,
            update_sink: None,
            is_notification: false,
            dispatched: false,
            sent_late: false,
            client_context: None,
            handlers: None,
            budget: None,
            trace: CallTrace::default(),
            invalid: None,
            forwards_unknown: false,
        }
    }

    /// Creates a notification. It is authorized, counted and recorded like a request, and its outcome is an empty result
    /// as soon as it is sent.
    pub fn notification(method: impl Into<Cow<'static, str>>, selector: Selector, params: Object) -> Self {
        Self { is_notification: true, ..Self::request(method, selector, params) }
    }

    /// Sets the arguments.
    #[must_use]
    pub fn arguments(mut self, arguments: &Value) -> Self {
        self.params.set_unchecked("arguments", arguments.to_string());
        self.invalid = None;
        self
    }

    /// Sets arguments that are already JSON; they reach the server byte for byte. If the text is not exactly one JSON
    /// value, [`Crib::call`](crate::Crib::call) sends nothing and fails with [`ErrorKind::Malformed`].
    #[must_use]
    pub fn raw_arguments(mut self, arguments: impl Into<Bytes>) -> Self {
        self.invalid = self.params.set("arguments", arguments).err().map(|error| {
            let message = format!("the arguments of `{}` are not valid JSON: {error}", self.selector.name());
            Error::new(ErrorKind::Malformed, message).mark_not_sent()
        });
        self
    }

    /// Sets the client's own parameters; every member except the name reaches the server unchanged.
    #[must_use]
    pub fn params(mut self, params: Object) -> Self {
        self.params = params;
        self
    }

    /// Sets the caller.
    #[must_use]
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = caller;
        self
    }

    /// Sets the time limit of the whole call.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets the time at which the whole call times out. With a [`Call::timeout`] as well, the earlier one applies.
    #[must_use]
    pub fn deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets an id of the call, which a fallback and in-process tools get.
    #[must_use]
    pub fn id(mut self, id: impl Into<Arc<str>>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Sets the client that the server sees.
    #[must_use]
    pub fn client(mut self, client: Client) -> Self {
        self.client = client;
        self
    }

    /// Sets the state of the client that outlives this call. Together with the client's number and the caller it selects
    /// the instance of the server.
    #[must_use]
    pub fn client_context(mut self, context: Arc<ClientContext>) -> Self {
        self.client_context = Some(context);
        self
    }

    /// Charges the call to a budget that several calls share.
    #[must_use]
    pub fn budget(mut self, budget: &Budget) -> Self {
        self.budget = Some(budget.clone());
        self
    }

    /// Sends everything that arrives before the outcome to `sender`, in order, and requests progress. Updates are
    /// dropped while the channel is full.
    #[must_use]
    pub fn updates(mut self, sender: mpsc::Sender<CallUpdate>) -> Self {
        self.request_progress();
        self.update_sink(Arc::new(sender))
    }

    /// Requests progress, unless the parameters do.
    pub(crate) fn request_progress(&mut self) {
        let mut meta = self.params.get("_meta").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        if meta.get(meta::PROGRESS_TOKEN).is_none() {
            meta.set_unchecked(meta::PROGRESS_TOKEN, Bytes::from_static(b"0"));
            self.params.set_unchecked("_meta", meta.to_bytes());
        }
    }

    /// Like [`Call::updates`] with any sink; progress is only sent if the parameters request it.
    #[must_use]
    pub fn update_sink(mut self, sink: Arc<dyn UpdateSink>) -> Self {
        self.update_sink = Some(sink);
        self
    }

    /// Sets what is known about the client besides the call, and where its updates go.
    #[doc(hidden)]
    pub fn set_client_context(
        &mut self,
        client_context: Option<Arc<ClientContext>>,
        update_sink: Option<Arc<dyn UpdateSink>>,
    ) {
        self.client_context = client_context;
        self.update_sink = update_sink;
    }

    /// Sets the name of the client program, for records of the call.
    pub fn set_client_name(&mut self, name: Option<Arc<str>>) {
        self.client_name = name;
    }

    /// Sets how the client is connected, for the spans of the call.
    pub fn set_client_transport(&mut self, transport: Option<NetworkTransport>) {
        self.client_transport = transport;
    }

    /// Sends a call of an unknown name to the server that the name refers to, so that the client gets the server's own
    /// error: the server in the prefix of a public name, or the only server for the URI of a resource.
    #[must_use]
    pub fn forward_unknown_names(mut self) -> Self {
        self.forwards_unknown = true;
        self
    }

    /// Returns the requested name.
    pub fn name(&self) -> &str {
        self.selector.name()
    }

    /// Returns the caller that made the call.
    pub fn get_caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns what the call is addressed to.
    pub fn get_selector(&self) -> &Selector {
        &self.selector
    }

    /// Returns the client that made the call.
    pub fn get_client(&self) -> &Client {
        &self.client
    }

    /// Returns the arguments as JSON, if there are any.
    pub fn get_arguments(&self) -> Option<&Bytes> {
        self.params.get("arguments")
    }

    /// Returns the parameters of the request.
    pub fn get_params(&self) -> &Object {
        &self.params
    }

    /// Returns the time limit of the whole call, if it has one of its own.
    pub fn get_timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns the time at which the whole call times out, if one is set. While the call runs, it is the effective one.
    pub fn get_deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns the id that the embedder gave the call.
    pub fn get_id(&self) -> Option<&str> {
        self.id.as_deref()
    }

    /// Returns the method of the request.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// Sets the name in the parameters to the server's own name, so that the name that was authorized is the one that is
    /// sent.
    pub(crate) fn set_own_name(&mut self, own_name: &str) {
        let member = match &*self.method {
            "tools/call" | "prompts/get" => "name",
            "resources/read" | "resources/subscribe" | "resources/unsubscribe" => "uri",
            "tasks/get" | "tasks/update" | "tasks/result" | "tasks/cancel" => "taskId",
            "completion/complete" => return self.set_reference(own_name),
            // Methods of extensions that are routed by a URI.
            _ if matches!(self.selector, Selector::Resource(_)) => "uri",
            extensions::GET_SKILL | extensions::READ_DIRECTORY => "uri",
            // Other methods have no name that rules apply to.
            _ => return,
        };
        self.params.set_string(member, own_name);
    }

    /// Sets the name of the prompt, or the URI of the resource, that a completion refers to.
    fn set_reference(&mut self, own_name: &str) {
        let mut reference =
            self.params.get("ref").and_then(|raw| Object::parse(raw).ok()).unwrap_or_default();
        let is_prompt = match reference.get_string("type").as_deref() {
            Some(kind) => kind == "ref/prompt",
            None => matches!(self.selector, Selector::Prompt(_)),
        };
        let member = if is_prompt { "name" } else { "uri" };
        if reference.get_string(member).as_deref() != Some(own_name) {
            reference.set_string(member, own_name);
            self.params.set_unchecked("ref", reference.to_bytes());
        }
    }
}
