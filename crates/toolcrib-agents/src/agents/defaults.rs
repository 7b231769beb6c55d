//! Defaults that the rows of the agent table start from.

use super::{
    Agent, AllowKey, DisableKey, EntryFormat, InheritedEnvironment, RemoteFormat, ServersLayout,
    SessionSupport, SseSupport, TimeUnit, TimeoutKey, VariableSyntax, schemas,
};
use crate::edit::entry::FileLanguage;
use crate::edit::jsonc::JsonDialect;

/// JSON without comments and trailing commas.
pub(super) const STRICT_JSON: FileLanguage = FileLanguage::Json(JsonDialect::Strict);
/// JSON with comments and trailing commas.
pub(super) const RELAXED_JSON: FileLanguage = FileLanguage::Json(JsonDialect::Relaxed);
/// The usual key of the servers.
pub(super) const MCP_SERVERS: &[&str] = &["mcpServers"];

/// The usual declaration of HTTP+SSE.
pub(super) const DEFAULT_SSE: SseSupport = SseSupport::Type { value: "sse", url_key: "url" };

/// `url` and `headers`, without a `type` for Streamable HTTP.
pub(super) const DEFAULT_REMOTE: RemoteFormat = RemoteFormat {
    http_type: None,
    url_key: "url",
    headers_key: Some("headers"),
    sse: DEFAULT_SSE,
    env_headers: None,
};

/// `command`, `args` and `env`.
pub(super) const DEFAULT_FORMAT: EntryFormat = EntryFormat {
    stdio_type: None,
    command_key: "command",
    command_is_argv: false,
    env_key: "env",
    passthrough_key: None,
    cwd_key: None,
    remote: Some(DEFAULT_REMOTE),
    disable_key: None,
    timeout_key: None,
    allow_key: None,
    deny_key: None,
    variable_syntax: VariableSyntax::None,
    expands_in_commands: true,
    inherited_environment: InheritedEnvironment::All,
    fixed_members: &[],
};

/// Format of Gemini CLI and its forks.
pub(super) const GEMINI_FORMAT: EntryFormat = EntryFormat {
    cwd_key: Some("cwd"),
    remote: Some(RemoteFormat { http_type: Some("http"), ..DEFAULT_REMOTE }),
    timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Milliseconds }),
    allow_key: Some(AllowKey { key: "includeTools", needs_wildcard: false }),
    deny_key: Some("excludeTools"),
    variable_syntax: VariableSyntax::Shell { bare: true },
    inherited_environment: InheritedEnvironment::Filtered,
    ..DEFAULT_FORMAT
};

/// `"disabled": true` marks a disabled server.
pub(super) const DISABLED_KEY: DisableKey =
    DisableKey { key: "disabled", enabled_value: false, always_written: false };
/// `"enabled": false` marks a disabled server.
pub(super) const ENABLED_KEY: DisableKey =
    DisableKey { key: "enabled", enabled_value: true, always_written: false };

/// Row that all others are based on.
pub(super) const DEFAULT_AGENT: Agent = Agent {
    id: "",
    name: "",
    install_marker: "",
    user_files: &[],
    project_files: &[],
    extra_import_paths: &[],
    language: RELAXED_JSON,
    servers_path: MCP_SERVERS,
    layout: ServersLayout::ByName,
    rejects_file_on_bad_entry: false,
    entry_format: DEFAULT_FORMAT,
    schema: schemas::PLAIN,
    user_next_step: "restart the agent",
    project_next_step: "reopen the project in the agent and trust the folder if it asks",
    starts_from_desktop: false,
    session_support: SessionSupport::None,
};

/// Row that editors and desktop programs are based on.
pub(super) const DESKTOP_AGENT: Agent = Agent { starts_from_desktop: true, ..DEFAULT_AGENT };
