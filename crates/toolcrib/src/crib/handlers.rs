//! The embedder as the client of its servers: handlers of their requests and notifications, roots, name and capabilities.

use std::future::Future;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Crib, CribBuilder, CribInner};
use crate::call::client_declaration::ClientDeclaration;
use crate::call::client_handlers::{
    ClientHandlers, ClientNotification, ClientRequest, HandlerFuture, HandlerSet, RequestHandler,
};
use crate::protocol::era::capabilities::ClientCapabilities;
use crate::protocol::era::client::ROOTS_CHANGED;
use crate::util::tasks::SpawnBoxed as _;

/// The builder's settings about the client that servers see.
#[derive(Default)]
pub(super) struct ClientOptions {
    handlers: HandlerSet,
    /// The name and version, as JSON.
    info: Option<Bytes>,
    capabilities: ClientCapabilities,
}

impl ClientOptions {
    /// Creates the declaration; `tasks` owns the tasks of handlers until `stop` is cancelled.
    pub(super) fn into_declaration(self, tasks: &TaskTracker, stop: &CancellationToken) -> ClientDeclaration {
        let handlers = (!self.handlers.is_empty())
            .then(|| Arc::new(ClientHandlers::new(self.handlers, tasks.clone(), stop.clone())));
        let declaration = ClientDeclaration::new(self.info, handlers);
        declaration.add_client(&self.capabilities);
        declaration
    }
}

fn boxed<F, A>(handler: F) -> RequestHandler
where
    F: Fn(ClientRequest) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Value, String>> + Send + 'static,
{
    Arc::new(move |request| -> HandlerFuture { Box::pin(handler(request)) })
}

/// Handlers answer what the client of a call cannot answer itself, also for requests that belong to no call. Servers are
/// told only about requests that a handler or a client can answer.
impl CribBuilder {
    /// Sets the function that answers `sampling/createMessage` with a result or the message of an error. It runs in its
    /// own task.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use serde_json::json;
    /// use toolcrib::Crib;
    ///
    /// let crib = Crib::builder()
    ///     .client_info("my-agent", "1.2.0")
    ///     .roots(["file:///home/ada/project"])
    ///     .on_sampling(|request| async move {
    ///         let prompt = request.params["messages"][0]["content"]["text"].to_string();
    ///         let text = format!("a model would answer {prompt}");
    ///         Ok(json!({"role": "assistant", "model": "m", "content": {"type": "text", "text": text}}))
    ///     })
    ///     .on_elicitation(|_| async { Ok(json!({"action": "decline"})) })
    ///     .on_notification(|notification| println!("{notification:?}"))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_sampling<F, A>(mut self, handler: F) -> Self
    where
        F: Fn(ClientRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Value, String>> + Send + 'static,
    {
        self.client.handlers.sampling = Some(boxed(handler));
        self
    }

    /// Sets the function that answers `elicitation/create` for forms, such as `{"action": "accept", "content": {…}}` or
    /// `{"action": "decline"}`. It is also asked about calls that an access rule lets a person approve. It runs in its own
    /// task.
    ///
    /// ```
    /// use toolcrib::{Call, Crib, Policy, Rules, ServerSpec, Toolbox};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let schema = serde_json::json!({"type": "object"});
    /// # let tools = Toolbox::new().tool("delete", "", &schema, |_| async { Ok("gone".to_owned()) });
    /// let rules = Rules::default().asking(["files.delete".parse()?]);
    /// let crib = Crib::builder()
    ///     .server(ServerSpec::in_process("files".parse()?, tools))
    ///     .policy(Policy::for_everyone(rules))
    ///     .on_elicitation(|request| async move {
    ///         // A program shows this to its user.
    ///         assert!(request.params["message"].as_str().is_some_and(|message| message.contains("delete")));
    ///         Ok(serde_json::json!({"action": "accept", "content": {}}))
    ///     })
    ///     .build()?;
    /// assert_eq!(crib.call(Call::tool("delete")).await?.text(), "gone");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_elicitation<F, A>(mut self, handler: F) -> Self
    where
        F: Fn(ClientRequest) -> A + Send + Sync + 'static,
        A: Future<Output = Result<Value, String>> + Send + 'static,
    {
        self.client.handlers.elicitation = Some(boxed(handler));
        self
    }

    /// Sets the URIs that answer `roots/list`; [`Crib::set_roots`] replaces them.
    #[must_use]
    pub fn roots<I: IntoIterator<Item: Into<String>>>(mut self, uris: I) -> Self {
        self.client.handlers.roots = Some(uris.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the function that receives the progress and log messages of calls without a channel of their own, the
    /// notifications of [`Crib::notifications`], and changes of the catalog. It must not block.
    #[must_use]
    pub fn on_notification<F>(mut self, handler: F) -> Self
    where
        F: Fn(ClientNotification) + Send + Sync + 'static,
    {
        self.client.handlers.notification = Some(Arc::new(handler));
        self
    }

    /// Sets the name and version that servers see as those of their client. The default is toolcrib's own.
    #[must_use]
    pub fn client_info(mut self, name: &str, version: &str) -> Self {
        self.client.info = Some(json!({"name": name, "version": version}).to_string().into());
        self
    }

    /// Sets the capabilities that clients of this crib may have. They are announced to servers that all clients share,
    /// together with those of the handlers and of clients that have made a call. Set it if clients come later than
    /// servers start.
    #[must_use]
    pub fn client_capabilities(mut self, capabilities: ClientCapabilities) -> Self {
        self.client.capabilities = capabilities;
        self
    }
}

impl Crib {
    /// Replaces the roots of [`CribBuilder::roots`] and notifies running servers. Without roots at build time, servers do
    /// not ask for them.
    pub fn set_roots<I: IntoIterator<Item: Into<String>>>(&self, uris: I) {
        let uris: Vec<String> = uris.into_iter().map(Into::into).collect();
        let is_announced = self.handlers().is_some_and(|handlers| handlers.set_roots(&uris));
        if is_announced {
            for supervisor in self.router().registry.supervisors() {
                supervisor.notify(ROOTS_CHANGED);
            }
        }
    }

    /// Adds to the capabilities of [`CribBuilder::client_capabilities`]. Servers that all clients share learn them at their
    /// next start.
    pub fn add_client_capabilities(&self, capabilities: &ClientCapabilities) {
        self.router().services.declaration.add_client(capabilities);
    }

    fn handlers(&self) -> Option<&Arc<ClientHandlers>> {
        self.router().services.declaration.handlers.as_ref()
    }
}

/// Spawns the task that passes server notifications and changes of the catalog to the handler, if there is one.
pub(super) fn spawn_notification_handler(inner: &CribInner) {
    let services = &inner.router.services;
    let Some(handlers) =
        services.declaration.handlers.clone().filter(|handlers| handlers.wants_notifications())
    else {
        return;
    };
    let mut notifications = services.notifications.subscribe();
    let mut catalog = inner.router.catalog.clone();
    let stop = inner.stop_tasks.clone();
    services.tasks.spawn_boxed(async move {
        loop {
            tokio::select! {
                received = notifications.recv() => match received {
                    Ok(notification) => handlers.notify(ClientNotification::Server(notification)),
                    // The oldest notifications are lost if the handler is too slow.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                },
                changed = catalog.changed() => match changed {
                    Ok(()) => handlers.notify(ClientNotification::CatalogChanged),
                    Err(_) => return,
                },
                () = stop.cancelled() => return,
            }
        }
    });
}
