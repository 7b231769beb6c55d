//! One place for every MCP server an agent uses.
//!
//! A tool crib is the counter in a workshop where you ask for a tool, get a working one, and hand it back. That is
//! this library: **a caller asks for a tool by name; the crib finds the server that has it, makes sure that server is
//! alive, asks it, and hands the answer back**.
//!
//! ```
//! use toolcrib::{Call, Crib, ServerSpec, Toolbox};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let schema = serde_json::json!({"type": "object"});
//! let tools = Toolbox::new().tool("greet", "Greets somebody", &schema, |arguments| async move {
//!     Ok(format!("hello, {}", arguments["who"].as_str().unwrap_or("you")))
//! });
//! let crib = Crib::builder()
//!     .server(ServerSpec::in_process("house".parse()?, tools))
//!     // .server(ServerSpec::command("time".parse()?, CommandSpec::new("mcp-server-time")))
//!     .build()?;
//! let outcome = crib.call(Call::tool("greet").arguments(&serde_json::json!({"who": "Ada"}))).await?;
//! assert_eq!(outcome.text(), "hello, Ada");
//! crib.shutdown(std::time::Duration::from_secs(1)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Ten nouns
//!
//! | noun | one sentence |
//! |---|---|
//! | [`ServerSpec`] | How to reach one MCP server and how to look after it. |
//! | [`Roster`] | The specs that apply here and now. |
//! | [`Crib`] | What you hold: built from a roster, it answers calls until it is shut down. |
//! | `Supervisor` | The one task that owns one server's life. |
//! | `Lease` | A claim on a living server; dropping it is the release. |
//! | `Connection` | A live, multiplexed wire to one server. |
//! | [`Catalog`] | A frozen picture of everything on offer and whose it is. |
//! | [`Policy`] | Who may use what of it. |
//! | [`Quota`] | How much of it. |
//! | [`Call`] | One request on its way through. |
//! | [`Outcome`] | What came back: the server's own bytes. |
//! | [`Event`] | Something that happened, said once. |
//!
//! # The walk of one call
//!
//! [`Crib::call`] → `bridge::run` → `pipeline::run` → [`Catalog::find`] → [`Policy::judge`] → `Meter::admit` → `Registry::lease` → `Supervisor` (wakes the server) →
//! `Lease::send` → `Connection::call` → [`wire`] → the server, and back. `pipeline.rs` is the page to read first,
//! `supervisor/actor.rs` the second.
//!
//! The library prints nothing, installs no logger, handles no signal and has no global state: many cribs can live in
//! one process.

pub mod approval;
mod bridge;
mod cache;
pub mod call;
pub mod catalog;
pub mod class;
mod clock;
pub mod config;
mod connection;
pub mod crib;
pub mod error;
pub mod event;
pub mod last_words;
pub mod log_line;
pub mod pins;
mod pipeline;
pub mod policy;
mod public;
pub mod quota;
mod record;
mod registry;
pub mod schema;
mod schemas;
mod secret;
pub mod sharing;
pub mod spec;
pub mod spelling;
pub mod status;
mod stock;
pub mod subscription;
mod supervisor;
mod tasks;
pub mod telemetry;
pub mod text;
pub mod told;
mod views;
pub mod wire;

pub use approval::OpenCall;
pub use call::{Call, Caller, Outcome, Wanted};
pub use catalog::{Catalog, Item, Kind, Page, Target, Tool};
pub use class::{FailureClass, Sent};
pub use config::Config;
pub use connection::child::run_shim;
pub use connection::memory::Toolbox;
pub use crib::{Crib, CribBuilder, Discovery, Freshness};
pub use error::{Error, ErrorKind};
pub use event::{Called, Event, News};
pub use last_words::LastWords;
pub use log_line::{LogLine, LogWhat};
pub use pins::{Difference, Mark, Unapproved};
pub use policy::{Policy, Verdict};
pub use quota::{Budget, Quota};
pub use record::Witness;
pub use registry::Changes;
pub use sharing::{Guest, Project, SharingKey};
pub use spec::{
    Capacity, CommandSpec, HttpSpec, InProcess, KeepAlive, Lifecycle, Limits, Pinning, Roster, ServerId,
    ServerSpec, Sharing, Start,
};
pub use status::{ServerStatus, StateName};
pub use subscription::Subscription;
pub use text::{NoSecret, Secret};
pub use told::{Ask, Hear, Told};
pub use wire::dialect::party::Client;
