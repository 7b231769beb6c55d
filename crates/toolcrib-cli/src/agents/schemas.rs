//! What an entry of each agent may hold: every key, what its value is, and which must be there. Those of agents that
//! publish a schema say of an entry what it says; the others are written after what is known of the agent.

/// What an entry may hold.
#[derive(Debug)]
pub(crate) struct Schema {
    /// Where the agent's maker publishes the same; nothing if it is our own.
    pub(crate) published: Option<&'static str>,
    /// A server that is a command.
    pub(crate) command: &'static [&'static [Key]],
    /// A server with an address; nothing if it knows none.
    pub(crate) address: &'static [&'static [Key]],
    /// Keys that must be there, of both.
    pub(crate) needed: &'static [&'static str],
    /// And of servers with an address.
    pub(crate) needed_with_address: &'static [&'static str],
    /// A flag with which the agent takes an entry whatever else is in it.
    pub(crate) enough: Option<&'static str>,
}

/// A key and what its value is.
pub(crate) type Key = (&'static str, Kind);

/// What a value is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Text,
    /// An address that begins with `http://` or `https://`.
    Address,
    /// One of these.
    Word(&'static [&'static str]),
    Texts,
    /// A program and its arguments.
    Argv,
    /// Strings by name.
    Table,
    /// Strings, numbers or nothing by name.
    Scalars,
    Number,
    Whole,
    Flag,
    /// A table with these keys.
    Of(&'static [Key]),
    /// What we never write and do not judge.
    Any,
    /// What the agent refuses, and what to write instead.
    Never(&'static str),
}

use Kind::{Address, Any, Argv, Flag, Number, Of, Scalars, Table, Text, Texts, Whole, Word};

const COMMAND: &[Key] = &[("command", Text), ("args", Texts), ("env", Table)];
const REMOTE: &[Key] = &[("url", Text), ("headers", Table)];
const CWD: &[Key] = &[("cwd", Text)];
const STDIO: &[Key] = &[("type", Word(&["stdio"]))];
const HTTP_OR_SSE: &[Key] = &[("type", Word(&["http", "sse"]))];
const DISABLED: &[Key] = &[("disabled", Flag), ("disabledTools", Texts)];

/// What most have; with nothing beyond it.
pub(super) const PLAIN: Schema = Schema {
    published: None,
    command: &[COMMAND],
    address: &[REMOTE],
    needed: &[],
    needed_with_address: &[],
    enough: None,
};
/// The same without addresses.
pub(super) const LOCAL: Schema = Schema { address: &[], ..PLAIN };

pub(super) const CLAUDE: Schema = Schema {
    command: &[COMMAND, STDIO, &[("timeout", Number), ("alwaysLoad", Flag)]],
    address: &[
        REMOTE,
        &[("type", Word(&["http", "sse", "ws"])), ("timeout", Number), ("alwaysLoad", Flag)],
        &[("headersHelper", Text), ("oauth", Any)],
    ],
    needed_with_address: &["type"],
    ..PLAIN
};

const OF_CODEX: &[Key] = &[
    ("enabled", Flag),
    ("required", Flag),
    ("startup_timeout_sec", Number),
    ("startup_timeout_ms", Number),
    ("tool_timeout_sec", Number),
    ("enabled_tools", Texts),
    ("disabled_tools", Texts),
    ("default_tools_approval_mode", Any),
    ("supports_parallel_tool_calls", Flag),
    ("scopes", Texts),
    ("oauth", Any),
    ("oauth_resource", Text),
    ("tools", Any),
];
pub(super) const CODEX: Schema = Schema {
    published: Some("`config.schema.json` of its repository"),
    command: &[COMMAND, CWD, OF_CODEX, &[("env_vars", Any)]],
    address: &[
        &[("url", Text), ("http_headers", Table), ("env_http_headers", Table), ("http_headers_helper", Text)],
        &[
            ("bearer_token_env_var", Text),
            ("bearer_token", Kind::Never("name a variable with `bearer_token_env_var`")),
        ],
        OF_CODEX,
    ],
    ..PLAIN
};

pub(super) const COPILOT: Schema = Schema {
    command: &[COMMAND, CWD, &[("type", Word(&["local", "stdio"])), ("tools", Texts), ("timeout", Number)]],
    address: &[REMOTE, HTTP_OR_SSE, &[("tools", Texts), ("timeout", Number), ("oauth", Any)]],
    needed_with_address: &["type"],
    ..PLAIN
};

const OF_GEMINI: &[Key] = &[
    ("type", Word(&["stdio", "sse", "http"])),
    ("timeout", Number),
    ("trust", Flag),
    ("description", Text),
    ("includeTools", Texts),
    ("excludeTools", Texts),
    ("extension", Any),
    ("oauth", Any),
    ("authProviderType", Text),
    ("targetAudience", Text),
    ("targetServiceAccount", Text),
];
pub(super) const GEMINI: Schema = Schema {
    published: Some("`schemas/settings.schema.json` of its repository, and in its package"),
    command: &[COMMAND, CWD, OF_GEMINI],
    address: &[REMOTE, &[("httpUrl", Text)], OF_GEMINI],
    ..PLAIN
};
pub(super) const QWEN: Schema = Schema { published: None, ..GEMINI };

const OF_OPENCODE: &[Key] = &[("enabled", Flag), ("timeout", Whole)];
pub(super) const OPENCODE: Schema = Schema {
    published: Some("`opencode.ai/config.json`"),
    command: &[
        &[("type", Word(&["local"])), ("command", Argv), ("environment", Table), ("cwd", Text)],
        OF_OPENCODE,
    ],
    address: &[&[("type", Word(&["remote"])), ("oauth", Any)], REMOTE, OF_OPENCODE],
    needed: &["type"],
    enough: Some("enabled"),
    ..PLAIN
};

const OF_GOOSE: &[Key] = &[
    ("name", Text),
    ("description", Text),
    ("envs", Table),
    ("env_keys", Texts),
    ("timeout", Number),
    ("enabled", Flag),
    ("bundled", Any),
    ("available_tools", Texts),
];
pub(super) const GOOSE: Schema = Schema {
    command: &[&[("type", Word(&["stdio"])), ("cmd", Text), ("args", Texts)], OF_GOOSE],
    address: &[&[("type", Word(&["streamable_http"])), ("uri", Text), ("headers", Table)], OF_GOOSE],
    needed: &["type", "name", "enabled"],
    ..PLAIN
};

const OF_CLINE: &[Key] =
    &[("disabled", Flag), ("timeout", Number), ("autoApprove", Texts), ("oauthClient", Any)];
pub(super) const CLINE: Schema = Schema {
    command: &[COMMAND, CWD, STDIO, OF_CLINE],
    address: &[REMOTE, &[("type", Word(&["streamableHttp", "sse"]))], OF_CLINE],
    // Without one it takes an address for the older HTTP+SSE.
    needed_with_address: &["type"],
    ..PLAIN
};

pub(super) const CONTINUE: Schema = Schema {
    command: &[COMMAND, CWD, STDIO, &[("name", Text), ("connectionTimeout", Number)]],
    address: &[&[
        ("name", Text),
        ("type", Word(&["streamable-http", "sse"])),
        ("url", Text),
        ("requestOptions", Of(&[("headers", Table)])),
        ("apiKey", Text),
        ("connectionTimeout", Number),
    ]],
    needed: &["name"],
    ..PLAIN
};

pub(super) const AMP: Schema = Schema {
    command: &[COMMAND, &[("includeTools", Texts)]],
    address: &[REMOTE, &[("includeTools", Texts)]],
    ..PLAIN
};

const OF_CRUSH: &[Key] = &[
    ("type", Word(&["stdio", "sse", "http"])),
    ("disabled", Flag),
    ("disabled_tools", Texts),
    ("enabled_tools", Texts),
    ("timeout", Whole),
];
pub(super) const CRUSH: Schema = Schema {
    published: Some("`schema.json` of its repository"),
    command: &[COMMAND, OF_CRUSH],
    address: &[
        REMOTE,
        OF_CRUSH,
        &[("oauth", Flag), ("oauth_client_id", Text), ("oauth_client_secret", Text)],
        &[("oauth_callback_port", Whole), ("sessionless", Flag)],
    ],
    needed: &["type"],
    ..PLAIN
};

pub(super) const AUGMENT: Schema = Schema { address: &[REMOTE, HTTP_OR_SSE], ..PLAIN };

pub(super) const CURSOR: Schema = Schema {
    command: &[COMMAND, CWD, STDIO, &[("envFile", Text)]],
    address: &[REMOTE, HTTP_OR_SSE, &[("auth", Any), ("tls", Any), ("placement", Any)]],
    ..PLAIN
};

pub(super) const VSCODE: Schema = Schema {
    published: Some("the schema of `mcp.json` in its sources"),
    command: &[
        STDIO,
        CWD,
        &[("command", Text), ("args", Texts), ("env", Scalars), ("envFile", Text)],
        &[("sandboxEnabled", Flag), ("sandbox", Any), ("dev", Any)],
    ],
    address: &[HTTP_OR_SSE, &[("url", Address), ("headers", Table), ("oauth", Any), ("dev", Any)]],
    ..PLAIN
};

pub(super) const WINDSURF: Schema = Schema {
    command: &[COMMAND, DISABLED],
    address: &[&[("serverUrl", Text), ("headers", Table)], DISABLED],
    ..PLAIN
};

const OF_ZED: &[Key] = &[("timeout", Number), ("enabled", Flag)];
pub(super) const ZED: Schema = Schema {
    command: &[COMMAND, OF_ZED, &[("remote", Flag)]],
    address: &[REMOTE, OF_ZED, &[("oauth", Any)]],
    ..PLAIN
};

const OF_ROO: &[Key] = &[("timeout", Number), ("alwaysAllow", Texts), ("watchPaths", Texts)];
pub(super) const ROO: Schema = Schema {
    command: &[COMMAND, CWD, STDIO, DISABLED, OF_ROO],
    address: &[REMOTE, &[("type", Word(&["streamable-http", "sse"]))], DISABLED, OF_ROO],
    needed_with_address: &["type"],
    ..PLAIN
};

pub(super) const JETBRAINS: Schema = Schema { address: &[&[("url", Text)]], ..PLAIN };

const OF_KIRO: &[Key] = &[("timeout", Number), ("autoApprove", Texts)];
pub(super) const KIRO: Schema =
    Schema { command: &[COMMAND, DISABLED, OF_KIRO], address: &[REMOTE, DISABLED, OF_KIRO], ..PLAIN };

pub(super) const WARP: Schema = Schema { command: &[COMMAND, &[("working_directory", Text)]], ..PLAIN };
