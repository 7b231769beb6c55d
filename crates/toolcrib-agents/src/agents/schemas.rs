//! Schemas of the agents' server entries: valid keys, their values, and the required ones. They follow the schema that an
//! agent publishes, or else its documentation.

/// Keys and values that are valid in an agent's server entry.
#[derive(Debug)]
pub(crate) struct EntrySchema {
    /// Location of the agent's published schema, if there is one.
    pub(crate) published_at: Option<&'static str>,
    /// Keys of a stdio server.
    pub(crate) command_keys: &'static [&'static [EntryKey]],
    /// Keys of an HTTP server; empty if the agent does not support them.
    pub(crate) remote_keys: &'static [&'static [EntryKey]],
    /// Required keys of every server.
    pub(crate) required: &'static [&'static str],
    /// Further required keys of an HTTP server.
    pub(crate) required_remote: &'static [&'static str],
    /// Boolean key that makes the agent accept an entry regardless of its other keys.
    pub(crate) bypass_flag: Option<&'static str>,
}

/// A key and the kind of its value.
pub(crate) type EntryKey = (&'static str, EntryValueKind);

/// Kind of value that a key takes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum EntryValueKind {
    Text,
    /// A URL that starts with `http://` or `https://`.
    HttpUrl,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    TextList,
    /// A non-empty list of program and arguments.
    Argv,
    /// An object whose values are strings.
    TextMap,
    /// An object whose values are strings, numbers or null.
    ScalarMap,
    Number,
    Integer,
    Bool,
    /// An object with these keys.
    Object(&'static [EntryKey]),
    /// Any value; toolcrib never writes the key.
    Any,
    /// A key that the agent rejects, with advice what to write instead.
    Refused(&'static str),
}

use EntryValueKind::{
    Any, Argv, Bool, HttpUrl, Integer, Number, Object, OneOf, ScalarMap, Text, TextList, TextMap,
};

const COMMAND: &[EntryKey] = &[("command", Text), ("args", TextList), ("env", TextMap)];
const REMOTE: &[EntryKey] = &[("url", Text), ("headers", TextMap)];
const CWD: &[EntryKey] = &[("cwd", Text)];
const STDIO: &[EntryKey] = &[("type", OneOf(&["stdio"]))];
const HTTP_OR_SSE: &[EntryKey] = &[("type", OneOf(&["http", "sse"]))];
const DISABLED: &[EntryKey] = &[("disabled", Bool), ("disabledTools", TextList)];

/// `command`, `args` and `env`, or `url` and `headers`.
pub(super) const PLAIN: EntrySchema = EntrySchema {
    published_at: None,
    command_keys: &[COMMAND],
    remote_keys: &[REMOTE],
    required: &[],
    required_remote: &[],
    bypass_flag: None,
};
/// The same without HTTP servers.
pub(super) const LOCAL: EntrySchema = EntrySchema { remote_keys: &[], ..PLAIN };

pub(super) const CLAUDE: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, STDIO, &[("timeout", Number), ("alwaysLoad", Bool)]],
    remote_keys: &[
        REMOTE,
        &[("type", OneOf(&["http", "sse", "ws"])), ("timeout", Number), ("alwaysLoad", Bool)],
        &[("headersHelper", Text), ("oauth", Any)],
    ],
    required_remote: &["type"],
    ..PLAIN
};

