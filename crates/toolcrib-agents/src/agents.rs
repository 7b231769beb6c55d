//! The table of supported agents: where each one keeps its MCP servers and in which format. Only checks which
//! files exist; does not read or write them.

mod defaults;
mod editors;
mod paths;
pub(crate) mod schemas;
mod terminal;

use std::path::PathBuf;

use toolcrib::util::format::closest_match;

use crate::edit::entry::FileLanguage;
use crate::error::{AgentErrorKind, Error};

use self::schemas::EntrySchema;
pub use paths::AgentPaths;

/// Returns every supported agent.
pub fn all() -> impl Iterator<Item = &'static Agent> {
    terminal::AGENTS.iter().chain(editors::AGENTS)
}

/// Other names of agents, and the names in the table.
const ALIASES: [(&str, &str); 13] = [
    ("amp-code", "amp"),
    ("claude-code", "claude"),
    ("claude_desktop", "claude-desktop"),
    ("code", "vscode"),
    ("codex-cli", "codex"),
    ("copilot-cli", "copilot"),
    ("gemini-cli", "gemini"),
    ("github-copilot", "copilot"),
    ("lmstudio", "lm-studio"),
    ("qwen-code", "qwen"),
    ("roo-code", "roo"),
    ("visual-studio-code", "vscode"),
    ("vs-code", "vscode"),
];

/// One supported agent.
///
/// Paths start with `~` (home), `XDG` (config directory), `APP` (config directory of desktop programs) or `$VARIABLE`;
/// all others are relative to the project root.
#[derive(Debug)]
pub struct Agent {
    /// Name on the command line.
    pub id: &'static str,
    /// Name in messages.
    pub name: &'static str,
    /// Path that exists if the agent is installed.
    pub(crate) install_marker: &'static str,
    /// Candidates for the user-wide config file: the first whose variable is set, else the first that exists, else the
    /// first.
    pub(crate) user_files: &'static [&'static str],
    /// Candidates for the config file of a project.
    pub(crate) project_files: &'static [&'static str],
    /// Further files and directories the agent reads. They are imported from, never written.
    pub(crate) extra_import_paths: &'static [&'static str],
    /// Language of these files.
    pub language: FileLanguage,
    /// Keys that lead to the servers in a file.
    pub(crate) servers_path: &'static [&'static str],
    /// Arrangement of the servers below those keys.
    pub(crate) layout: ServersLayout,
    /// True if one invalid entry makes the agent reject the whole file.
    pub(crate) rejects_file_on_bad_entry: bool,
    pub(crate) entry_format: EntryFormat,
    /// Keys and values that are valid in an entry.
    pub(crate) schema: EntrySchema,
    /// Step the user takes for a change of the user-wide file to apply.
    pub(crate) user_next_step: &'static str,
    /// The same for a project file. Trusting a dir is always left to the agent's own dialog.
    pub(crate) project_next_step: &'static str,
    /// True if the agent may be started from a desktop, where `PATH` is not that of a shell.
    pub(crate) starts_from_desktop: bool,
    /// Support for `toolcrib run`.
    pub session_support: SessionSupport,
}

/// Arrangement of servers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServersLayout {
    /// An object keyed by server name.
    ByName,
    /// A list, in a file that only toolcrib writes.
    OwnListFile,
}

/// Keys and values that an agent uses in a server entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EntryFormat {
    /// The `type` of a stdio server.
    pub(crate) stdio_type: Option<&'static str>,
    pub(crate) command_key: &'static str,
    /// True if the command key holds program and arguments as one list.
    pub(crate) command_is_argv: bool,
    pub(crate) env_key: &'static str,
    /// Key of the list of variables that are passed through unchanged.
    pub(crate) passthrough_key: Option<&'static str>,
    pub(crate) cwd_key: Option<&'static str>,
    /// Format of HTTP servers, if the agent supports them.
    pub(crate) remote: Option<RemoteFormat>,
    pub(crate) disable_key: Option<DisableKey>,
    pub(crate) timeout_key: Option<TimeoutKey>,
    pub(crate) allow_key: Option<AllowKey>,
    pub(crate) deny_key: Option<&'static str>,
    pub(crate) variable_syntax: VariableSyntax,
    /// True if variables are also expanded in commands, arguments and URLs.
    pub(crate) expands_in_commands: bool,
    pub(crate) inherited_environment: InheritedEnvironment,
    /// Members that every entry has. The value `$name` stands for the server's name.
    pub(crate) fixed_members: &'static [(&'static str, &'static str)],
}

/// Keys and values that an agent uses for an HTTP server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteFormat {
    /// The `type` of Streamable HTTP.
    pub(crate) http_type: Option<&'static str>,
    pub(crate) url_key: &'static str,
    /// Key of the headers. A dot separates nested keys.
    pub(crate) headers_key: Option<&'static str>,
    pub(crate) sse: SseSupport,
    pub(crate) env_headers: Option<EnvHeaderKeys>,
}

/// Keys of headers whose values come from environment variables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EnvHeaderKeys {
    /// Key that names the variable with the bearer token.
    pub(crate) bearer_token: &'static str,
    /// Key of an object from header names to variable names.
    pub(crate) headers: &'static str,
}

/// Support for the deprecated HTTP+SSE transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SseSupport {
    /// Declared by a value of `type`.
    Type {
        value: &'static str,
        url_key: &'static str,
    },
    /// Detected by the agent itself.
    AutoDetected,
    Unsupported,
}

/// Key that disables an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DisableKey {
    pub(crate) key: &'static str,
    /// Value of the key for an enabled server.
    pub(crate) enabled_value: bool,
    /// True if the key is also written for enabled servers.
    pub(crate) always_written: bool,
}

