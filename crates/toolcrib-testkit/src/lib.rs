//! A scripted MCP server for tests of programs that embed [`toolcrib`].
//!
//! A [`Script`] says what happens when a tool is called: replies, delays, progress, questions to the client, changes of
//! the tool list, invalid lines, hangs and crashes. A [`ScriptedServer`] has a script for each tool and for any other
//! method, and a [`StartMode`] for each start.
//!
//! ```
//! use serde_json::json;
//! use toolcrib::{Call, Crib, ServerSpec};
//! use toolcrib_testkit::{Script, ScriptedServer, StartMode};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = ScriptedServer::new()
//!     .tool("greet", Script::new().progress(1, 2).text("hello"))
//!     .tool_calls("flaky", [Script::new().tool_error("busy"), Script::new().text("done")])
//!     .tool("crash", Script::new().crash())
//!     .first_starts([StartMode::Exits]);
//! let crib = Crib::builder().server(ServerSpec::in_process("fake".parse()?, server.clone())).build()?;
//!
//! // The first start exits at once; the second one answers.
//! assert_eq!(crib.call(Call::tool("greet")).await?.text(), "hello");
//! assert!(crib.call(Call::tool("flaky")).await?.is_error());
//! assert_eq!(crib.call(Call::tool("flaky")).await?.text(), "done");
//! assert!(crib.call(Call::tool("crash")).await.is_err());
//! assert_eq!(server.starts(), 2);
//! assert_eq!(server.received("tools/call").len(), 4);
//! # crib.shutdown(std::time::Duration::ZERO).await;
//! # Ok(())
//! # }
//! ```
//!
//! # In process
//!
//! A [`ScriptedServer`] is a server in this process. It uses tokio's clock, so that a test with a paused clock waits for
//! no delay. Clones share what was received, and [`ScriptedServer::crash`] and [`ScriptedServer::add_tool`] act on running
//! instances.
//!
//! # As a child process
//!
//! A test of exit statuses, process trees or the shim needs a real process. [`serve_stdio`] is the `main` of one. Make it a
//! binary or an example of your package:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     toolcrib_testkit::serve_stdio()
//! }
//! ```
//!
//! and start it with [`ScriptedServer::command`]:
//!
//! ```
//! use toolcrib_testkit::{Script, ScriptedServer};
//!
//! let server = ScriptedServer::new().tool("crash", Script::new().crash());
//! // In a test: `env!("CARGO_BIN_EXE_scripted")`. After `cargo install toolcrib-testkit`: `toolcrib-testkit`.
//! let command = server.command("toolcrib-testkit");
//! let spec = toolcrib::ServerSpec::command("fake".parse().unwrap(), command);
//! ```
//!
//! The script is the only argument, as JSON, so it can also be written by hand and used from other languages:
//!
//! ```text
//! toolcrib-testkit '{"tools": {"greet": [[{"wait_ms": 100}, {"text": "hello"}]], "crash": [["crash"]]}}'
//! ```

mod child;
mod instance;
mod script;
mod server;
mod shared;

pub use crate::child::serve_stdio;
pub use crate::script::{Script, StartMode};
pub use crate::server::ScriptedServer;