const CODEX_COMMON: &[EntryKey] = &[
    ("enabled", Bool),
    ("required", Bool),
    ("startup_timeout_sec", Number),
    ("startup_timeout_ms", Number),
    ("tool_timeout_sec", Number),
    ("enabled_tools", TextList),
    ("disabled_tools", TextList),
    ("default_tools_approval_mode", Any),
    ("supports_parallel_tool_calls", Bool),
    ("scopes", TextList),
    ("oauth", Any),
    ("oauth_resource", Text),
    ("tools", Any),
];
pub(super) const CODEX: EntrySchema = EntrySchema {
    published_at: Some("`config.schema.json` of its repository"),
    command_keys: &[COMMAND, CWD, CODEX_COMMON, &[("env_vars", Any)]],
    remote_keys: &[
        &[
            ("url", Text),
            ("http_headers", TextMap),
            ("env_http_headers", TextMap),
            ("http_headers_helper", Text),
        ],
        &[
            ("bearer_token_env_var", Text),
            ("bearer_token", EntryValueKind::Refused("name a variable with `bearer_token_env_var`")),
        ],
        CODEX_COMMON,
    ],
    ..PLAIN
};

pub(super) const COPILOT: EntrySchema = EntrySchema {
    command_keys: &[
        COMMAND,
        CWD,
        &[("type", OneOf(&["local", "stdio"])), ("tools", TextList), ("timeout", Number)],
    ],
    remote_keys: &[REMOTE, HTTP_OR_SSE, &[("tools", TextList), ("timeout", Number), ("oauth", Any)]],
    required_remote: &["type"],
    ..PLAIN
};

const GEMINI_COMMON: &[EntryKey] = &[
    ("type", OneOf(&["stdio", "sse", "http"])),
    ("timeout", Number),
    ("trust", Bool),
    ("description", Text),
    ("includeTools", TextList),
    ("excludeTools", TextList),
    ("extension", Any),
    ("oauth", Any),
    ("authProviderType", Text),
    ("targetAudience", Text),
    ("targetServiceAccount", Text),
];
pub(super) const GEMINI: EntrySchema = EntrySchema {
    published_at: Some("`schemas/settings.schema.json` of its repository, and in its package"),
    command_keys: &[COMMAND, CWD, GEMINI_COMMON],
    remote_keys: &[REMOTE, &[("httpUrl", Text)], GEMINI_COMMON],
    ..PLAIN
};
pub(super) const QWEN: EntrySchema = EntrySchema { published_at: None, ..GEMINI };

const OPENCODE_COMMON: &[EntryKey] = &[("enabled", Bool), ("timeout", Integer)];
pub(super) const OPENCODE: EntrySchema = EntrySchema {
    published_at: Some("`opencode.ai/config.json`"),
    command_keys: &[
        &[("type", OneOf(&["local"])), ("command", Argv), ("environment", TextMap), ("cwd", Text)],
        OPENCODE_COMMON,
    ],
    remote_keys: &[&[("type", OneOf(&["remote"])), ("oauth", Any)], REMOTE, OPENCODE_COMMON],
    required: &["type"],
    bypass_flag: Some("enabled"),
    ..PLAIN
};

const GOOSE_COMMON: &[EntryKey] = &[
    ("name", Text),
    ("description", Text),
    ("envs", TextMap),
    ("env_keys", TextList),
    ("timeout", Number),
    ("enabled", Bool),
    ("bundled", Any),
    ("available_tools", TextList),
];
pub(super) const GOOSE: EntrySchema = EntrySchema {
    command_keys: &[&[("type", OneOf(&["stdio"])), ("cmd", Text), ("args", TextList)], GOOSE_COMMON],
    remote_keys: &[
        &[("type", OneOf(&["streamable_http"])), ("uri", Text), ("headers", TextMap)],
        GOOSE_COMMON,
    ],
    required: &["type", "name", "enabled"],
    ..PLAIN
};

const CLINE_COMMON: &[EntryKey] =
    &[("disabled", Bool), ("timeout", Number), ("autoApprove", TextList), ("oauthClient", Any)];
pub(super) const CLINE: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, CWD, STDIO, CLINE_COMMON],
    remote_keys: &[REMOTE, &[("type", OneOf(&["streamableHttp", "sse"]))], CLINE_COMMON],
    // Without a `type`, Cline treats a URL as HTTP+SSE.
    required_remote: &["type"],
    ..PLAIN
};