/// Key of the call timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TimeoutKey {
    pub(crate) key: &'static str,
    pub(crate) unit: TimeUnit,
}

/// Key of the list of allowed tools.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AllowKey {
    pub(crate) key: &'static str,
    /// True if `["*"]` must be written to allow all tools.
    pub(crate) needs_wildcard: bool,
}

/// Unit of a timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeUnit {
    Milliseconds,
    Seconds,
}

/// Syntax of references to environment variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VariableSyntax {
    /// References are not supported.
    None,
    /// `${X}` and `${X:-default}`; with `bare` also `$X`.
    Shell { bare: bool },
    /// `${X}` without a default.
    Braces,
    /// `$X`.
    Dollar,
    /// `${env:X}`; with `defaults` also `${X:-default}`, with `files` also `${file:PATH}`.
    Env { defaults: bool, files: bool },
    /// `{env:X}` and `{file:PATH}`.
    Opencode,
    /// `${{ secrets.X }}`.
    Secrets,
    /// `${X}`, only in headers and only for variables that are passed through.
    HeadersOnly,
}

/// Part of an agent's own environment that its servers inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InheritedEnvironment {
    All,
    /// Only variables that the entry lists.
    Listed,
    /// All variables except those whose names look like secrets.
    Filtered,
}

/// Way to start an agent with servers for one session, without changing its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionSupport {
    /// Not supported.
    None,
    /// A flag takes the entries as JSON, inside an object with `wrapper_key` if there is one.
    Flag {
        /// Name of the executable.
        program: &'static str,
        /// The flag.
        flag: &'static str,
        /// Key of the entries.
        wrapper_key: Option<&'static str>,
    },
    /// One `-c KEY=VALUE` argument per value.
    Overrides {
        /// Name of the executable.
        program: &'static str,
    },
    /// A variable holds the config as JSON.
    Variable {
        /// Name of the executable.
        program: &'static str,
        /// Name of the variable.
        variable: &'static str,
    },
    /// A variable sets the home directory. A generated home links to the user's files, except for the config file.
    HomeDir {
        /// Name of the executable.
        program: &'static str,
        /// Name of the variable.
        variable: &'static str,
    },
    /// A flag of its subcommands takes a command line.
    Extension {
        /// Name of the executable.
        program: &'static str,
        /// The flag.
        flag: &'static str,
        /// Subcommand that is used if the user gives none.
        default_subcommand: &'static str,
    },
}

impl SessionSupport {
    /// Returns the agent's executable name.
    pub fn program(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Flag { program, .. }
            | Self::Overrides { program }
            | Self::Variable { program, .. }
            | Self::HomeDir { program, .. }
            | Self::Extension { program, .. } => Some(program),
        }
    }
}

/// Scope of an agent's config file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AgentFileScope {
    /// The user-wide file.
    User,
    /// The file of the project that contains the current directory.
    Project,
}

impl Agent {
    /// Finds an agent by its name on the command line, or by another name that people use for it.
    ///
    /// # Errors
    ///
    /// Fails if there is no such agent. The hint names a similar one.
    pub fn find(id: &str) -> Result<&'static Self, Error> {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == id);
        let known = alias.map_or(id, |(_, known)| known);
        all().find(|agent| agent.id == known).ok_or_else(|| {
            let ids = || all().map(|agent| agent.id);
            let hint = match closest_match(id, ids()) {
                Some(closest) => format!("did you mean `{closest}`?"),
                None => format!("use one of {}", ids().collect::<Vec<_>>().join(", ")),
            };
            Error::new(AgentErrorKind::InvalidRequest, format!("unknown agent `{id}`")).with_hint(hint)
        })
    }

    /// Returns the file that is written for a scope, even if it does not exist yet.
    pub fn config_file(&self, scope: AgentFileScope, paths: &AgentPaths) -> Option<PathBuf> {
        let candidates = match scope {
            AgentFileScope::User => self.user_files,
            AgentFileScope::Project => self.project_files,
        };
        let from_variable =
            candidates.iter().filter(|path| path.starts_with('$')).find_map(|path| paths.resolve(path));
        let fixed_paths =
            || candidates.iter().filter(|path| !path.starts_with('$')).filter_map(|path| paths.resolve(path));
        from_variable.or_else(|| fixed_paths().find(|path| path.exists())).or_else(|| fixed_paths().next())
    }

    /// Returns the name that the agent gives itself in `initialize`, if it is known.
    pub fn client_name(&self) -> Option<&'static str> {
        (self.id == "claude").then_some("claude-code")
    }

    /// Returns the keys that lead to one server's entry.
    pub fn entry_path<'a>(&self, server: &'a str) -> Vec<&'a str> {
        self.servers_path.iter().copied().chain([server]).collect()
    }

    /// Returns whether the agent seems to be installed or, for the project scope, used in this project.
    pub fn is_detected(&self, scope: AgentFileScope, paths: &AgentPaths) -> bool {
        match scope {
            AgentFileScope::User => {
                let installed = paths.resolve(self.install_marker).is_some_and(|marker| marker.exists());
                installed || self.config_file(scope, paths).is_some_and(|file| file.exists())
            }
            AgentFileScope::Project => self.config_file(scope, paths).is_some_and(|file| {
                let dir = file.parent().filter(|dir| *dir != paths.project);
                file.exists() || dir.is_some_and(std::path::Path::exists)
            }),
        }
    }

    /// Returns the step the user takes for a change to apply.
    pub fn next_step(&self, scope: AgentFileScope) -> &'static str {
        match scope {
            AgentFileScope::User => self.user_next_step,
            AgentFileScope::Project => self.project_next_step,
        }
    }
}
