//! The MCP server entries in the config files of coding agents: where each agent keeps them, and how to read, add and
//! remove them without changing anything else.
//!
//! | module | contents |
//! |---|---|
//! | [`edit`] | Lossless edits of JSON, TOML and YAML texts, and atomic replacement of files. |
//! | [`agents`] | The table of supported agents. |
//! | [`export`] | Writes servers into an agent's file, and undoes it. |
//! | [`import`] | Reads servers from agents' files into the text of a toolcrib config. |
//!
//! ```
//! use toolcrib_agents::agents::Agent;
//! use toolcrib_agents::export::render::render_entry;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let command = toolcrib::CommandSpec::new("uvx").arg("mcp-server-git");
//! let server = toolcrib::ServerSpec::command("git".parse()?, command);
//! let codex = Agent::find("codex")?;
//! let entry = render_entry(codex, &server, None).members.unwrap_or_default();
//! let text = "# my settings\nmodel = \"o3\"\n";
//! let edited = codex.language.set_entry(text, &codex.entry_path("git"), &entry)?;
//! assert!(edited.starts_with(text) && edited.contains("[mcp_servers.git]"));
//! # Ok(())
//! # }
//! ```
//!
//! Most functions work on text. Files are read and written only by [`edit::file`] and by the undo log of [`export`].

pub mod agents;
pub mod edit;
mod error;
pub mod export;
pub mod import;
mod secret_heuristics;

pub use crate::error::{AgentErrorKind, Error};
