//! A server in the words of an agent. What the agent has no word for is left out and named; a secret's value is never
//! written, only a reference to it in the agent's own way.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};
use toolcrib::policy::Rules;
use toolcrib::spec::{CommandSpec, Endpoint, HttpSpec, Limits, ServerSpec, Transport};
use toolcrib::text::{Piece, Text};

use crate::agents::{Agent, Environment, Events, References, Remote, Unit, Words};
use crate::edit::entry::Members;
use crate::secrecy;

/// A server as an agent reads it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rendered {
    /// Its entry; absent if the agent cannot have it at all.
    pub(crate) members: Option<Members>,
    /// What the agent cannot be told, one sentence each.
    pub(crate) warnings: Vec<String>,
}

/// Writes a server in an agent's words.
pub(crate) fn entry(agent: &Agent, spec: &ServerSpec, rules: Option<&Rules>) -> Rendered {
    let mut writer = Writer {
        agent,
        words: &agent.words,
        server: spec.id.as_str(),
        members: Vec::new(),
        passed: Vec::new(),
        warnings: Vec::new(),
    };
    if !spec.enabled && agent.words.switch.is_none() {
        writer.refuse("has no word for a server that is off");
        return Rendered { members: None, warnings: writer.warnings };
    }
    let written = match &spec.endpoint {
        Endpoint::Command(command) => writer.command(command),
        Endpoint::Http(http) => writer.remote(http),
        Endpoint::InProcess(_) => None,
    };
    if written.is_some() {
        writer.care(spec, rules);
    }
    Rendered { members: written.map(|()| writer.members), warnings: writer.warnings }
}

struct Writer<'a> {
    agent: &'a Agent,
    words: &'a Words,
    server: &'a str,
    members: Members,
    /// Variables that are passed on by name.
    passed: Vec<String>,
    warnings: Vec<String>,
}

