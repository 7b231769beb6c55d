//! Every key that a config may hold, as one table: what `docs/config.md` and the schema for editors are written from. It is
//! not what reads a config; a test sees to it that both know the same keys.

use Kind::{Count, Duration, Either, Flag, Map, Named, Size, Table, Text, Texts, Words};

/// A key.
#[derive(Debug)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// What stands behind it.
    pub kind: Kind,
    /// What holds if it is left out; empty if nothing does.
    pub otherwise: &'static str,
    /// What it means, in one line.
    pub about: &'static str,
}

/// What can stand behind a key.
#[derive(Debug)]
pub enum Kind {
    /// A string.
    Text,
    /// `true` or `false`.
    Flag,
    /// A whole number.
    Count,
    /// A whole number and a unit of time.
    Duration,
    /// A whole number and a unit of size.
    Size,
    /// A list of strings; `"+key"` adds to a farther layer's.
    Texts,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A table of names that people choose, with a value each.
    Map(&'static Self),
    /// A table with these keys.
    Table(&'static [Key]),
    /// A table of names that people choose, with a table each.
    Named(&'static [Key]),
    /// One or the other.
    Either(&'static [Self]),
}

const fn key(name: &'static str, kind: Kind, otherwise: &'static str, about: &'static str) -> Key {
    Key { name, kind, otherwise, about }
}

/// The config as a whole.
pub const ROOT: &[Key] = &[
    key("servers", Named(SERVER), "", "The servers, by name: 1 to 32 of `a-z`, `0-9`, `-`, `_`"),
    key("defaults", Table(DEFAULTS), "", "For every server that does not say otherwise"),
    key("scopes", Named(SCOPE), "", "Where we are, and which tags that makes active"),
    key("hosts", Named(HOST), "", "Machines that run servers for others, by their host names"),
    key("policy", Table(POLICY), "", "Rules for everyone; `deny` wins over any `allow`, in whichever layer"),
    key("profiles", Named(PROFILE), "", "Parts of everything, at `/mcp/p/NAME`"),
    key("callers", Named(CALLER), "", "Who may come in; without any, whoever can reach the gateway"),
    key("limits", Table(HOST_LIMITS), "", "What the gateway itself may take"),
    key("listen", Table(LISTEN), "", "Under which names it may be asked for"),
    key("secrets", Table(SECRETS), "", "Where the values behind `${secret:NAME}` are kept"),
    key("audit", Text, "", "The file that calls are recorded in"),
    key("audit-required", Flag, "false", "Whether calls are refused that cannot be recorded"),
    key("audit-arguments", Flag, "false", "Whether arguments are recorded, too"),
    key("audit-size", Size, "64MiB", "When the file is turned over"),
    key("audit-keep", Count, "4", "How many older files are kept"),
];

/// One server.
pub const SERVER: &[Key] = &[
    key(
        "command",
        Text,
        "",
        "A program: looked up on `PATH`, or with a slash relative to this file; never with `url`",
    ),
    key("args", Texts, "[]", "Its arguments"),
    key(
        "env",
        Map(&Text),
        "{}",
        "Variables set for it; `${env:X}`, `${env:X:-default}`, `${file:PATH}` and `${secret:NAME}` work in any string",
    ),
    key("inherit-env", Texts, "[]", "Variables it gets from the gateway's environment, beyond the usual few"),
    key("cwd", Text, "", "Its working folder, relative to this file"),
    key("url", Text, "", "The address of a server that runs elsewhere; never with `command`"),
    key("headers", Map(&Text), "{}", "Headers sent to it"),
    key("type", Words(&["stdio", "http", "sse"]), "", "How messages are carried; guessed if left out"),
    key("era", Text, "auto", "`auto`, `modern`, `legacy`, or a revision such as `2025-06-18`"),
    key("enabled", Flag, "true", "Whether it may run"),
    key(
        "when",
        Either(&[Texts, Table(WHEN)]),
        "",
        "Tags it wants: one of a list, or `any`, `all`, `not`; left out, it is always on",
    ),
    key("run-on", Text, "", "The host that runs it; everywhere else it is reached there"),
    key("sharing", Words(SHARING), "shared", "Who gets the same instance"),
    key("trust", Words(TRUST), "normal", "Whether its hints (read-only, idempotent, TTL) are believed"),
    key("pin", Words(PIN), "mark", "What is done about a tool that is not as it was approved"),
    key("lifecycle", Table(LIFECYCLE), "", "When it starts, how long it stays, how it is restarted"),
    key("limits", Table(LIMITS), "", "What one call may cost"),
    key("tools", Table(TOOLS), "", "What is said of its tools, by its own names for them"),
];

/// What holds for every server that does not say otherwise.
pub const DEFAULTS: &[Key] = &[
    key("inherit-env", Texts, "[]", "As of a server"),
    key("sharing", Words(SHARING), "shared", "As of a server"),
    key("trust", Words(TRUST), "normal", "As of a server"),
    key("pin", Words(PIN), "mark", "As of a server"),
    key("lifecycle", Table(LIFECYCLE), "", "As of a server"),
    key("limits", Table(LIMITS), "", "As of a server"),
    key("tools", Table(TOOLS), "", "As of a server"),
];

const SHARING: &[&str] = &["shared", "per-client", "per-project", "per-caller"];
const TRUST: &[&str] = &["normal", "trusted"];
const PIN: &[&str] = &["mark", "strict"];

const WHEN: &[Key] = &[
    key("any", Texts, "", "One of these is active"),
    key("all", Texts, "[]", "All of these are"),
    key("not", Texts, "[]", "None of these is"),
];

const LIFECYCLE: &[Key] = &[
    key("start", Words(&["on-demand", "at-boot"]), "on-demand", "When somebody asks, or with the gateway"),
    key(
        "keep-alive",
        Either(&[Duration, Words(&["forever"])]),
        "5m",
        "How long it stays after the last call; `0s` is not at all",
    ),
    key("start-timeout", Duration, "30s", "How long a start may take"),
    key("restarts", Table(RESTARTS), "", "How many crashes are forgiven"),
    key("backoff", Table(BACKOFF), "", "How long to wait before a restart; doubled each time"),
    key("breaker", Table(BREAKER), "", "When it is left alone although it lives"),
    key("memory", Table(MEMORY), "", "Of its whole process tree"),
];

const RESTARTS: &[Key] = &[
    key("at-most", Count, "5", "Restarts within the window; then it is given up"),
    key("within", Duration, "5m", "The window"),
];

const BACKOFF: &[Key] = &[
    key("first", Duration, "100ms", "Before the first restart"),
    key("most", Duration, "5s", "The longest wait"),
];

const BREAKER: &[Key] = &[
    key("failures", Count, "5", "Failures in a row on a living connection"),
    key("cool-off", Duration, "30s", "How long it is left alone"),
];

const MEMORY: &[Key] = &[
    key("soft", Size, "", "Above this it is stopped as soon as nobody uses it"),
    key("hard", Size, "", "Above this it is stopped at once"),
];

const LIMITS: &[Key] = &[
    key("call-timeout", Duration, "60s", "How long a call may take; progress extends it"),
    key("call-timeout-max", Duration, "10m", "How far progress extends it"),
    key("in-flight", Count, "64", "Calls at a time; further ones wait, client by client"),
    key("message", Size, "32MiB", "The largest message accepted from it"),
    key("instances", Count, "16", "Of a server that is not shared"),
    key("cache-entries", Count, "64", "Results that are kept"),
    key("cache-ttl-max", Duration, "24h", "The longest that a result is kept"),
];

const TOOLS: &[Key] = &[
    key("allow", Texts, "[\"*\"]", "Nothing else of it is there"),
    key("deny", Texts, "[]", "Not even these are"),
    key("ask", Texts, "[]", "These are asked about first"),
    key("rename", Map(&Text), "{}", "Other names for some"),
    key("idempotent", Texts, "[]", "A lost call of these is made once more"),
    key("cache", Texts, "[]", "Results of these may be kept for as long as the server says"),
    key("check", Flag, "false", "Whether arguments are held against a tool's own schema before it is called"),
    key("call-timeout", Map(&Duration), "{}", "By pattern, instead of `limits.call-timeout`"),
];

const SCOPE: &[Key] = &[
    key("match", Table(MATCH), "", "Conditions, all of which must hold; `*` stands for any characters"),
    key("tags", Texts, "", "What is active then"),
];

const MATCH: &[Key] = &[
    key("host", Text, "", "The name of this machine, whole or up to the first dot"),
    key("user", Text, "", "Who runs toolcrib"),
    key("os", Text, "", "`linux`, `macos` …"),
    key("project", Text, "", "The name of the project's folder"),
    key("env", Map(&Text), "", "Variables and the values they have"),
    key("files", Text, "", "A glob below the project; `**` stands for any folders"),
    key("network", Table(NETWORK), "", "Where we are connected"),
];

const NETWORK: &[Key] = &[
    key("cidr", Text, "", "An address of ours is in this range"),
    key("gateway-mac", Text, "", "The gateway has this hardware address"),
    key("ssid", Text, "", "The wireless network is called this"),
];

const HOST: &[Key] = &[
    key("address", Text, "the host's name", "A name, an address, or `https://…`"),
    key("port", Count, "7717", "Where its gateway listens"),
    key("token", Text, "", "What to show there: the token of one of its callers"),
];

const POLICY: &[Key] = &[
    key("allow", Texts, "[\"*\"]", "Patterns `SERVER.NAME`; nothing else is there"),
    key("deny", Texts, "[]", "Not even these are; layers add up"),
    key("ask", Texts, "[]", "These are asked about first; layers add up"),
    key("quota", Table(QUOTA), "", "So many calls in a time, of each caller"),
    key("rate", Table(RATE), "", "So many calls in a short time"),
    key("limits", Named(SHARES), "", "The same for what fits a pattern"),
];

const PROFILE: &[Key] = &[
    key("servers", Texts, "", "The servers in it; with neither this nor `tags`, all of them"),
    key("tags", Texts, "", "Every server that has one of these in its `when` is in it, too"),
    key("allow", Texts, "[\"*\"]", "Nothing else is in it"),
    key("deny", Texts, "[]", "Not even these are"),
    key("ask", Texts, "[]", "These are asked about first"),
    key("expose", Words(&["auto", "all"]), "auto", "How its tools are listed"),
];

const CALLER: &[Key] = &[
    key("token", Text, "", "What it shows"),
    key("token-sha256", Text, "", "The SHA-256 of that, instead"),
    key("admin", Flag, "false", "Whether it may use `/api/v1`"),
    key("profile", Text, "", "All that it sees"),
    key("allow", Texts, "[\"*\"]", "Nothing else is there for it"),
    key("deny", Texts, "[]", "Not even these are"),
    key("ask", Texts, "[]", "These are asked about first"),
    key("quota", Table(QUOTA), "", "So many calls in a time"),
    key("rate", Table(RATE), "", "So many calls in a short time"),
    key("limits", Named(SHARES), "", "The same for what fits a pattern"),
];

const SECRETS: &[Key] = &[
    key(
        "backend",
        Words(&["auto", "keyring", "file", "env", "command"]),
        "auto",
        "`auto`: the keyring of the desktop if there is one, else an encrypted file",
    ),
    key("env-prefix", Text, "TOOLCRIB_SECRET_", "With `env`: what the variables begin with"),
    key("command", Texts, "", "With `command`: what prints the secret `{name}`"),
];

const SHARES: &[Key] = &[
    key("quota", Table(QUOTA), "", "So many calls in a time"),
    key("rate", Table(RATE), "", "So many calls in a short time"),
];

const QUOTA: &[Key] = &[key("calls", Count, "", "So many"), key("per", Duration, "", "In this time")];

const RATE: &[Key] = &[
    key("calls", Count, "", "So many"),
    key("per", Duration, "", "In this time"),
    key("wait", Duration, "", "How long a call may wait for its turn"),
];

const HOST_LIMITS: &[Key] = &[
    key("servers-running", Count, "32", "The longest idle make room for others"),
    key("memory", Size, "", "Of all servers together"),
    key("body", Size, "32MiB", "The largest request"),
    key("sessions", Count, "10000", "Open at the same time"),
    key("drain", Duration, "10s", "How long a stop waits for calls in flight"),
    key("call-timeout-max", Duration, "", "The most that any call of any server may take"),
    key("identical-calls", Count, "", "The same call again and again is refused after so many"),
    key("results", Size, "", "What results may hold in all"),
    key("cache", Size, "32MiB", "What kept results may take"),
];

const LISTEN: &[Key] = &[key("hosts", Texts, "[]", "Names besides its own address and `localhost`")];
