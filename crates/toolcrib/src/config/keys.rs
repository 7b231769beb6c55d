//! Table of every config key, from which `docs/config.md` and the JSON schema are generated.
//!
//! The config reader does not use this table; a test checks that both know the same keys.

use super::{listen, store};
use ValueKind::{
    AnyOf, Boolean, Duration, Integer, Map, NamedTables, OneOf, Size, Table, TableList, Text, TextList,
};

/// A config key.
#[derive(Debug)]
pub struct ConfigKey {
    /// Name of the key as written in the file.
    pub name: &'static str,
    /// Type of its value.
    pub kind: ValueKind,
    /// Value that applies if the key is absent; empty if there is none.
    pub default: &'static str,
    /// One-line description.
    pub description: &'static str,
}

/// Type of a key's value.
#[derive(Debug)]
#[non_exhaustive]
pub enum ValueKind {
    /// A string.
    Text,
    /// `true` or `false`.
    Boolean,
    /// A whole number.
    Integer,
    /// A whole number and a unit of time.
    Duration,
    /// A whole number and a unit of size.
    Size,
    /// A list of strings; `"+key"` appends to the list of a lower layer.
    TextList,
    /// One of these strings.
    OneOf(&'static [&'static str]),
    /// A list of tables with any keys.
    TableList,
    /// A table with user-chosen keys and values of this type.
    Map(&'static Self),
    /// A table with these keys.
    Table(&'static [ConfigKey]),
    /// A table with user-chosen keys, each holding a table with these keys.
    NamedTables(&'static [ConfigKey]),
    /// A value of any of these types.
    AnyOf(&'static [Self]),
}

pub(super) const fn key(
    name: &'static str,
    kind: ValueKind,
    default: &'static str,
    description: &'static str,
) -> ConfigKey {
    ConfigKey { name, kind, default, description }
}

/// Top-level keys of a config file.
pub const ROOT: &[ConfigKey] = &[
    key("servers", NamedTables(SERVER), "", "Servers by name: 1 to 32 of `a-z`, `0-9`, `-`, `_`"),
    key("defaults", Table(DEFAULTS), "", "Defaults for all servers"),
    key("scopes", NamedTables(SCOPE), "", "Conditions on the environment and the tags they activate"),
    key("hosts", NamedTables(HOST), "", "Machines that run servers for other machines, by host name"),
    key("policy", Table(POLICY), "", "Access rules for all callers; `deny` wins over `allow` in any layer"),
    key(
        "profiles",
        NamedTables(PROFILE),
        "",
        "Subsets of the catalog, served at `/mcp/p/NAME`; `agent-NAME` is that of an agent",
    ),
    key(
        "callers",
        NamedTables(CALLER),
        "",
        "Callers and how they are recognized; without these and `issuers`, every client that can reach the gateway is accepted. `agent:NAME` is an agent of this user, which needs no token",
    ),
    key(
        "issuers",
        NamedTables(ISSUER),
        "",
        "Authorization servers (OAuth 2.1, OpenID Connect) whose tokens identify callers, named `ISSUER:SUBJECT`",
    ),
    key("groups", NamedTables(GROUP), "", "Rules and limits for callers in a group, by name of the group"),
    key("expose", Table(EXPOSE), "", "How tools are listed to clients; without it, every tool is listed"),
    key("limits", Table(GATEWAY_LIMITS), "", "Limits of the gateway as a whole"),
    key("listen", Table(listen::KEYS), "", "Settings of the HTTP listener"),
    key("gateway", Table(GATEWAY), "", "The gateway that `toolcrib stdio` starts in the background"),
    key("metrics", Table(METRICS), "", "Metrics of calls and servers, read at `/metrics`"),
    key("secrets", Table(SECRETS), "", "Storage of the values behind `${secret:NAME}`"),
    key("audit", Text, "", "File to record calls in, relative to this file"),
    key("audit-required", Boolean, "false", "Refuse calls that cannot be recorded"),
    key("audit-arguments", Boolean, "false", "Record the arguments of calls as well"),
    key("audit-size", Size, "64MiB", "File size at which the audit file is rotated"),
    key("audit-keep", Integer, "4", "Number of rotated files to keep"),
    key("history", Table(HISTORY), "", "The history of calls and events that the gateway keeps"),
    key(
        "store",
        Table(store::KEYS),
        "",
        "State that several gateways share, in Valkey or Redis; see [replicas.md](replicas.md)",
    ),
    key("registry", Text, "", "URL of the MCP registry that `toolcrib add registry:NAME` asks"),
];

/// Keys of a server.
pub const SERVER: &[ConfigKey] = &[
    key(
        "command",
        Text,
        "",
        "Program to run, looked up on `PATH`; with a slash, relative to this file. Excludes `url`",
    ),
    key("args", TextList, "[]", "Arguments of the program"),
    key(
        "env",
        Map(&Text),
        "{}",
        "Environment variables to set; `${env:X}`, `${env:X:-default}`, `${file:PATH}` and `${secret:NAME}` work in any string",
    ),
    key(
        "inherit-env",
        TextList,
        "[]",
        "Variables to pass on from the gateway's environment, in addition to the standard ones",
    ),
    key("cwd", Text, "", "Working directory, relative to this file"),
    key("url", Text, "", "URL of a remote server. Excludes `command`"),
    key("headers", Map(&Text), "{}", "HTTP headers to send with every request"),
    key(
        "auth",
        Table(AUTH),
        "",
        "How tokens of a remote server are obtained; unused with an `Authorization` header",
    ),
    key(
        "forward",
        OneOf(&["none", "header", "token-exchange"]),
        "none",
        "What a remote server learns about the caller: nothing, its name, or a token for which its own is exchanged; each caller then has a connection of its own",
    ),
    key(
        "forward-header",
        Text,
        "X-Toolcrib-Caller",
        "Header with the name of the caller, for `forward = \"header\"`",
    ),
    key("token-exchange", Table(TOKEN_EXCHANGE), "", "Where tokens of callers are exchanged (RFC 8693)"),
    key("type", OneOf(&["stdio", "http", "sse"]), "", "Transport; detected if left out"),
    key(
        "era",
        Text,
        "auto",
        "Protocol era: `auto` (the era of the client), `modern`, `legacy`, or a revision such as `2025-06-18`",
    ),
    key("enabled", Boolean, "true", "Whether the server may run"),
    key(
        "when",
        AnyOf(&[TextList, Table(WHEN)]),
        "",
        "Tags that switch the server on: one of a list, or `any`, `all`, `not`; if left out, it is always on",
    ),
    key("run-on", Text, "", "Host that runs the server; other machines connect to that host"),
    key("sharing", OneOf(SHARING), "auto", "Which clients share an instance"),
    key("trust", OneOf(TRUST), "normal", "Whether to act on the server's hints (read-only, idempotent, TTL)"),
    key(
        "pin",
        OneOf(PIN),
        "mark",
        "Handling of tools, prompts, resources and instructions that differ from what was approved: mark them, or hide them until approved",
    ),
    key(
        "card",
        AnyOf(&[Text, Table(CARD)]),
        "",
        "Description that is shown, and tools that are listed, before the server has been started: a table, or a JSON file relative to this file",
    ),
    key("lifecycle", Table(LIFECYCLE), "", "Start, idle stop, restarts and memory"),
    key("limits", Table(LIMITS), "", "Limits per call and per server"),
    key("tools", Table(TOOLS), "", "Settings for tools, by the server's own tool names"),
];

/// Keys that set the defaults of all servers.
pub const DEFAULTS: &[ConfigKey] = &[
    key("inherit-env", TextList, "[]", "See `servers.NAME`"),
    key("sharing", OneOf(SHARING), "auto", "See `servers.NAME`"),
    key("trust", OneOf(TRUST), "normal", "See `servers.NAME`"),
    key("pin", OneOf(PIN), "mark", "See `servers.NAME`"),
    key("lifecycle", Table(LIFECYCLE), "", "See `servers.NAME`"),
    key("limits", Table(LIMITS), "", "See `servers.NAME`"),
    key("tools", Table(TOOLS), "", "See `servers.NAME`"),
];

const SHARING: &[&str] = &["auto", "shared", "one", "per-client", "per-project", "per-caller"];
const TRUST: &[&str] = &["normal", "trusted"];
const PIN: &[&str] = &["mark", "strict"];

const WHEN: &[ConfigKey] = &[
    key("any", TextList, "", "At least one of these tags is active"),
    key("all", TextList, "[]", "All of these tags are active"),
    key("not", TextList, "[]", "None of these tags is active"),
];

const CARD: &[ConfigKey] = &[
    key("title", Text, "", "Name for people"),
    key("description", Text, "", "Purpose of the server"),
    key("tags", TextList, "[]", "Words to find the server by"),
    key(
        "tools",
        TableList,
        "[]",
        "Definitions of its tools as in `tools/list`; listed until the server has been listed",
    ),
];

const LIFECYCLE: &[ConfigKey] = &[
    key(
        "start",
        OneOf(&["on-demand", "at-boot"]),
        "on-demand",
        "Start on the first call, or with the gateway",
    ),
    key(
        "keep-alive",
        AnyOf(&[Duration, OneOf(&["forever"])]),
        "5m",
        "Time the server keeps running after its last call; `0s` stops it immediately",
    ),
    key("start-timeout", Duration, "30s", "Time limit for a start"),
    key(
        "list-ttl",
        Duration,
        "5m",
        "Age at which a list of the running server is fetched again when a client asks for it, unless the server sets a TTL; `0s` fetches it every time",
    ),
    key("restarts", Table(RESTARTS), "", "Number of crashes before the server is ejected"),
    key("backoff", Table(BACKOFF), "", "Delay before a restart; doubles with each restart"),
    key("breaker", Table(BREAKER), "", "Circuit breaker for a server that runs but fails"),
    key("memory", Table(MEMORY), "", "Memory limits of the server's whole process tree"),
];

const RESTARTS: &[ConfigKey] = &[
    key("at-most", Integer, "5", "Restarts within the window; one more crash ejects the server"),
    key("within", Duration, "5m", "Length of the window"),
];

const BACKOFF: &[ConfigKey] = &[
    key("first", Duration, "100ms", "Delay before the first restart"),
    key("most", Duration, "5s", "Longest delay"),
];

const BREAKER: &[ConfigKey] = &[
    key("failures", Integer, "5", "Consecutive failures on an open connection that open the breaker"),
    key("cool-off", Duration, "30s", "Time the breaker stays open before one call may try again"),
];

const MEMORY: &[ConfigKey] = &[
    key("soft", Size, "", "Above this the server is stopped as soon as it is idle"),
    key("hard", Size, "", "Above this the server is stopped immediately"),
];

const LIMITS: &[ConfigKey] = &[
    key("call-timeout", Duration, "60s", "Time limit for a call; progress notifications extend it"),
    key("call-timeout-max", Duration, "10m", "Time limit for a call, however much progress it reports"),
    key("in-flight", Integer, "64", "Concurrent calls; further calls wait, in turn per client"),
    key("message", Size, "32MiB", "Largest message accepted from the server"),
    key(
        "tools",
        Integer,
        "10000",
        "Tools that are listed, and other items of each kind; further ones are left out",
    ),
    key("definition", Size, "256KiB", "Largest definition of a tool or other item; larger ones are left out"),
    key("instances", Integer, "16", "Concurrent instances of a server that is not shared"),
    key("cache-entries", Integer, "64", "Cached results per tool; `0` disables the cache"),
    key("cache-ttl-max", Duration, "24h", "Longest time a result is cached"),
    key(
        "result-tokens",
        Integer,
        "",
        "Tokens of a text result that clients are sent, from 500; a larger one is stored and read in parts",
    ),
];

const TOOLS: &[ConfigKey] = &[
    key("allow", TextList, "[\"*\"]", "Only these are listed and callable"),
    key("deny", TextList, "[]", "These are never listed or callable; layers add up"),
    key("ask", TextList, "[]", "Calls of these need approval; layers add up"),
    key("rename", Map(&Text), "{}", "New names for tools, by the server's own tool name"),
    key("idempotent", TextList, "[]", "Calls of these are retried once if the server is lost"),
    key("cache", TextList, "[]", "Results of these are cached for as long as the server's TTL hint allows"),
    key("check", Boolean, "false", "Validate arguments against the tool's input schema before the call"),
    key(
        "call-timeout",
        Map(&Duration),
        "{}",
        "Time limits by tool pattern, instead of `limits.call-timeout`",
    ),
    key(
        "result-tokens",
        Map(&Integer),
        "{}",
        "Tokens of a result by tool pattern, instead of `limits.result-tokens`; `0` for no limit",
    ),
];

const SCOPE: &[ConfigKey] = &[
    key("match", Table(MATCH), "", "Conditions that must all hold; `*` stands for any characters"),
    key("tags", TextList, "", "Tags to activate if the conditions hold"),
];

const MATCH: &[ConfigKey] = &[
    key("host", Text, "", "Host name of this machine, complete or up to the first dot"),
    key("user", Text, "", "User that runs toolcrib"),
    key("os", Text, "", "Operating system: `linux`, `macos` …"),
    key("project", Text, "", "Name of the project directory"),
    key("env", Map(&Text), "", "Environment variables and their values"),
    key("files", Text, "", "Glob of a file in the project; `**` stands for any directories"),
    key("network", Table(NETWORK), "", "Network that this machine is connected to"),
];

const NETWORK: &[ConfigKey] = &[
    key("cidr", Text, "", "Range that contains an address of this machine"),
    key("gateway-mac", Text, "", "MAC address of the default gateway"),
    key("ssid", Text, "", "Name of the wireless network"),
];

const AUTH: &[ConfigKey] = &[
    key(
        "grant",
        OneOf(&["authorization-code", "client-credentials", "enterprise-managed", "command"]),
        "authorization-code",
        "Way to a token: a person logs in with `toolcrib login`, the client has a secret or key of its own, the token of an organization's identity provider is exchanged, or a program prints it",
    ),
    key("client-id", Text, "", "Id of a client that is registered with the authorization server"),
    key("client-secret", Text, "", "Secret of that client"),
    key(
        "private-key",
        Text,
        "",
        "Private key of that client, a P-256 key in PKCS8 as PEM, such as `${file:key.pem}`",
    ),
    key(
        "client-metadata-url",
        Text,
        "",
        "URL of a client metadata document, used as client id where the authorization server accepts it",
    ),
    key("scopes", TextList, "[]", "Scopes to ask for, instead of those that the server names"),
    key("command", TextList, "[]", "Program that prints a token, and its arguments"),
    key(
        "identity-provider",
        Table(IDENTITY_PROVIDER),
        "",
        "Identity provider for `grant = \"enterprise-managed\"`",
    ),
];
const TOKEN_EXCHANGE: &[ConfigKey] = &[
    key("token-endpoint", Text, "", "URL of the token endpoint"),
    key("client-id", Text, "", "Id of the gateway as a client of the token endpoint"),
    key("client-secret", Text, "", "Its secret, such as `${secret:exchange}`"),
    key(
        "audience",
        Text,
        "",
        "Audience of the new token; without it, the URL of the server is sent as `resource`",
    ),
    key("scopes", TextList, "[]", "Scopes to ask for"),
];
const IDENTITY_PROVIDER: &[ConfigKey] = &[
    key("token-endpoint", Text, "", "URL of its token endpoint"),
    key("client-id", Text, "", "Id of this client at the identity provider"),
    key("id-token", Text, "", "ID token of the person, such as `${secret:id-token}`"),
];
const HOST: &[ConfigKey] = &[
    key("address", Text, "the host's name", "Host name, IP address or `https://…` URL"),
    key("port", Integer, "7717", "Port of its gateway"),
    key("token", Text, "", "Token of one of its callers, sent as bearer token"),
];

const POLICY: &[ConfigKey] = &[
    key("allow", TextList, "[\"*\"]", "Patterns `SERVER.NAME`; only matches are listed and callable"),
    key("deny", TextList, "[]", "Patterns that are never listed or callable; layers add up"),
    key("ask", TextList, "[]", "Patterns whose calls need approval; layers add up"),
    key("quota", Table(QUOTA), "", "Calls per period, for each caller"),
    key("rate", Table(RATE), "", "Rate limit, for each caller"),
    key("limits", NamedTables(PATTERN_LIMITS), "", "Quota and rate limit of calls that match a pattern"),
];

const PROFILE: &[ConfigKey] = &[
    key("servers", TextList, "", "Servers of the profile; without this and `tags`, all servers"),
    key("tags", TextList, "", "Adds every server that has one of these tags in its `when`"),
    key("allow", TextList, "[\"*\"]", "Patterns `SERVER.NAME`; only matches are listed and callable"),
    key("deny", TextList, "[]", "Patterns that are never listed or callable"),
    key("ask", TextList, "[]", "Patterns whose calls need approval"),
    key("groups", TextList, "[]", "Groups whose members may use the profile; without it, everyone may"),
    key("expose", OneOf(EXPOSE_MODES), "`expose.mode`", "How tools are listed to clients of the profile"),
];

const CALLER: &[ConfigKey] = &[
    key("token", Text, "", "Bearer token of the caller"),
    key("token-sha256", Text, "", "SHA-256 of the token, instead of `token`"),
    key(
        "mtls",
        Table(MTLS),
        "",
        "Names in the client certificate of the caller; with a token, both are needed",
    ),
    key("uid", Integer, "", "User of this machine that is the caller without a token"),
    key("admin", Boolean, "false", "Whether the caller may use the admin API, `/api/v1`"),
    key("metrics", Boolean, "false", "Whether the caller may read `/metrics`; admins may as well"),
    key("profile", Text, "", "Profile that the caller is restricted to"),
    key("groups", TextList, "[]", "Groups that the caller is in, by name under `[groups]`"),
    key("allow", TextList, "[\"*\"]", "Patterns `SERVER.NAME`; only matches are listed and callable"),
    key("deny", TextList, "[]", "Patterns that are never listed or callable"),
    key("ask", TextList, "[]", "Patterns whose calls need approval"),
    key("quota", Table(QUOTA), "", "Calls per period"),
    key("rate", Table(RATE), "", "Rate limit"),
    key("in-flight", Integer, "", "Concurrent calls; further calls wait"),
    key("expose", OneOf(EXPOSE_MODES), "`expose.mode`", "How tools are listed to the caller"),
    key("limits", NamedTables(PATTERN_LIMITS), "", "Quota and rate limit of calls that match a pattern"),
];

const ISSUER: &[ConfigKey] = &[
    key("issuer", Text, "", "URL of the authorization server, exactly as in `iss` of its tokens"),
    key("audience", Text, "the URL of the endpoint", "Value that `aud` of its tokens must contain"),
    key("jwks", Text, "from its metadata", "URL of its public keys, or a file relative to this file"),
    key(
        "algorithms",
        TextList,
        "all of them",
        "Signature algorithms that are accepted: `RS256`, `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES256`, `ES384`, `EdDSA`",
    ),
    key("caller-claim", Text, "sub", "Claim with the name of the caller; `a.b` is member `b` of claim `a`"),
    key("groups-claim", Text, "groups", "Claim with the groups of the caller"),
    key("scopes", TextList, "[]", "Scopes that clients are told to ask for; tokens need not have them"),
    key("groups", TextList, "[]", "Groups of which a caller must be in one; without it, all are accepted"),
];

const GROUP: &[ConfigKey] = &[
    key("issuers", TextList, "all of them", "Issuers whose tokens may name the group"),
    key("admin", Boolean, "false", "Whether members may use the admin API, `/api/v1`"),
    key(
        "allow",
        TextList,
        "[]",
        "Patterns `SERVER.NAME`; if any group of a caller has this, only matches of one of them are listed and callable",
    ),
    key("deny", TextList, "[]", "Patterns that are never listed or callable"),
    key("ask", TextList, "[]", "Patterns whose calls need approval"),
    key("quota", Table(QUOTA), "", "Calls per period, for each member"),
    key("rate", Table(RATE), "", "Rate limit, for each member"),
    key("in-flight", Integer, "", "Concurrent calls of each member; further calls wait"),
    key("expose", OneOf(EXPOSE_MODES), "`expose.mode`", "How tools are listed to members"),
    key("limits", NamedTables(PATTERN_LIMITS), "", "Quota and rate limit of calls that match a pattern"),
];

const MTLS: &[ConfigKey] = &[
    key("san", Text, "", "Pattern that a DNS name, URI or email address of the certificate must match"),
    key("subject", Text, "", "Attributes that its subject must have, such as `CN=ci-*, O=Example`"),
];

const EXPOSE_MODES: &[&str] = &["auto", "all", "search"];

const EXPOSE: &[ConfigKey] = &[
    key(
        "mode",
        OneOf(EXPOSE_MODES),
        "auto",
        "List all tools, only those that search for the others, or all within the budget",
    ),
    key("budget", Integer, "10000", "Size of the largest list in full with `auto`, in tokens of four bytes"),
    key("always-list", TextList, "[]", "Patterns `SERVER.NAME` of tools that are listed in search mode too"),
    key("clients", Map(&OneOf(EXPOSE_MODES)), "{}", "Modes by name of the client program"),
];

const SECRETS: &[ConfigKey] = &[
    key(
        "backend",
        OneOf(&["auto", "keyring", "file", "env", "command"]),
        "auto",
        "Where secrets are stored; `auto` is the desktop keyring if there is one, else an encrypted file",
    ),
    key("env-prefix", Text, "TOOLCRIB_SECRET_", "Prefix of the environment variables, for `env`"),
    key("command", TextList, "", "Command that prints the secret `{name}`, for `command`"),
];

const PATTERN_LIMITS: &[ConfigKey] =
    &[key("quota", Table(QUOTA), "", "Calls per period"), key("rate", Table(RATE), "", "Rate limit")];

const ON_STORE_FAILURE: ConfigKey = key(
    "on-store-failure",
    OneOf(&["refuse", "allow"]),
    "refuse",
    "What happens to calls that cannot be counted because the store does not answer",
);

const QUOTA: &[ConfigKey] = &[
    key("calls", Integer, "", "Number of calls"),
    key("per", Duration, "", "Length of the period"),
    ON_STORE_FAILURE,
];

const RATE: &[ConfigKey] = &[
    key("calls", Integer, "", "Number of calls"),
    key("per", Duration, "", "Length of the period"),
    key("wait", Duration, "", "Longest time a call may wait instead of being refused"),
    ON_STORE_FAILURE,
];

const GATEWAY_LIMITS: &[ConfigKey] = &[
    key("servers-running", Integer, "32", "Servers running at the same time; the longest idle stop first"),
    key("memory", Size, "", "Memory of all servers together"),
    key("body", Size, "32MiB", "Largest HTTP request body"),
    key("sessions", Integer, "10000", "Open sessions"),
    key(
        "client-memory",
        Size,
        "256MiB",
        "Memory that clients may use: request bodies, kept events, unread results, sessions",
    ),
    key("drain", Duration, "10s", "Time a shutdown waits for calls in flight"),
    key("call-timeout-max", Duration, "", "Upper bound on the time limit of any call"),
    key("listing-wait", Duration, "300ms", "Time a list waits for lists that are out of date"),
    key("first-listing-wait", Duration, "8s", "Time a client waits for servers that were never listed"),
    key("first-listing-clients", Map(&Duration), "{}", "The same by name of the client program"),
    key("identical-calls", Integer, "", "Consecutive identical calls before further ones are refused"),
    key("results", Size, "", "Total size of the results a client may receive"),
    key(
        "result-tokens",
        Map(&Integer),
        "{}",
        "Tokens of a result by name of the client program, instead of those of servers and tools; `0` for no limit",
    ),
    key("cache", Size, "32MiB", "Memory for cached results"),
];

const GATEWAY: &[ConfigKey] = &[
    key("auto-start", Boolean, "true", "Whether `toolcrib stdio` starts a gateway when none is running"),
    key(
        "idle-exit",
        Duration,
        "5m",
        "Time without clients and calls after which a gateway that was started this way exits",
    ),
];

const METRICS: &[ConfigKey] =
    &[key("enabled", Boolean, "true", "Whether calls are counted and `/metrics` is served")];

const HISTORY: &[ConfigKey] = &[
    key(
        "enabled",
        Boolean,
        "true",
        "Whether calls and events are recorded; arguments only with `audit-arguments`",
    ),
    key("size", Size, "64MiB", "Size of all files; the oldest records are removed"),
    key("age", Duration, "7d", "Age at which records are removed"),
];