impl Writer<'_> {
    fn set(&mut self, key: &str, value: impl Into<Json>) {
        self.members.push((key.to_owned(), value.into()));
    }

    fn warn(&mut self, field: &str, why: &str) {
        let (server, agent) = (self.server, self.agent.name);
        self.warnings.push(format!("`{server}`: `{field}` is left out, {agent} {why}"));
    }

    /// The whole server is left out.
    fn refuse(&mut self, why: &str) {
        let (server, agent) = (self.server, self.agent.name);
        self.warnings.push(format!("`{server}` is left out, {agent} {why}"));
    }

    fn command(&mut self, command: &CommandSpec) -> Option<()> {
        let words = self.words;
        let argv: Option<Vec<Json>> = std::iter::once(&command.program)
            .chain(&command.args)
            .map(|text| self.in_command(text).map(Json::from))
            .collect();
        let Some(mut argv) = argv else {
            self.refuse("cannot be told what its command refers to");
            return None;
        };
        if let Some(word) = words.stdio {
            self.set("type", word);
        }
        if words.argv {
            self.set(words.command, argv);
        } else {
            self.set(words.command, argv.remove(0));
            self.set("args", argv);
        }
        self.environment(command);
        match (words.cwd, &command.cwd) {
            (Some(key), Some(cwd)) => self.set(key, cwd.display().to_string()),
            (None, Some(_)) => self.warn("cwd", "has no word for it"),
            (_, None) => {}
        }
        Some(())
    }

    fn environment(&mut self, command: &CommandSpec) {
        let words = self.words;
        let mut env: Map<String, Json> = Map::new();
        for (name, text) in &command.env {
            if let Some(value) = self.variable(name, text) {
                env.insert(name.clone(), value.into());
            }
        }
        for name in &command.inherit_env {
            match words.environment {
                Environment::Named => self.passed.push(name.clone()),
                Environment::Screened if secrecy::in_name(name) => {
                    let own = || Text::parse(&format!("${{env:{name}}}"), std::path::Path::new("/")).ok();
                    let value = own().and_then(|text| spoken(words.references, &text));
                    env.extend(value.map(|value| (name.clone(), value.into())));
                }
                Environment::Screened | Environment::Whole => {}
            }
        }
        if !env.is_empty() {
            self.set(words.env, env);
        }
    }

    /// The value of a variable; none where its name says it all, or nothing may be said.
    fn variable(&mut self, name: &str, text: &Text) -> Option<String> {
        let field = format!("env.{name}");
        if self.words.passed.is_some() && own_name(text) == Some(name) {
            self.passed.push(name.to_owned());
            return None;
        }
        if self.withheld(&field, name, text) {
            return None;
        }
        let literal = text.pieces().all(|piece| matches!(piece, Piece::Literal(_)));
        let style = if self.words.references == References::Headers && !literal {
            References::None
        } else {
            self.words.references
        };
        let value = spoken(style, text);
        if value.is_none() {
            self.warn(&field, "cannot be told where its value is");
        }
        value
    }

    /// Whether a value is a secret: one that somebody wrote out, which is theirs to move, or one that we keep.
    fn withheld(&mut self, field: &str, name: &str, text: &Text) -> bool {
        if let Some(secret) = text.secrets().next() {
            let why = format!("cannot be given the secret `{secret}`: without `--expand` it needs none");
            self.warn(field, &why);
            return true;
        }
        let literal: String =
            text.pieces().map(|piece| if let Piece::Literal(text) = piece { text } else { "" }).collect();
        let whole = text.pieces().all(|piece| matches!(piece, Piece::Literal(_)));
        let secret = secrecy::in_value(&literal) || (whole && secrecy::in_name(name) && !literal.is_empty());
        if secret {
            self.warn(
                field,
                "would have a secret in its file: write a reference such as `${env:…}` instead of the value",
            );
        }
        secret
    }

    fn in_command(&self, text: &Text) -> Option<String> {
        let plain = text.pieces().all(|piece| matches!(piece, Piece::Literal(_)));
        match (plain, self.words.everywhere && self.words.references != References::Headers) {
            (true, _) if secrecy::in_value(text.written()) => None,
            (true, _) => Some(text.written().to_owned()),
            (false, true) => spoken(self.words.references, text),
            (false, false) => None,
        }
    }

    fn remote(&mut self, http: &HttpSpec) -> Option<()> {
        let Some(remote) = self.words.remote else {
            self.refuse("starts commands only");
            return None;
        };
        let (word, key) = match (http.transport, remote.events) {
            (Transport::Events, Events::Unknown) => {
                self.refuse("does not speak HTTP+SSE");
                return None;
            }
            (Transport::Events, Events::Type(word, key)) => (Some(word), key),
            (_, _) => (remote.http, remote.url),
        };
        let Some(url) = self.in_command(&http.url) else {
            self.refuse("cannot be told what its address refers to");
            return None;
        };
        if let Some(word) = word {
            self.set("type", word);
        }
        self.set(key, url);
        self.headers(http, remote);
        Some(())
    }

    fn headers(&mut self, http: &HttpSpec, remote: Remote) {
        let (mut written, mut by_name) = (BTreeMap::new(), Map::new());
        for (name, text) in &http.headers {
            let field = format!("headers.{name}");
            match (remote.by_name, header_variable(name, text)) {
                (Some((bearer, _)), Some((true, variable))) => self.set(bearer, variable),
                (Some(_), Some((false, variable))) => {
                    by_name.insert(name.clone(), variable.into());
                }
                _ if remote.headers.is_none() => self.warn(&field, "has no word for it"),
                _ if self.withheld(&field, name, text) => {}
                _ => match spoken(self.words.references, text) {
                    Some(value) => {
                        self.passed_in(text);
                        written.insert(name.clone(), value);
                    }
                    None => self.warn(&field, "cannot be told where its value is"),
                },
            }
        }
        if let (Some(key), false) = (remote.headers, written.is_empty()) {
            let headers: Map<String, Json> =
                written.into_iter().map(|(key, value)| (key, value.into())).collect();
            match key.split_once('.') {
                Some((outer, inner)) => {
                    self.set(outer, Map::from_iter([(inner.to_owned(), Json::Object(headers))]));
                }
                None => self.set(key, headers),
            }
        }
        if let (Some((_, key)), false) = (remote.by_name, by_name.is_empty()) {
            self.set(key, by_name);
        }
    }

    /// A reference in a header stands for a variable that must be passed on.
    fn passed_in(&mut self, text: &Text) {
        if self.words.references == References::Headers {
            let names = text.pieces().filter_map(|piece| match piece {
                Piece::Env { name, .. } => Some(name.to_owned()),
                _ => None,
            });
            self.passed.extend(names);
        }
    }

    fn care(&mut self, spec: &ServerSpec, rules: Option<&Rules>) {
        let words = self.words;
        if let Some(key) = words.passed {
            self.passed.sort();
            self.passed.dedup();
            if !self.passed.is_empty() {
                let passed = std::mem::take(&mut self.passed);
                self.set(key, passed);
            }
        }
        match words.switch {
            Some(switch) if switch.always || !spec.enabled => self.set(switch.key, spec.enabled == switch.on),
            _ => {}
        }
        if spec.limits.call_timeout != Limits::default().call_timeout {
            let limit = spec.limits.call_timeout;
            match words.timeout {
                Some((key, Unit::Milliseconds)) => {
                    self.set(key, u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
                }
                Some((key, Unit::Seconds)) => self.set(key, limit.as_secs().max(1)),
                None => self.warn("limits.call-timeout", "has no word for it"),
            }
        }
        self.tools(rules);
        for (key, value) in words.besides {
            self.set(key, if *value == "$name" { self.server } else { value });
        }
    }

    fn tools(&mut self, rules: Option<&Rules>) {
        let words = self.words;
        let names = |rules: &[toolcrib::policy::Rule]| -> Option<Vec<Json>> {
            rules
                .iter()
                .map(|rule| Some(rule.to_string()).filter(|name| !name.contains('*')).map(Json::from))
                .collect()
        };
        let allow = rules.and_then(|rules| rules.allow.as_ref());
        let all = allow.is_none_or(|list| list.rules.iter().any(|rule| rule.to_string() == "*"));
        match (words.allow, allow.filter(|_| !all).map(|list| names(&list.rules))) {
            (Some((key, true)), None) => self.set(key, vec!["*"]),
            (_, None) => {}
            (Some((key, _)), Some(Some(names))) => self.set(key, names),
            (Some(_), Some(None)) => self.warn("tools.allow", "knows no patterns"),
            (None, Some(_)) => self.warn("tools.allow", "has no word for it"),
        }
        let deny = rules.map(|rules| &rules.deny[..]).filter(|deny| !deny.is_empty());
        match (words.deny, deny.map(names)) {
            (_, None) => {}
            (Some(key), Some(Some(names))) => self.set(key, names),
            (Some(_), Some(None)) => self.warn("tools.deny", "knows no patterns"),
            (None, Some(_)) => self.warn("tools.deny", "has no word for it"),
        }
    }
}

