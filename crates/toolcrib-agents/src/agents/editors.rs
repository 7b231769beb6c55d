//! Agents that are editors or desktop programs, one row each. Where an agent's behaviour is not documented, the row has
//! the most cautious value.

use super::defaults::{
    DEFAULT_FORMAT, DEFAULT_REMOTE, DESKTOP_AGENT, DISABLED_KEY, ENABLED_KEY, STRICT_JSON,
};
use super::{
    Agent, DisableKey, EntryFormat, RemoteFormat, SseSupport, TimeUnit, TimeoutKey, VariableSyntax, schemas,
};

pub(super) const AGENTS: &[Agent] = &[
    Agent {
        id: "claude-desktop",
        name: "Claude Desktop",
        install_marker: "APP/Claude",
        user_files: &["APP/Claude/claude_desktop_config.json"],
        language: STRICT_JSON,
        entry_format: EntryFormat { remote: None, ..DEFAULT_FORMAT },
        schema: schemas::LOCAL,
        user_next_step: "restart Claude Desktop",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "cursor",
        name: "Cursor",
        install_marker: "~/.cursor",
        user_files: &["~/.cursor/mcp.json"],
        project_files: &[".cursor/mcp.json"],
        entry_format: EntryFormat {
            cwd_key: Some("cwd"),
            variable_syntax: VariableSyntax::Env { defaults: true, files: false },
            ..DEFAULT_FORMAT
        },
        schema: schemas::CURSOR,
        user_next_step: "enable the server in Cursor's settings, under MCP",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "vscode",
        name: "VS Code",
        install_marker: "APP/Code/User",
        user_files: &[
            "APP/Code/User/mcp.json",
            "APP/Code - Insiders/User/mcp.json",
            "~/.vscode-server/data/User/mcp.json",
        ],
        project_files: &[".vscode/mcp.json"],
        servers_path: &["servers"],
        entry_format: EntryFormat {
            stdio_type: Some("stdio"),
            cwd_key: Some("cwd"),
            remote: Some(RemoteFormat { http_type: Some("http"), ..DEFAULT_REMOTE }),
            variable_syntax: VariableSyntax::Env { defaults: false, files: false },
            ..DEFAULT_FORMAT
        },
        schema: schemas::VSCODE,
        user_next_step: "start it with `MCP: List Servers` in the command palette",
        project_next_step: "trust the workspace, then start it with `MCP: List Servers` in the command palette",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "windsurf",
        name: "Windsurf",
        install_marker: "~/.codeium",
        user_files: &["~/.codeium/windsurf/mcp_config.json", "~/.codeium/mcp_config.json"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat {
                url_key: "serverUrl",
                sse: SseSupport::AutoDetected,
                ..DEFAULT_REMOTE
            }),
            disable_key: Some(DISABLED_KEY),
            deny_key: Some("disabledTools"),
            variable_syntax: VariableSyntax::Env { defaults: false, files: true },
            ..DEFAULT_FORMAT
        },
        schema: schemas::WINDSURF,
        user_next_step: "refresh the servers in Windsurf's settings",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "zed",
        name: "Zed",
        install_marker: "XDG/zed",
        user_files: &["$FLATPAK_XDG_CONFIG_HOME/zed/settings.json", "XDG/zed/settings.json"],
        project_files: &[".zed/settings.json"],
        servers_path: &["context_servers"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat { sse: SseSupport::Unsupported, ..DEFAULT_REMOTE }),
            disable_key: Some(ENABLED_KEY),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Seconds }),
            ..DEFAULT_FORMAT
        },
        schema: schemas::ZED,
        user_next_step: "nothing to do: Zed reloads the file by itself",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "roo",
        name: "Roo Code",
        install_marker: "APP/Code/User/globalStorage/rooveterinaryinc.roo-cline",
        user_files: &["APP/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json"],
        project_files: &[".roo/mcp.json"],
        language: STRICT_JSON,
        entry_format: EntryFormat {
            cwd_key: Some("cwd"),
            remote: Some(RemoteFormat { http_type: Some("streamable-http"), ..DEFAULT_REMOTE }),
            disable_key: Some(DISABLED_KEY),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Seconds }),
            deny_key: Some("disabledTools"),
            variable_syntax: VariableSyntax::Env { defaults: false, files: false },
            ..DEFAULT_FORMAT
        },
        schema: schemas::ROO,
        user_next_step: "nothing to do: Roo Code reloads the file by itself",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "jetbrains",
        name: "JetBrains AI Assistant",
        install_marker: "~/.ai/mcp",
        user_files: &["~/.ai/mcp/mcp.json"],
        project_files: &[".ai/mcp/mcp.json"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat { headers_key: None, sse: SseSupport::Unsupported, ..DEFAULT_REMOTE }),
            ..DEFAULT_FORMAT
        },
        schema: schemas::JETBRAINS,
        user_next_step: "restart the IDE",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "junie",
        name: "Junie",
        install_marker: "~/.junie",
        user_files: &["~/.junie/mcp/mcp.json"],
        project_files: &[".junie/mcp/mcp.json"],
        entry_format: EntryFormat { remote: None, ..DEFAULT_FORMAT },
        schema: schemas::LOCAL,
        user_next_step: "start a new task",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "lm-studio",
        name: "LM Studio",
        install_marker: "~/.lmstudio",
        user_files: &["~/.lmstudio/mcp.json", "~/.cache/lm-studio/mcp.json"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat { sse: SseSupport::Unsupported, ..DEFAULT_REMOTE }),
            ..DEFAULT_FORMAT
        },
        user_next_step: "nothing to do: LM Studio reloads the file by itself",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "kiro",
        name: "Kiro",
        install_marker: "~/.kiro",
        user_files: &["~/.kiro/settings/mcp.json"],
        project_files: &[".kiro/settings/mcp.json"],
        entry_format: EntryFormat {
            remote: Some(RemoteFormat { sse: SseSupport::Unsupported, ..DEFAULT_REMOTE }),
            disable_key: Some(DisableKey { always_written: true, ..DISABLED_KEY }),
            timeout_key: Some(TimeoutKey { key: "timeout", unit: TimeUnit::Milliseconds }),
            deny_key: Some("disabledTools"),
            variable_syntax: VariableSyntax::Braces,
            expands_in_commands: false,
            ..DEFAULT_FORMAT
        },
        schema: schemas::KIRO,
        user_next_step: "nothing to do: Kiro reloads the file by itself",
        ..DESKTOP_AGENT
    },
    Agent {
        id: "warp",
        name: "Warp",
        install_marker: "~/.warp",
        user_files: &["~/.warp/.mcp.json"],
        project_files: &[".warp/.mcp.json"],
        entry_format: EntryFormat {
            cwd_key: Some("working_directory"),
            remote: Some(RemoteFormat { sse: SseSupport::AutoDetected, ..DEFAULT_REMOTE }),
            ..DEFAULT_FORMAT
        },
        schema: schemas::WARP,
        user_next_step: "start the server in Warp's settings, under MCP",
        ..DESKTOP_AGENT
    },
];
