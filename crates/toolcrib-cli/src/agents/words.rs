//! Words that several agents share: what their rows differ from.

use super::{Agent, Environment, Events, Layout, References, Remote, Session, Switch, Unit, Words, schemas};
use crate::edit::entry::Language;
use crate::edit::jsonc::Manner;

/// JSON without comments.
pub(super) const STRICT: Language = Language::Json(Manner::Strict);
/// JSON with comments.
pub(super) const RELAXED: Language = Language::Json(Manner::Relaxed);
/// Where most keep their servers.
pub(super) const SERVERS: &[&str] = &["mcpServers"];

/// HTTP+SSE by its usual name.
pub(super) const SSE: Events = Events::Type("sse", "url");

/// `url` and `headers`, HTTP without a word.
pub(super) const REMOTE: Remote =
    Remote { http: None, url: "url", headers: Some("headers"), events: SSE, by_name: None };

/// `command`, `args` and `env`, as most have it.
pub(super) const PLAIN: Words = Words {
    stdio: None,
    command: "command",
    argv: false,
    env: "env",
    passed: None,
    cwd: None,
    remote: Some(REMOTE),
    switch: None,
    timeout: None,
    allow: None,
    deny: None,
    references: References::None,
    everywhere: true,
    environment: Environment::Whole,
    besides: &[],
};

/// As Gemini CLI and what came of it have it.
pub(super) const GEMINI: Words = Words {
    cwd: Some("cwd"),
    remote: Some(Remote { http: Some("http"), ..REMOTE }),
    timeout: Some(("timeout", Unit::Milliseconds)),
    allow: Some(("includeTools", false)),
    deny: Some("excludeTools"),
    references: References::Shell { bare: true },
    environment: Environment::Screened,
    ..PLAIN
};

/// The two ways to say that a server is off.
pub(super) const DISABLED: Switch = Switch { key: "disabled", on: false, always: false };
pub(super) const ENABLED: Switch = Switch { key: "enabled", on: true, always: false };

/// What rows have in common.
pub(super) const ROW: Agent = Agent {
    id: "",
    name: "",
    sign: "",
    user: &[],
    project: &[],
    also: &[],
    language: RELAXED,
    at: SERVERS,
    layout: Layout::Named,
    brittle: false,
    words: PLAIN,
    schema: schemas::PLAIN,
    next: "restart it",
    next_in_project: "open the project in it anew, and say yes if it asks whether the folder is to be trusted",
    session: Session::None,
};
