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
//! # Rendering an entry and adding it to a file's text
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
//! # Importing from a text
//!
//! ```
//! use std::path::Path;
//! use toolcrib_agents::agents::Agent;
//! use toolcrib_agents::import::{SecretExtraction, import_text};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let text = "model = \"o3\"\n[mcp_servers.git]\ncommand = \"uvx\"\nargs = [\"mcp-server-git\"]\n";
//! let codex = Agent::find("codex")?;
//! let imported = import_text(text, Path::new("config.toml"), Some(codex), "", SecretExtraction::Keep)?;
//! assert_eq!(imported.config_text, "[servers.git]\ncommand = \"uvx\"\nargs = [\"mcp-server-git\"]\n");
//! # Ok(())
//! # }
//! ```
//!
//! # Lossless edits
//!
//! ```
//! use serde_json::json;
//! use toolcrib_agents::edit::entry::FileLanguage;
//! use toolcrib_agents::edit::jsonc::JsonDialect;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let language = FileLanguage::Json(JsonDialect::Relaxed);
//! let text = "{\n  // my servers\n  \"mcpServers\": {}\n}\n";
//! let entry = vec![("command".to_owned(), json!("uvx"))];
//! let added = language.set_entry(text, &["mcpServers", "git"], &entry)?;
//! assert!(added.contains("// my servers") && added.contains("\"git\""));
//! assert_eq!(language.remove_entry(&added, &["mcpServers", "git"])?, text);
//! # Ok(())
//! # }
//! ```
//!
//! # Files
//!
//! Rendering, [`import::import_text`] and the edits of [`edit::entry`] work on text. [`edit::file`], [`export::plan`],
//! [`export::undo`] and [`import::import`] read the agents' files, and only [`edit::file`] and the undo log of [`export`]
//! write any.

pub mod agents;
pub mod edit;
mod error;
pub mod export;
pub mod import;
mod secret_heuristics;

pub use crate::error::{AgentErrorKind, Error};
