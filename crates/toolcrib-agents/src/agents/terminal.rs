//! Agents that run in a terminal, some of them also in an editor, one row each. Where an agent's behaviour is not documented, the row has the most
//! cautious value.

use super::defaults::{
    DEFAULT_AGENT, DEFAULT_FORMAT, DEFAULT_REMOTE, DESKTOP_AGENT, DISABLED_KEY, ENABLED_KEY, GEMINI_FORMAT,
    STRICT_JSON,
};
use super::{
    Agent, AllowKey, DisableKey, EntryFormat, EnvHeaderKeys, InheritedEnvironment, RemoteFormat,
    ServersLayout, SessionSupport, SseSupport, TimeUnit, TimeoutKey, VariableSyntax, schemas,
};
use crate::edit::entry::FileLanguage;

pub(super) const AGENTS: &[Agent] = &[
    Agent {
        id: "claude",
        name: "Claude Code",
        install_marker: "~/.claude",
        user_files: &["$CLAUDE_CONFIG_DIR/.claude.json", "~/.claude.json"],
        project_files: &[".mcp.json"],
        language: STRICT_JSON,
        entry_format: EntryFormat {
            stdio_type: Some("stdio"),
            remote: Some(RemoteFormat { http_type: Some("http"), ..DEFAULT_REMOTE }),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Milliseconds }),
            variable_syntax: VariableSyntax::Shell { bare: false },
            ..DEFAULT_FORMAT
        },
        schema: schemas::CLAUDE,
        user_next_step: "start a new session; `claude mcp list` shows it",
        project_next_step: "run `claude` in the project and approve the server",
        session_support: SessionSupport::Flag {
            program: "claude",
            flag: "--mcp-config",
            wrapper_key: Some("mcpServers"),
        },
        ..DEFAULT_AGENT
    },
    Agent {
        id: "codex",
        name: "Codex",
        install_marker: "~/.codex",
        user_files: &["$CODEX_HOME/config.toml", "~/.codex/config.toml"],
        project_files: &[".codex/config.toml"],
        language: FileLanguage::Toml,
        servers_path: &["mcp_servers"],
        rejects_file_on_bad_entry: true,
        entry_format: EntryFormat {
            passthrough_key: Some("env_vars"),
            cwd_key: Some("cwd"),
            remote: Some(RemoteFormat {
                headers_key: Some("http_headers"),
                sse: SseSupport::Unsupported,
                env_headers: Some(EnvHeaderKeys {
                    bearer_token: "bearer_token_env_var",
                    headers: "env_http_headers",
                }),
                ..DEFAULT_REMOTE
            }),
            disable_key: Some(ENABLED_KEY),
            timeout_key: Some(TimeoutKey { key: "tool_timeout_sec", unit: TimeUnit::Seconds }),
            allow_key: Some(AllowKey { key: "enabled_tools", needs_wildcard: false }),
            deny_key: Some("disabled_tools"),
            inherited_environment: InheritedEnvironment::Listed,
            ..DEFAULT_FORMAT
        },
        schema: schemas::CODEX,
        user_next_step: "start a new session; `codex mcp list` shows it",
        project_next_step: "run `codex` in the project and trust the folder",
        session_support: SessionSupport::Overrides { program: "codex" },
        ..DEFAULT_AGENT
    },
    Agent {
        id: "copilot",
        name: "Copilot CLI",
        install_marker: "~/.copilot",
        user_files: &["$COPILOT_HOME/mcp-config.json", "~/.copilot/mcp-config.json"],
        project_files: &[".mcp.json", ".github/mcp.json"],
        entry_format: EntryFormat {
            stdio_type: Some("local"),
            remote: Some(RemoteFormat { http_type: Some("http"), ..DEFAULT_REMOTE }),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Milliseconds }),
            allow_key: Some(AllowKey { key: "tools", needs_wildcard: true }),
            variable_syntax: VariableSyntax::Shell { bare: true },
            ..DEFAULT_FORMAT
        },
        schema: schemas::COPILOT,
        user_next_step: "start a new session; `copilot mcp list` shows it",
        project_next_step: "run `copilot` in the project and trust the folder",
        session_support: SessionSupport::Flag {
            program: "copilot",
            flag: "--additional-mcp-config",
            wrapper_key: Some("mcpServers"),
        },
        ..DEFAULT_AGENT
    },
    Agent {
        id: "gemini",
        name: "Gemini CLI",
        install_marker: "~/.gemini",
        user_files: &["$GEMINI_CLI_HOME/.gemini/settings.json", "~/.gemini/settings.json"],
        project_files: &[".gemini/settings.json"],
        entry_format: GEMINI_FORMAT,
        schema: schemas::GEMINI,
        user_next_step: "start a new session in a folder you trust; `gemini mcp list` shows it",
        project_next_step: "run `gemini` in the project and trust the folder",
        session_support: SessionSupport::HomeDir { program: "gemini", variable: "GEMINI_CLI_HOME" },
        ..DEFAULT_AGENT
    },
    Agent {
        id: "opencode",
        name: "opencode",
        install_marker: "XDG/opencode",
        user_files: &["$OPENCODE_CONFIG", "XDG/opencode/opencode.jsonc", "XDG/opencode/opencode.json"],
        project_files: &[
            "opencode.jsonc",
            "opencode.json",
            ".opencode/opencode.jsonc",
            ".opencode/opencode.json",
        ],
        servers_path: &["mcp"],
        rejects_file_on_bad_entry: true,
        entry_format: EntryFormat {
            stdio_type: Some("local"),
            command_is_argv: true,
            env_key: "environment",
            remote: Some(RemoteFormat {
                http_type: Some("remote"),
                sse: SseSupport::Type { value: "remote", url_key: "url" },
                ..DEFAULT_REMOTE
            }),
            disable_key: Some(DisableKey { always_written: true, ..ENABLED_KEY }),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Milliseconds }),
            variable_syntax: VariableSyntax::Opencode,
            ..DEFAULT_FORMAT
        },
        schema: schemas::OPENCODE,
        user_next_step: "start a new session; `opencode mcp list` shows it",
        project_next_step: "start a new session in the project; `opencode mcp list` shows it",
        session_support: SessionSupport::Variable {
            program: "opencode",
            variable: "OPENCODE_CONFIG_CONTENT",
        },
        ..DEFAULT_AGENT
    },
    Agent {
        id: "goose",
        name: "Goose",
        install_marker: "XDG/goose",
        user_files: &["XDG/goose/config.yaml"],
        language: FileLanguage::Yaml,
        servers_path: &["extensions"],
        entry_format: EntryFormat {
            stdio_type: Some("stdio"),
            command_key: "cmd",
            env_key: "envs",
            passthrough_key: Some("env_keys"),
            remote: Some(RemoteFormat {
                http_type: Some("streamable_http"),
                url_key: "uri",
                sse: SseSupport::Unsupported,
                ..DEFAULT_REMOTE
            }),
            disable_key: Some(DisableKey { always_written: true, ..ENABLED_KEY }),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Seconds }),
            allow_key: Some(AllowKey { key: "available_tools", needs_wildcard: false }),
            variable_syntax: VariableSyntax::HeadersOnly,
            fixed_members: &[("name", "$name"), ("description", "")],
            ..DEFAULT_FORMAT
        },
        schema: schemas::GOOSE,
        user_next_step: "start a new session",
        session_support: SessionSupport::Extension {
            program: "goose",
            flag: "--with-extension",
            default_subcommand: "session",
        },
        ..DESKTOP_AGENT
    },
    Agent {
        id: "cline",
        name: "Cline",
        install_marker: "~/.cline",
        user_files: &[
            "$CLINE_MCP_SETTINGS_PATH",
            "$CLINE_DATA_DIR/settings/cline_mcp_settings.json",
            "$CLINE_DIR/data/settings/cline_mcp_settings.json",
            "~/.cline/data/settings/cline_mcp_settings.json",
            "APP/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ],
        language: STRICT_JSON,
        entry_format: EntryFormat {
            stdio_type: Some("stdio"),
            cwd_key: Some("cwd"),
            remote: Some(RemoteFormat { http_type: Some("streamableHttp"), ..DEFAULT_REMOTE }),
            disable_key: Some(DisableKey { always_written: true, ..DISABLED_KEY }),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Seconds }),
            ..DEFAULT_FORMAT
        },
        schema: schemas::CLINE,
        user_next_step: "nothing to do: Cline reloads the file by itself",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "continue",
        name: "Continue",
        install_marker: "~/.continue",
        user_files: &[
            "$CONTINUE_GLOBAL_DIR/mcpServers/toolcrib.yaml",
            "~/.continue/mcpServers/toolcrib.yaml",
        ],
        project_files: &[".continue/mcpServers/toolcrib.yaml"],
        extra_import_paths: &[
            "$CONTINUE_GLOBAL_DIR/config.yaml",
            "$CONTINUE_GLOBAL_DIR/mcpServers",
            "~/.continue/config.yaml",
            "~/.continue/mcpServers",
            ".continue/mcpServers",
        ],
        language: FileLanguage::Yaml,
        layout: ServersLayout::OwnListFile,
        entry_format: EntryFormat {
            cwd_key: Some("cwd"),
            remote: Some(RemoteFormat {
                http_type: Some("streamable-http"),
                headers_key: Some("requestOptions.headers"),
                ..DEFAULT_REMOTE
            }),
            variable_syntax: VariableSyntax::Secrets,
            ..DEFAULT_FORMAT
        },
        schema: schemas::CONTINUE,
        user_next_step: "reload the window, or start a new `cn`",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "amp",
        name: "Amp",
        install_marker: "XDG/amp",
        user_files: &["XDG/amp/settings.json", "XDG/amp/settings.jsonc"],
        project_files: &[".amp/settings.json"],
        servers_path: &["amp.mcpServers"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat { sse: SseSupport::AutoDetected, ..DEFAULT_REMOTE }),
            allow_key: Some(AllowKey { key: "includeTools", needs_wildcard: false }),
            ..DEFAULT_FORMAT
        },
        schema: schemas::AMP,
        user_next_step: "start a new session; `amp mcp list` shows it",
        project_next_step: "run `amp mcp approve toolcrib` in the project",
        session_support: SessionSupport::Flag { program: "amp", flag: "--mcp-config", wrapper_key: None },
        ..DEFAULT_AGENT
    },
    Agent {
        id: "crush",
        name: "Crush",
        install_marker: "XDG/crush",
        user_files: &["XDG/crush/crush.json"],
        project_files: &[".crush.json", "crush.json"],
        servers_path: &["mcp"],
        entry_format: EntryFormat {
            stdio_type: Some("stdio"),
            remote: Some(RemoteFormat { http_type: Some("http"), ..DEFAULT_REMOTE }),
            disable_key: Some(DISABLED_KEY),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Seconds }),
            allow_key: Some(AllowKey { key: "enabled_tools", needs_wildcard: false }),
            deny_key: Some("disabled_tools"),
            variable_syntax: VariableSyntax::Dollar,
            ..DEFAULT_FORMAT
        },
        schema: schemas::CRUSH,
        user_next_step: "start a new session",
        project_next_step: "start a new session in the project",
        ..DEFAULT_AGENT
    },
    Agent {
        id: "qwen",
        name: "Qwen Code",
        install_marker: "~/.qwen",
        user_files: &["~/.qwen/settings.json"],
        project_files: &[".qwen/settings.json"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat {
                url_key: "httpUrl",
                sse: SseSupport::Type { value: "sse", url_key: "url" },
                ..DEFAULT_REMOTE
            }),
            ..GEMINI_FORMAT
        },
        schema: schemas::QWEN,
        user_next_step: "start a new session; `qwen mcp list` shows it",
        project_next_step: "start a new session in the project and trust the folder",
        session_support: SessionSupport::Flag {
            program: "qwen",
            flag: "--mcp-config",
            wrapper_key: Some("mcpServers"),
        },
        ..DEFAULT_AGENT
    },
    Agent {
        id: "augment",
        name: "Augment",
        install_marker: "~/.augment",
        user_files: &["~/.augment/settings.json"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat { http_type: Some("http"), ..DEFAULT_REMOTE }),
            ..DEFAULT_FORMAT
        },
        schema: schemas::AUGMENT,
        user_next_step: "start a new session; `auggie mcp list` shows it",
        ..DEFAULT_AGENT
    },
];