pub(super) const CONTINUE: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, CWD, STDIO, &[("name", Text), ("connectionTimeout", Number)]],
    remote_keys: &[&[
        ("name", Text),
        ("type", OneOf(&["streamable-http", "sse"])),
        ("url", Text),
        ("requestOptions", Object(&[("headers", TextMap)])),
        ("apiKey", Text),
        ("connectionTimeout", Number),
    ]],
    required: &["name"],
    ..PLAIN
};

pub(super) const AMP: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, &[("includeTools", TextList)]],
    remote_keys: &[REMOTE, &[("includeTools", TextList)]],
    ..PLAIN
};

const CRUSH_COMMON: &[EntryKey] = &[
    ("type", OneOf(&["stdio", "sse", "http"])),
    ("disabled", Bool),
    ("disabled_tools", TextList),
    ("enabled_tools", TextList),
    ("timeout", Integer),
];
pub(super) const CRUSH: EntrySchema = EntrySchema {
    published_at: Some("`schema.json` of its repository"),
    command_keys: &[COMMAND, CRUSH_COMMON],
    remote_keys: &[
        REMOTE,
        CRUSH_COMMON,
        &[("oauth", Bool), ("oauth_client_id", Text), ("oauth_client_secret", Text)],
        &[("oauth_callback_port", Integer), ("sessionless", Bool)],
    ],
    required: &["type"],
    ..PLAIN
};

pub(super) const AUGMENT: EntrySchema = EntrySchema { remote_keys: &[REMOTE, HTTP_OR_SSE], ..PLAIN };

pub(super) const CURSOR: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, CWD, STDIO, &[("envFile", Text)]],
    remote_keys: &[REMOTE, HTTP_OR_SSE, &[("auth", Any), ("tls", Any), ("placement", Any)]],
    ..PLAIN
};

pub(super) const VSCODE: EntrySchema = EntrySchema {
    published_at: Some("the schema of `mcp.json` in its sources"),
    command_keys: &[
        STDIO,
        CWD,
        &[("command", Text), ("args", TextList), ("env", ScalarMap), ("envFile", Text)],
        &[("sandboxEnabled", Bool), ("sandbox", Any), ("dev", Any)],
    ],
    remote_keys: &[HTTP_OR_SSE, &[("url", HttpUrl), ("headers", TextMap), ("oauth", Any), ("dev", Any)]],
    ..PLAIN
};

pub(super) const WINDSURF: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, DISABLED],
    remote_keys: &[&[("serverUrl", Text), ("headers", TextMap)], DISABLED],
    ..PLAIN
};

const ZED_COMMON: &[EntryKey] = &[("timeout", Number), ("enabled", Bool)];
pub(super) const ZED: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, ZED_COMMON, &[("remote", Bool)]],
    remote_keys: &[REMOTE, ZED_COMMON, &[("oauth", Any)]],
    ..PLAIN
};

const ROO_COMMON: &[EntryKey] = &[("timeout", Number), ("alwaysAllow", TextList), ("watchPaths", TextList)];
pub(super) const ROO: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, CWD, STDIO, DISABLED, ROO_COMMON],
    remote_keys: &[REMOTE, &[("type", OneOf(&["streamable-http", "sse"]))], DISABLED, ROO_COMMON],
    required_remote: &["type"],
    ..PLAIN
};

pub(super) const JETBRAINS: EntrySchema = EntrySchema { remote_keys: &[&[("url", Text)]], ..PLAIN };

const KIRO_COMMON: &[EntryKey] = &[("timeout", Number), ("autoApprove", TextList)];
pub(super) const KIRO: EntrySchema = EntrySchema {
    command_keys: &[COMMAND, DISABLED, KIRO_COMMON],
    remote_keys: &[REMOTE, DISABLED, KIRO_COMMON],
    ..PLAIN
};

pub(super) const WARP: EntrySchema =
    EntrySchema { command_keys: &[COMMAND, &[("working_directory", Text)]], ..PLAIN };
