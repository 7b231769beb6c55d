//! A host for MCP servers: one API in front of every server that an agent uses.
//!
//! A caller names a tool. The [`Crib`] finds the server that has it, starts the server if it is not running, sends the
//! call, and returns the answer in the server's own bytes.
//!
//! ```
//! use toolcrib::{Call, Crib, ServerSpec, Toolbox};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let schema = serde_json::json!({"type": "object"});
//! let tools = Toolbox::new().tool("greet", "Greets a person", &schema, |arguments| async move {
//!     Ok(format!("hello, {}", arguments["name"].as_str().unwrap_or("you")))
//! });
//! let crib = Crib::builder()
//!     .server(ServerSpec::in_process("house".parse()?, tools))
//!     // .server(ServerSpec::command("time".parse()?, CommandSpec::new("mcp-server-time")))
//!     .build()?;
//! let outcome = crib.call(Call::tool("greet").arguments(&serde_json::json!({"name": "Ada"}))).await?;
//! assert_eq!(outcome.text(), "hello, Ada");
//! crib.shutdown(std::time::Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Main types
//!
//! | type | meaning |
//! |---|---|
//! | [`ServerSpec`] | How to reach one MCP server and how to run it. |
//! | [`Roster`], [`Settings`] | The servers that apply here and now; everything that a reload replaces. |
//! | [`Crib`] | The host object. It runs calls until it is shut down. |
//! | `Supervisor` | The task that owns one server. |
//! | `Lease` | A claim on a running server, released on drop. |
//! | `Connection` | A live, multiplexed link to one server. |
//! | [`Catalog`] | A snapshot of everything that the servers offer. |
//! | [`Policy`] | Access rules. |
//! | [`UsageLimits`] | Quotas and rates. |
//! | [`Call`] | One request. |
//! | [`Outcome`] | The answer to a call, in the server's own bytes. |
//! | [`ToolExecutor`] | Runs tools by name; a crib is one, and so is its fallback. |
//! | [`Toolbox`] | A server made of the embedder's own tools. |
//! | [`Error`], [`Hint`] | Why a call has no answer, and the next step. |
//! | [`Event`] | A change of a server's state, or the end of a call. |
//!
//! # The path of a call
//!
//! [`Crib::call`] → `pipeline::run` → `CallRouter::find_target` → `CallRouter::authorize` → `Limiter::admit` →
//! `Registry::lease` → `Supervisor` (starts the server) → `Lease::send` → `Connection::call` → `Mux` → the server. To read
//! the code, start with `pipeline.rs`, then `supervisor/actor.rs`.
//!
//! The library prints nothing, installs no logger, handles no signals and has no global state. Several cribs can run in
//! one process.
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `config` | `config`: config files in TOML and JSON. | yes |
//! | `http` | Remote servers, with TLS and proxies. Without it, [`CribBuilder::build`] refuses them. | yes |
//! | `serde` | `Serialize` for [`ServerStatus`] and [`Event`], in the form of the program's JSON; `Serialize` and `Deserialize` for [`ServerSpec`] and its parts. A spec contains the values of variables and headers that are not references. | no |
//!
//! With `default-features = false`, the crate runs child processes and servers in this process, and compiles neither TLS
//! nor TOML.
//!
//! # What is stable
//!
//! The items at the root of the crate and the modules `config` and [`store`] are the API. The other public modules
//! exist for the gateway program, are hidden from this documentation, and may change in any release.

#[doc(hidden)]
pub mod access;
mod cache;
#[doc(hidden)]
pub mod call;
#[doc(hidden)]
pub mod catalog;
#[cfg(feature = "config")]
pub mod config;
#[doc(hidden)]
pub mod crib;
#[cfg_attr(not(feature = "config"), expect(dead_code, reason = "config files use more of it"))]
#[doc(hidden)]
pub mod limits;
#[doc(hidden)]
pub mod model;
mod observer;
mod pipeline;
mod process;
#[doc(hidden)]
pub mod protocol;
mod registry;
mod secrets;
#[cfg(feature = "serde")]
mod serialize;
#[doc(hidden)]
pub mod spec;
pub mod store;
mod supervisor;
mod upstream;
#[doc(hidden)]
pub mod util;

pub use crate::access::approvals::PendingApproval;
pub use crate::access::policy::{
    AllowList, GuardVerdict, InvalidRule, Policy, PolicyLevel, PolicyVerdict, Profile, Rule, Rules,
};
pub use crate::access::visible_catalogs::Exposure;
pub use crate::call::Call;
pub use crate::call::budget::Budget;
pub use crate::call::client_context::ClientContext;
pub use crate::call::client_handlers::{ClientNotification, ClientRequest};
pub use crate::call::executor::{ExecutorFuture, ToolCall, ToolExecutor};
pub use crate::call::updates::{CallUpdate, ServerRequest, UpdateSink};
pub use crate::catalog::schemas::SchemaFormat;
pub use crate::catalog::{Catalog, CatalogItem, Page, Tool};
#[cfg(feature = "config")]
pub use crate::config::Config;
pub use crate::crib::{
    BuildError, Crib, CribBuilder, Discovery, LeaseOptions, ListFreshness, ServerLease, Settings,
};
pub use crate::limits::{LimitKind, LimitOwner, LimitStatus, UsageLimit, UsageLimits};
pub use crate::model::caller::Caller;
pub use crate::model::denial::Denial;
pub use crate::model::error::{Blame, Error, ErrorFacts, ErrorKind, Retry};
pub use crate::model::event::{CacheUse, CallEnd, CallRecord, Decision, Event, ServerNotification};
pub use crate::model::exit_report::{ExitReport, ProcessExit};
pub use crate::model::failure_class::{ClassFacts, Delivery, FailureClass, Treatment};
pub use crate::model::hint::Hint;
pub use crate::model::instance_key::{InstanceKey, Project};
pub use crate::model::log_line::{LogLine, LogSource, StderrLine};
pub use crate::model::outcome::{Outcome, OutcomeError};
pub use crate::model::pin_status::{PinDifference, PinStatus, ToolPinStatus, Unapproved};
pub use crate::model::selector::Selector;
pub use crate::model::status::{InstanceStatus, LastError, ServerState, ServerStatus};
pub use crate::model::target::Target;
pub use crate::observer::Observer;
pub use crate::pipeline::subscription::Subscription;
pub use crate::process::run_shim;
pub use crate::protocol::era::capabilities::{Client, ClientCapabilities, LogLevel};
pub use crate::protocol::json::object::{BadJson, Object};
pub use crate::protocol::jsonrpc::ResponsePayload;
pub use crate::protocol::list_kind::ListKind;
pub use crate::protocol::versions::{Era, Revision, UnknownRevision};
pub use crate::registry::{FailedStart, RosterChanges};
pub use crate::secrets::SecretStore;
pub use crate::spec::secret::{Secret, SecretError};
pub use crate::spec::template::{
    BadReference, BadReferenceKind, TemplatePiece, TemplateText, UnresolvedReference,
};
pub use crate::spec::{
    BackoffSpec, BadName, BreakerSpec, Capacity, CardTool, CommandSpec, EmptyPattern, Endpoint, EraChoice,
    HttpSpec, InProcess, InProcessServer, InvalidCard, KeepAlive, Lifecycle, MemoryLimits, NameClash,
    NamePattern, Origin, Pinning, Restarts, Roster, ServerCard, ServerId, ServerLimits, ServerSpec, Sharing,
    SpecDigest, StartPolicy, ToolsSpec, TransportKind, Trust,
};
pub use crate::upstream::transport::in_process::{ToolContext, ToolOutput, Toolbox};
