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
//! | [`Crib`], [`CribBuilder`] | The host object, which runs calls until it is shut down; its settings. |
//! | `Registry`, `Supervisor` | Which servers exist; the task that owns one server. |
//! | `Lease` | A claim on a running server for one call, taken at the server's `LeaseGate` or granted by its supervisor. |
//! | [`ServerLease`] | A claim that the embedder holds. It follows the server to its next process. |
//! | `Connection` | A live, multiplexed link to one server. |
//! | [`Catalog`] | A snapshot of everything that the servers offer. |
//! | [`Policy`], [`Exposure`] | Access rules; which of the callable items are listed. |
//! | [`UsageLimits`], [`Budget`] | Quotas and rates of callers; calls that share one number. |
//! | [`Call`], [`Caller`] | One request; the identity that makes it. |
//! | [`Outcome`] | The answer to a call, in the server's own bytes. |
//! | [`ToolExecutor`] | Runs tools by name; a crib is one, and so is its fallback. |
//! | [`Toolbox`], [`ToolContext`] | A server made of the embedder's own tools; the call that such a tool runs for. |
//! | [`Error`], [`Hint`] | Why a call has no answer, and the next step. |
//! | [`Event`], [`Observer`] | A change of a server's state, or the end of a call; a receiver of the records of calls. |
//! | [`SecretStore`], [`store::Store`] | Where secrets are kept; state that several cribs share. |
//!
//! # The path of a call
//!
//! [`Crib::call`] → `era_bridge::run` → `pipeline::run` → `CallRouter::find_target` → `CallRouter::authorize` →
//! `CallRouter::check_arguments` → `Limiter::admit` → the response cache → `Registry::try_lease` → `Supervisor::try_lease` →
//! `Lease::send` → `Connection::call` → `Mux` → the server. A name that no server offers goes from `find_target` to the
//! fallback. A ready server is leased at its `LeaseGate`, without its task; in every other state the task grants the lease
//! and starts the server. A [`ServerLease`] keeps the server ready in between, and its calls take the same path. To read the
//! code, start with `pipeline.rs`, then `supervisor/actor.rs`.
//!
//! The library prints nothing, installs no logger, handles no signals and has no global state. Several cribs can run in
//! one process.
//!
//! # Runtime
//!
//! The crate needs a tokio runtime with timers and I/O, of either flavor: `#[tokio::main]`, or a runtime built with
//! `enable_all`. The library enables the cargo features of tokio that it uses itself; a program needs `rt` or
//! `rt-multi-thread`, and `macros` for the attribute. [`CribBuilder::build`] returns [`BuildError::NoRuntime`] outside of a
//! runtime, and [`BuildError::NoTimer`] or [`BuildError::NoIo`] in one that lacks a driver. The tasks of a crib run in the
//! runtime that it was built in, so await [`Crib::shutdown`] before that runtime is dropped. The futures of all methods
//! must be polled in a tokio runtime; elsewhere, tokio panics.
//!
//! Blocking code owns a runtime and passes the futures to `block_on`. A multi-threaded runtime also runs the servers while
//! no call blocks:
//!
//! ```
//! use toolcrib::{Call, Crib, ServerSpec, Toolbox};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let schema = serde_json::json!({"type": "object"});
//! # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
//! # let house = ServerSpec::in_process("house".parse()?, tools);
//! let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! let crib = runtime.block_on(async { Crib::builder().server(house).build() })?;
//! assert_eq!(runtime.block_on(crib.call(Call::tool("greet")))?.text(), "hello");
//! runtime.block_on(crib.shutdown(std::time::Duration::from_secs(1)));
//! # Ok(())
//! # }
//! ```
//!
//! `block_on` panics in async code. Blocking code that async code calls belongs on a thread where it may block, and gets the
//! runtime from there:
//!
//! ```
//! use tokio::runtime::Handle;
//! use tokio::task::spawn_blocking;
//! use toolcrib::{Call, Crib, ServerSpec, Toolbox};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let schema = serde_json::json!({"type": "object"});
//! # let tools = Toolbox::new().tool("greet", "", &schema, |_| async { Ok("hello".to_owned()) });
//! # let house = ServerSpec::in_process("house".parse()?, tools);
//! let crib = Crib::builder().server(house).build()?;
//! let blocking = move || Handle::current().block_on(crib.call(Call::tool("greet")));
//! assert_eq!(spawn_blocking(blocking).await??.text(), "hello");
//! # Ok(())
//! # }
//! ```
//!
//! # After `kill -9`
//!
//! If this process is killed with SIGKILL on Linux:
//!
//! | | with [`CribBuilder::shim_self`] or [`CribBuilder::shim`] | without a shim |
//! |---|---|---|
//! | servers | Ended by their shims within about a second. | Killed immediately, by their parent-death signal. |
//! | processes that servers started | Ended with their server, also those in sessions of their own. | Survive. The next crib with the same [`CribBuilder::state_dir`] ends them when it is built; without a state folder they stay. |
//!
//! If the shims are killed at the same moment, servers die with them, and the right column applies to the processes that they
//! started. On other systems there is no shim: servers see the end of their stdin, and neither they nor their
//! processes are ended by the next crib.
//!
//! Calls in flight are lost and may have run. Listings and approved tool definitions in the state folder survive, and so do
//! the signing key of [`CribBuilder::signing_key_file`] and the usage in [`CribBuilder::usage_file`], except that of the last
//! half second. Everything else in memory is lost: cached responses, pending approvals, suspended calls and events. With a
//! [`store::Store`] on another machine or in another process, what it holds survives.
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
#[cfg(feature = "http")]
mod http_client;
#[cfg(all(feature = "config", feature = "http"))]
#[doc(hidden)]
pub mod identity;
#[cfg_attr(not(feature = "config"), expect(dead_code, reason = "config files use more of it"))]
#[doc(hidden)]
pub mod limits;
#[doc(hidden)]
pub mod model;
#[cfg(feature = "http")]
pub mod oauth;
mod observer;
mod pipeline;
mod process;
#[doc(hidden)]
pub mod protocol;
mod registry;
#[doc(hidden)]
pub mod search;
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
pub use crate::access::expose::{ExposeMode, ExposeSettings};
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
    BuildError, Crib, CribBuilder, Discovery, LeaseOptions, ListFreshness, SearchHit, ServerLease, Settings,
};
#[cfg(feature = "http")]
#[doc(hidden)]
pub use crate::http_client::forward::{ForwardClient, ForwardFailure};
#[cfg(feature = "http")]
#[doc(hidden)]
pub use crate::http_client::post::{PostClient, PostFailure};
pub use crate::limits::{LimitKind, LimitOwner, LimitStatus, OnStoreFailure, UsageLimit, UsageLimits};
pub use crate::model::call_id::{CallId, InvalidCallId};
pub use crate::model::caller::Caller;
pub use crate::model::denial::Denial;
pub use crate::model::error::{Blame, Error, ErrorFacts, ErrorKind, Retry};
pub use crate::model::event::{
    CacheUse, CallClient, CallEnd, CallRecord, CallTiming, Decision, Event, ServerNotification,
};
pub use crate::model::exit_report::{ExitReport, ProcessExit};
pub use crate::model::failure_class::{ClassFacts, Delivery, FailureClass, Treatment};
pub use crate::model::hint::Hint;
pub use crate::model::instance_key::{InstanceKey, Project};
pub use crate::model::log_line::{LogLine, LogSource, StderrLine};
pub use crate::model::outcome::{Outcome, OutcomeError};
pub use crate::model::pin_status::{PinDifference, PinStatus, PinnedKind, ToolPinStatus, Unapproved};
pub use crate::model::selector::Selector;
pub use crate::model::status::{InstanceStatus, LastError, ListingError, ServerState, ServerStatus};
pub use crate::model::target::Target;
pub use crate::model::trace_context::{CallSpans, NetworkTransport, TraceContext};
pub use crate::observer::Observer;
pub use crate::pipeline::subscription::Subscription;
pub use crate::process::run_shim;
#[cfg(unix)]
#[doc(hidden)]
pub use crate::process::{return_free_memory, take_variable, use_two_arenas};
pub use crate::protocol::era::capabilities::{Client, ClientCapabilities, LogLevel};
pub use crate::protocol::json::object::{BadJson, Object};
pub use crate::protocol::jsonrpc::ResponsePayload;
pub use crate::protocol::list_kind::ListKind;
pub use crate::protocol::versions::{Era, Revision, UnknownRevision};
pub use crate::registry::{FailedStart, RosterChanges};
pub use crate::search::{Embedder, SearchField};
#[doc(hidden)]
pub use crate::secrets::KnownCallers;
pub use crate::secrets::SecretStore;
pub use crate::spec::secret::{Secret, SecretError};
pub use crate::spec::template::{
    BadReference, BadReferenceKind, TemplatePiece, TemplateText, UnresolvedReference,
};
pub use crate::spec::{
    BackoffSpec, BadName, BreakerSpec, Capacity, CardTool, CommandSpec, EmptyPattern, Endpoint, EraChoice,
    FirstListingSettings, FirstListingWait, HttpSpec, InProcess, InProcessServer, InvalidCard, KeepAlive,
    Lifecycle, MemoryLimits, NameClash, NamePattern, Origin, Pinning, Restarts, Roster, ServerCard, ServerId,
    ServerLimits, ServerSpec, Sharing, SpecDigest, StartPolicy, ToolsSpec, TransportKind, Trust,
};
#[cfg(feature = "http")]
#[doc(hidden)]
pub use crate::upstream::transport::http::fetch::fetch_json;
pub use crate::upstream::transport::in_process::{ToolContext, ToolOutput, Toolbox};

/// The examples of the README, compiled and run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
