//! Agents that live in a terminal: one row each, nothing else. What is not known of one is written as the most
//! cautious guess.

use super::words::{DISABLED, ENABLED, GEMINI, PLAIN, REMOTE, ROW, STRICT};
use super::{Agent, Environment, Events, Layout, References, Remote, Session, Switch, Unit, Words, schemas};
use crate::edit::entry::Language;

/// One row each.
pub(super) const ROWS: &[Agent] = &[
    Agent {
        id: "claude",
        name: "Claude Code",
        sign: "~/.claude",
        user: &["$CLAUDE_CONFIG_DIR/.claude.json", "~/.claude.json"],
        project: &[".mcp.json"],
        language: STRICT,
        words: Words {
            stdio: Some("stdio"),
            remote: Some(Remote { http: Some("http"), ..REMOTE }),
            timeout: Some(("timeout", Unit::Milliseconds)),
            references: References::Shell { bare: false },
            ..PLAIN
        },
        schema: schemas::CLAUDE,
        next: "start a new session; `claude mcp list` shows it",
        next_in_project: "run `claude` in the project and approve the server",
        session: Session::Flag { program: "claude", flag: "--mcp-config", around: Some("mcpServers") },
        ..ROW
    },
    Agent {
        id: "codex",
        name: "Codex",
        sign: "~/.codex",
        user: &["$CODEX_HOME/config.toml", "~/.codex/config.toml"],
        project: &[".codex/config.toml"],
        language: Language::Toml,
        at: &["mcp_servers"],
        brittle: true,
        words: Words {
            passed: Some("env_vars"),
            cwd: Some("cwd"),
            remote: Some(Remote {
                headers: Some("http_headers"),
                events: Events::Unknown,
                by_name: Some(("bearer_token_env_var", "env_http_headers")),
                ..REMOTE
            }),
            switch: Some(ENABLED),
            timeout: Some(("tool_timeout_sec", Unit::Seconds)),
            allow: Some(("enabled_tools", false)),
            deny: Some("disabled_tools"),
            environment: Environment::Named,
            ..PLAIN
        },
        schema: schemas::CODEX,
        next: "start a new session; `codex mcp list` shows it",
        next_in_project: "run `codex` in the project and trust the folder",
        session: Session::Overrides { program: "codex" },
        ..ROW
    },
    Agent {
        id: "copilot",
        name: "Copilot CLI",
        sign: "~/.copilot",
        user: &["$COPILOT_HOME/mcp-config.json", "~/.copilot/mcp-config.json"],
        project: &[".mcp.json", ".github/mcp.json"],
        words: Words {
            stdio: Some("local"),
            remote: Some(Remote { http: Some("http"), ..REMOTE }),
            timeout: Some(("timeout", Unit::Milliseconds)),
            allow: Some(("tools", true)),
            references: References::Shell { bare: true },
            ..PLAIN
        },
        schema: schemas::COPILOT,
        next: "start a new session; `copilot mcp list` shows it",
        next_in_project: "run `copilot` in the project and trust the folder",
        session: Session::Flag {
            program: "copilot",
            flag: "--additional-mcp-config",
            around: Some("mcpServers"),
        },
        ..ROW
    },
    Agent {
        id: "gemini",
        name: "Gemini CLI",
        sign: "~/.gemini",
        user: &["$GEMINI_CLI_HOME/.gemini/settings.json", "~/.gemini/settings.json"],
        project: &[".gemini/settings.json"],
        words: GEMINI,
        schema: schemas::GEMINI,
        next: "start a new session in a folder you trust; `gemini mcp list` shows it",
        next_in_project: "run `gemini` in the project and trust the folder",
        session: Session::Home { program: "gemini", variable: "GEMINI_CLI_HOME" },
        ..ROW
    },
    Agent {
        id: "opencode",
        name: "opencode",
        sign: "XDG/opencode",
        user: &["$OPENCODE_CONFIG", "XDG/opencode/opencode.jsonc", "XDG/opencode/opencode.json"],
        project: &["opencode.jsonc", "opencode.json", ".opencode/opencode.jsonc", ".opencode/opencode.json"],
        at: &["mcp"],
        brittle: true,
        words: Words {
            stdio: Some("local"),
            argv: true,
            env: "environment",
            remote: Some(Remote { http: Some("remote"), events: Events::Type("remote", "url"), ..REMOTE }),
            switch: Some(Switch { always: true, ..ENABLED }),
            timeout: Some(("timeout", Unit::Milliseconds)),
            references: References::Opencode,
            ..PLAIN
        },
        schema: schemas::OPENCODE,
        next: "start a new session; `opencode mcp list` shows it",
        next_in_project: "start a new session in the project; `opencode mcp list` shows it",
        session: Session::Variable { program: "opencode", variable: "OPENCODE_CONFIG_CONTENT" },
        ..ROW
    },
    Agent {
        id: "goose",
        name: "Goose",
        sign: "XDG/goose",
        user: &["XDG/goose/config.yaml"],
        language: Language::Yaml,
        at: &["extensions"],
        words: Words {
            stdio: Some("stdio"),
            command: "cmd",
            env: "envs",
            passed: Some("env_keys"),
            remote: Some(Remote {
                http: Some("streamable_http"),
                url: "uri",
                events: Events::Unknown,
                ..REMOTE
            }),
            switch: Some(Switch { always: true, ..ENABLED }),
            timeout: Some(("timeout", Unit::Seconds)),
            allow: Some(("available_tools", false)),
            references: References::Headers,
            besides: &[("name", "$name"), ("description", "")],
            ..PLAIN
        },
        schema: schemas::GOOSE,
        next: "start a new session",
        session: Session::Extension { program: "goose", flag: "--with-extension", usual: "session" },
        ..ROW
    },
    Agent {
        id: "cline",
        name: "Cline",
        sign: "~/.cline",
        user: &[
            "$CLINE_MCP_SETTINGS_PATH",
            "$CLINE_DATA_DIR/settings/cline_mcp_settings.json",
            "$CLINE_DIR/data/settings/cline_mcp_settings.json",
            "~/.cline/data/settings/cline_mcp_settings.json",
            "APP/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json",
        ],
        language: STRICT,
        words: Words {
            stdio: Some("stdio"),
            cwd: Some("cwd"),
            remote: Some(Remote { http: Some("streamableHttp"), ..REMOTE }),
            switch: Some(Switch { always: true, ..DISABLED }),
            timeout: Some(("timeout", Unit::Seconds)),
            ..PLAIN
        },
        schema: schemas::CLINE,
        next: "nothing to do: Cline reads it by itself",
        ..ROW
    },
    Agent {
        id: "continue",
        name: "Continue",
        sign: "~/.continue",
        user: &["$CONTINUE_GLOBAL_DIR/mcpServers/toolcrib.yaml", "~/.continue/mcpServers/toolcrib.yaml"],
        project: &[".continue/mcpServers/toolcrib.yaml"],
        also: &[
            "$CONTINUE_GLOBAL_DIR/config.yaml",
            "$CONTINUE_GLOBAL_DIR/mcpServers",
            "~/.continue/config.yaml",
            "~/.continue/mcpServers",
            ".continue/mcpServers",
        ],
        language: Language::Yaml,
        layout: Layout::OwnList,
        words: Words {
            cwd: Some("cwd"),
            remote: Some(Remote {
                http: Some("streamable-http"),
                headers: Some("requestOptions.headers"),
                ..REMOTE
            }),
            references: References::Secrets,
            ..PLAIN
        },
        schema: schemas::CONTINUE,
        next: "reload the window, or start a new `cn`",
        ..ROW
    },
    Agent {
        id: "amp",
        name: "Amp",
        sign: "XDG/amp",
        user: &["XDG/amp/settings.json", "XDG/amp/settings.jsonc"],
        project: &[".amp/settings.json"],
        at: &["amp.mcpServers"],
        words: Words {
            remote: Some(Remote { events: Events::Found, ..REMOTE }),
            allow: Some(("includeTools", false)),
            ..PLAIN
        },
        schema: schemas::AMP,
        next: "start a new session; `amp mcp list` shows it",
        next_in_project: "type `amp mcp approve toolcrib` in the project",
        session: Session::Flag { program: "amp", flag: "--mcp-config", around: None },
        ..ROW
    },
    Agent {
        id: "crush",
        name: "Crush",
        sign: "XDG/crush",
        user: &["XDG/crush/crush.json"],
        project: &[".crush.json", "crush.json"],
        at: &["mcp"],
        words: Words {
            stdio: Some("stdio"),
            remote: Some(Remote { http: Some("http"), ..REMOTE }),
            switch: Some(DISABLED),
            timeout: Some(("timeout", Unit::Seconds)),
            allow: Some(("enabled_tools", false)),
            deny: Some("disabled_tools"),
            references: References::Dollar,
            ..PLAIN
        },
        schema: schemas::CRUSH,
        next: "start a new session",
        next_in_project: "start a new session in the project",
        ..ROW
    },
    Agent {
        id: "qwen",
        name: "Qwen Code",
        sign: "~/.qwen",
        user: &["~/.qwen/settings.json"],
        project: &[".qwen/settings.json"],
        words: Words {
            remote: Some(Remote { url: "httpUrl", events: Events::Type("sse", "url"), ..REMOTE }),
            ..GEMINI
        },
        schema: schemas::QWEN,
        next: "start a new session; `qwen mcp list` shows it",
        next_in_project: "start a new session in the project, and trust the folder",
        session: Session::Flag { program: "qwen", flag: "--mcp-config", around: Some("mcpServers") },
        ..ROW
    },
    Agent {
        id: "augment",
        name: "Augment",
        sign: "~/.augment",
        user: &["~/.augment/settings.json"],
        words: Words { remote: Some(Remote { http: Some("http"), ..REMOTE }), ..PLAIN },
        schema: schemas::AUGMENT,
        next: "start a new session; `auggie mcp list` shows it",
        ..ROW
    },
];
