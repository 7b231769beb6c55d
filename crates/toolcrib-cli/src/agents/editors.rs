//! Agents that live in editors and windows: one row each, nothing else. What is not known of one is written as the most
//! cautious guess.

use super::words::{DISABLED, ENABLED, PLAIN, REMOTE, ROW, STRICT};
use super::{Agent, Events, References, Remote, Switch, Unit, Words, schemas};

/// One row each.
pub(super) const ROWS: &[Agent] = &[
    Agent {
        id: "claude-desktop",
        name: "Claude Desktop",
        sign: "APP/Claude",
        user: &["APP/Claude/claude_desktop_config.json"],
        language: STRICT,
        words: Words { remote: None, ..PLAIN },
        schema: schemas::LOCAL,
        next: "quit Claude Desktop and start it again",
        ..ROW
    },
    Agent {
        id: "cursor",
        name: "Cursor",
        sign: "~/.cursor",
        user: &["~/.cursor/mcp.json"],
        project: &[".cursor/mcp.json"],
        words: Words {
            cwd: Some("cwd"),
            references: References::Env { defaults: true, files: false },
            ..PLAIN
        },
        schema: schemas::CURSOR,
        next: "switch the server on in Cursor's settings, under MCP",
        ..ROW
    },
    Agent {
        id: "vscode",
        name: "VS Code",
        sign: "APP/Code/User",
        user: &[
            "APP/Code/User/mcp.json",
            "APP/Code - Insiders/User/mcp.json",
            "~/.vscode-server/data/User/mcp.json",
        ],
        project: &[".vscode/mcp.json"],
        at: &["servers"],
        words: Words {
            stdio: Some("stdio"),
            cwd: Some("cwd"),
            remote: Some(Remote { http: Some("http"), ..REMOTE }),
            references: References::Env { defaults: false, files: false },
            ..PLAIN
        },
        schema: schemas::VSCODE,
        next: "`MCP: List Servers` in the command palette starts it",
        next_in_project: "`MCP: List Servers` in the command palette starts it, once the workspace is trusted",
        ..ROW
    },
    Agent {
        id: "windsurf",
        name: "Windsurf",
        sign: "~/.codeium",
        user: &["~/.codeium/windsurf/mcp_config.json", "~/.codeium/mcp_config.json"],
        words: Words {
            remote: Some(Remote { url: "serverUrl", events: Events::Found, ..REMOTE }),
            switch: Some(DISABLED),
            deny: Some("disabledTools"),
            references: References::Env { defaults: false, files: true },
            ..PLAIN
        },
        schema: schemas::WINDSURF,
        next: "refresh the servers in Windsurf's settings",
        ..ROW
    },
    Agent {
        id: "zed",
        name: "Zed",
        sign: "XDG/zed",
        user: &["$FLATPAK_XDG_CONFIG_HOME/zed/settings.json", "XDG/zed/settings.json"],
        project: &[".zed/settings.json"],
        at: &["context_servers"],
        words: Words {
            remote: Some(Remote { events: Events::Unknown, ..REMOTE }),
            switch: Some(ENABLED),
            timeout: Some(("timeout", Unit::Seconds)),
            ..PLAIN
        },
        schema: schemas::ZED,
        next: "nothing to do: Zed reads it by itself",
        ..ROW
    },
    Agent {
        id: "roo",
        name: "Roo Code",
        sign: "APP/Code/User/globalStorage/rooveterinaryinc.roo-cline",
        user: &["APP/Code/User/globalStorage/rooveterinaryinc.roo-cline/settings/mcp_settings.json"],
        project: &[".roo/mcp.json"],
        language: STRICT,
        words: Words {
            cwd: Some("cwd"),
            remote: Some(Remote { http: Some("streamable-http"), ..REMOTE }),
            switch: Some(DISABLED),
            timeout: Some(("timeout", Unit::Seconds)),
            deny: Some("disabledTools"),
            references: References::Env { defaults: false, files: false },
            ..PLAIN
        },
        schema: schemas::ROO,
        next: "nothing to do: Roo Code reads it by itself",
        ..ROW
    },
    Agent {
        id: "jetbrains",
        name: "JetBrains AI Assistant",
        sign: "~/.ai/mcp",
        user: &["~/.ai/mcp/mcp.json"],
        project: &[".ai/mcp/mcp.json"],
        words: Words { remote: Some(Remote { headers: None, events: Events::Unknown, ..REMOTE }), ..PLAIN },
        schema: schemas::JETBRAINS,
        next: "restart the IDE",
        ..ROW
    },
    Agent {
        id: "junie",
        name: "Junie",
        sign: "~/.junie",
        user: &["~/.junie/mcp/mcp.json"],
        project: &[".junie/mcp/mcp.json"],
        words: Words { remote: None, ..PLAIN },
        schema: schemas::LOCAL,
        next: "start a new task",
        ..ROW
    },
    Agent {
        id: "lm-studio",
        name: "LM Studio",
        sign: "~/.lmstudio",
        user: &["~/.lmstudio/mcp.json", "~/.cache/lm-studio/mcp.json"],
        words: Words { remote: Some(Remote { events: Events::Unknown, ..REMOTE }), ..PLAIN },
        next: "nothing to do: LM Studio reads it by itself",
        ..ROW
    },
    Agent {
        id: "kiro",
        name: "Kiro",
        sign: "~/.kiro",
        user: &["~/.kiro/settings/mcp.json"],
        project: &[".kiro/settings/mcp.json"],
        words: Words {
            remote: Some(Remote { events: Events::Unknown, ..REMOTE }),
            switch: Some(Switch { always: true, ..DISABLED }),
            timeout: Some(("timeout", Unit::Milliseconds)),
            deny: Some("disabledTools"),
            references: References::Braces,
            everywhere: false,
            ..PLAIN
        },
        schema: schemas::KIRO,
        next: "nothing to do: Kiro reads it by itself",
        ..ROW
    },
    Agent {
        id: "warp",
        name: "Warp",
        sign: "~/.warp",
        user: &["~/.warp/.mcp.json"],
        project: &[".warp/.mcp.json"],
        words: Words {
            cwd: Some("working_directory"),
            remote: Some(Remote { events: Events::Found, ..REMOTE }),
            ..PLAIN
        },
        schema: schemas::WARP,
        next: "start the server in Warp's settings, under MCP",
        ..ROW
    },
];