/// The variable that a text is the value of, as it is.
fn own_name(text: &Text) -> Option<&str> {
    let mut pieces = text.pieces();
    match (pieces.next(), pieces.next()) {
        (Some(Piece::Env { name, default: None }), None) => Some(name),
        _ => None,
    }
}

/// The variable behind a header, and whether it is a bearer token.
fn header_variable(name: &str, text: &Text) -> Option<(bool, String)> {
    let mut pieces = text.pieces();
    match (pieces.next(), pieces.next(), pieces.next()) {
        (Some(Piece::Env { name, default: None }), None, None) => Some((false, name.to_owned())),
        (Some(Piece::Literal("Bearer ")), Some(Piece::Env { name: variable, default: None }), None)
            if name.eq_ignore_ascii_case("authorization") =>
        {
            Some((true, variable.to_owned()))
        }
        _ => None,
    }
}

/// A text with its references in an agent's way; `None` if it has none for one of them.
fn spoken(references: References, text: &Text) -> Option<String> {
    text.pieces().map(|piece| reference(references, piece)).collect()
}

fn reference(references: References, piece: Piece<'_>) -> Option<String> {
    Some(match (references, piece) {
        (_, Piece::Literal(text)) => text.to_owned(),
        (
            References::Shell { .. } | References::Env { defaults: true, .. },
            Piece::Env { name, default: Some(default) },
        ) => {
            format!("${{{name}:-{default}}}")
        }
        (
            References::Shell { .. } | References::Braces | References::Headers,
            Piece::Env { name, default: None },
        ) => {
            format!("${{{name}}}")
        }
        (References::Dollar, Piece::Env { name, default: None }) => format!("${name}"),
        (References::Env { .. }, Piece::Env { name, default: None }) => format!("${{env:{name}}}"),
        (References::Env { files: true, .. }, Piece::File(path)) => format!("${{file:{}}}", path.display()),
        (References::Opencode, Piece::Env { name, default: None }) => format!("{{env:{name}}}"),
        (References::Opencode, Piece::File(path)) => format!("{{file:{}}}", path.display()),
        (References::Secrets, Piece::Env { name, default: None }) => format!("${{{{ secrets.{name} }}}}"),
        _ => return None,
    })
}
