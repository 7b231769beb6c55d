//! Renders a server as an entry in an agent's config file. Settings that the agent cannot express are omitted with a
//! warning. Secret values are never written, only references to them.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};
use toolcrib::util::maps::collect_map;
use toolcrib::{
    CommandSpec, Endpoint, HttpSpec, Rule, Rules, ServerLimits, ServerSpec, TemplatePiece, TemplateText,
    TransportKind,
};

use crate::agents::{
    Agent, AllowKey, EntryFormat, InheritedEnvironment, RemoteFormat, SseSupport, TimeUnit, TimeoutKey,
    VariableSyntax,
};
use crate::edit::entry::EntryMembers;
use crate::secret_heuristics;

/// The reason to omit a value that looks like a secret. Continues a sentence that starts with the agent's name.
const LITERAL_SECRET: &str =
    "would get a secret in its file; replace the value with a reference such as `${env:…}`";

/// Returns the reason to omit a value that refers to a stored secret.
fn unreadable_secret(secret: &str) -> String {
    format!("cannot read the secret `{secret}`; export without `--expand` to use it")
}

/// A server as an entry for an agent.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedEntry {
    /// Members of the entry; `None` if the agent cannot use the server at all.
    pub members: Option<EntryMembers>,
    /// Omitted settings, one sentence each.
    pub warnings: Vec<String>,
}

/// Renders a server for an agent.
pub fn render_entry(agent: &Agent, spec: &ServerSpec, rules: Option<&Rules>) -> RenderedEntry {
    let mut writer = EntryWriter {
        agent,
        format: &agent.entry_format,
        server: spec.id.as_str(),
        members: Vec::new(),
        passthrough: Vec::new(),
        warnings: Vec::new(),
    };
    if !spec.enabled && agent.entry_format.disable_key.is_none() {
        writer.warn_server_omitted("cannot disable a server");
        return RenderedEntry { members: None, warnings: writer.warnings };
    }
    let rendered = match &spec.endpoint {
        Endpoint::Command(command) => writer.write_command(command),
        Endpoint::Http(http) => writer.write_remote(http),
        _ => None,
    };
    if rendered.is_some() {
        writer.write_common_members(spec, rules);
    }
    RenderedEntry { members: rendered.map(|()| writer.members), warnings: writer.warnings }
}

/// Returns the variables, program and arguments of a stdio entry as words of a command line.
pub fn command_words(agent: &Agent, entry: &EntryMembers) -> Vec<String> {
    let find = |key: &str| entry.iter().find(|(member, _)| member == key).map(|(_, value)| value);
    let variables = find(agent.entry_format.env_key).and_then(Json::as_object).into_iter().flatten();
    let assignment =
        |(name, value): (&String, &Json)| format!("{name}={}", value.as_str().unwrap_or_default());
    let program = find(agent.entry_format.command_key);
    let args = find("args").and_then(Json::as_array).into_iter().flatten();
    let command = program.into_iter().chain(args).filter_map(Json::as_str).map(str::to_owned);
    variables.map(assignment).chain(command).collect()
}

struct EntryWriter<'a> {
    agent: &'a Agent,
    format: &'a EntryFormat,
    server: &'a str,
    members: EntryMembers,
    /// Names of variables that are passed through.
    passthrough: Vec<String>,
    warnings: Vec<String>,
}

impl EntryWriter<'_> {
    fn push_member(&mut self, key: &str, value: impl Into<Json>) {
        self.members.push((key.to_owned(), value.into()));
    }

    /// Adds a warning for an omitted setting. `reason` continues a sentence that starts with the agent's name.
    fn warn_omitted(&mut self, field: &str, reason: &str) {
        self.warnings.push(format!("`{}`: `{field}` is omitted: {} {reason}", self.server, self.agent.name));
    }

    /// Adds a warning for an omitted server.
    fn warn_server_omitted(&mut self, reason: &str) {
        self.warnings.push(format!("`{}` is omitted: {} {reason}", self.server, self.agent.name));
    }

    fn write_command(&mut self, command: &CommandSpec) -> Option<()> {
        let format = self.format;
        let argv: Result<Vec<Json>, String> = std::iter::once(&command.program)
            .chain(&command.args)
            .map(|text| self.render_in_command(text).map(Json::from))
            .collect();
        let mut argv = match argv {
            Ok(argv) => argv,
            Err(reason) => {
                self.warn_server_omitted(&reason);
                return None;
            }
        };
        if let Some(stdio_type) = format.stdio_type {
            self.push_member("type", stdio_type);
        }
        if format.command_is_argv {
            self.push_member(format.command_key, argv);
        } else {
            self.push_member(format.command_key, argv.remove(0));
            self.push_member("args", argv);
        }
        self.write_environment(command);
        match (format.cwd_key, &command.cwd) {
            (Some(key), Some(cwd)) => self.push_member(key, cwd.display().to_string()),
            (None, Some(_)) => self.warn_omitted("cwd", "has no setting for it"),
            (_, None) => {}
        }
        Some(())
    }

    fn write_environment(&mut self, command: &CommandSpec) {
        let format = self.format;
        let mut env: Map<String, Json> = Map::new();
        for (name, text) in &command.env {
            if let Some(value) = self.render_variable(name, text) {
                env.insert(name.clone(), value.into());
            }
        }
        for name in &command.inherit_env {
            match format.inherited_environment {
                InheritedEnvironment::Listed => self.passthrough.push(name.clone()),
                InheritedEnvironment::Filtered if secret_heuristics::is_secret_name(name) => {
                    let reference =
                        || TemplateText::parse(&format!("${{env:{name}}}"), std::path::Path::new("/")).ok();
                    let value = reference().and_then(|text| render_template(format.variable_syntax, &text));
                    env.extend(value.map(|value| (name.clone(), value.into())));
                }
                InheritedEnvironment::Filtered | InheritedEnvironment::All => {}
            }
        }
        if !env.is_empty() {
            self.push_member(format.env_key, env);
        }
    }

    /// Renders the value of a variable; `None` if it is passed through or omitted.
    fn render_variable(&mut self, name: &str, text: &TemplateText) -> Option<String> {
        let field = format!("env.{name}");
        if self.format.passthrough_key.is_some() && sole_variable(text) == Some(name) {
            self.passthrough.push(name.to_owned());
            return None;
        }
        if self.withhold_secret(&field, name, text) {
            return None;
        }
        let syntax = if self.format.variable_syntax == VariableSyntax::HeadersOnly && !is_literal(text) {
            VariableSyntax::None
        } else {
            self.format.variable_syntax
        };
        let value = render_template(syntax, text);
        if value.is_none() {
            self.warn_omitted(&field, "cannot express the reference in its value");
        }
        value
    }

    /// Returns whether a value refers to a stored secret or looks like one, and adds a warning if so.
    fn withhold_secret(&mut self, field: &str, name: &str, text: &TemplateText) -> bool {
        if let Some(secret) = text.secrets().next() {
            let reason = unreadable_secret(secret);
            self.warn_omitted(field, &reason);
            return true;
        }
        let literals: String = text
            .pieces()
            .map(|piece| if let TemplatePiece::Literal(text) = piece { text } else { "" })
            .collect();
        let is_secret = secret_heuristics::is_secret_value(&literals)
            || (is_literal(text) && secret_heuristics::is_secret_name(name) && !literals.is_empty());
        if is_secret {
            self.warn_omitted(field, LITERAL_SECRET);
        }
        is_secret
    }

    /// Renders a program, an argument or a URL.
    ///
    /// # Errors
    /// Returns the reason if the text has a secret or the agent cannot express it. It continues a sentence that starts with
    /// the agent's name.
    fn render_in_command(&self, text: &TemplateText) -> Result<String, String> {
        if let Some(secret) = text.secrets().next() {
            return Err(unreadable_secret(secret));
        }
        if is_literal(text) {
            let mut parts = text.source().split(['=', '?', '&']).chain([text.source()]);
            return match parts.any(secret_heuristics::is_secret_value) {
                true => Err(LITERAL_SECRET.to_owned()),
                false => Ok(text.source().to_owned()),
            };
        }
        let expands =
            self.format.expands_in_commands && self.format.variable_syntax != VariableSyntax::HeadersOnly;
        let rendered = expands.then(|| render_template(self.format.variable_syntax, text)).flatten();
        rendered.ok_or_else(|| format!("cannot express the reference in `{}`", text.source()))
    }

    fn write_remote(&mut self, http: &HttpSpec) -> Option<()> {
        let Some(remote) = self.format.remote else {
            self.warn_server_omitted("supports only stdio servers");
            return None;
        };
        let (transport_type, url_key) = match (http.transport, remote.sse) {
            (TransportKind::Sse, SseSupport::Unsupported) => {
                self.warn_server_omitted("does not support HTTP+SSE");
                return None;
            }
            (TransportKind::Sse, SseSupport::Type { value, url_key }) => (Some(value), url_key),
            (_, _) => (remote.http_type, remote.url_key),
        };
        let url = match self.render_in_command(&http.url) {
            Ok(url) => url,
            Err(reason) => {
                self.warn_server_omitted(&reason);
                return None;
            }
        };
        if let Some(transport_type) = transport_type {
            self.push_member("type", transport_type);
        }
        self.push_member(url_key, url);
        self.write_headers(http, remote);
        Some(())
    }

    fn write_headers(&mut self, http: &HttpSpec, remote: RemoteFormat) {
        let mut written = BTreeMap::new();
        let mut from_env = Map::new();
        for (name, text) in &http.headers {
            let field = format!("headers.{name}");
            match (remote.env_headers, header_variable(name, text)) {
                (Some(keys), Some(HeaderVariable::BearerToken(variable))) => {
                    self.push_member(keys.bearer_token, variable);
                }
                (Some(_), Some(HeaderVariable::Value(variable))) => {
                    from_env.insert(name.clone(), variable.into());
                }
                _ if remote.headers_key.is_none() => self.warn_omitted(&field, "has no setting for it"),
                _ if self.withhold_secret(&field, name, text) => {}
                _ => match render_template(self.format.variable_syntax, text) {
                    Some(value) => {
                        self.pass_through_variables(text);
                        written.insert(name.clone(), value);
                    }
                    None => self.warn_omitted(&field, "cannot express the reference in its value"),
                },
            }
        }
        if let (Some(key), false) = (remote.headers_key, written.is_empty()) {
            let headers: Map<String, Json> =
                collect_map(written.into_iter().map(|(key, value)| (key, value.into())));
            match key.split_once('.') {
                Some((outer, inner)) => {
                    self.push_member(outer, Map::from_iter([(inner.to_owned(), Json::Object(headers))]));
                }
                None => self.push_member(key, headers),
            }
        }
        if let (Some(keys), false) = (remote.env_headers, from_env.is_empty()) {
            self.push_member(keys.headers, from_env);
        }
    }

    /// Passes through the variables of a header where the agent only resolves those.
    fn pass_through_variables(&mut self, text: &TemplateText) {
        if self.format.variable_syntax == VariableSyntax::HeadersOnly {
            let names = text.pieces().filter_map(|piece| match piece {
                TemplatePiece::Env { name, .. } => Some(name.to_owned()),
                _ => None,
            });
            self.passthrough.extend(names);
        }
    }

    fn write_common_members(&mut self, spec: &ServerSpec, rules: Option<&Rules>) {
        let format = self.format;
        if let Some(key) = format.passthrough_key {
            self.passthrough.sort();
            self.passthrough.dedup();
            if !self.passthrough.is_empty() {
                let names = std::mem::take(&mut self.passthrough);
                self.push_member(key, names);
            }
        }
        match format.disable_key {
            Some(disable) if disable.always_written || !spec.enabled => {
                self.push_member(disable.key, spec.enabled == disable.enabled_value);
            }
            _ => {}
        }
        let timeout = spec.limits.call_timeout;
        if timeout != ServerLimits::default().call_timeout {
            match format.timeout_key {
                Some(TimeoutKey { key, unit: TimeUnit::Milliseconds }) => {
                    self.push_member(key, u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
                }
                Some(TimeoutKey { key, unit: TimeUnit::Seconds }) => {
                    self.push_member(key, timeout.as_secs().max(1));
                }
                None => self.warn_omitted("limits.call-timeout", "has no setting for it"),
            }
        }
        self.write_tool_rules(rules);
        for (key, value) in format.fixed_members {
            self.push_member(key, if *value == "$name" { self.server } else { value });
        }
    }

    fn write_tool_rules(&mut self, rules: Option<&Rules>) {
        let format = self.format;
        let allow = rules.and_then(|rules| rules.allow.as_ref());
        let allows_all = allow.is_none_or(|list| list.rules.iter().any(|rule| rule.to_string() == "*"));
        match (format.allow_key, allow.filter(|_| !allows_all).map(|list| tool_names(&list.rules))) {
            (Some(AllowKey { key, needs_wildcard: true }), None) => self.push_member(key, vec!["*"]),
            (_, None) => {}
            (Some(allow_key), Some(Some(names))) => self.push_member(allow_key.key, names),
            (Some(_), Some(None)) => self.warn_omitted("tools.allow", "does not support patterns"),
            (None, Some(_)) => self.warn_omitted("tools.allow", "has no setting for it"),
        }
        let deny = rules.map(|rules| &rules.deny[..]).filter(|deny| !deny.is_empty());
        match (format.deny_key, deny.map(tool_names)) {
            (_, None) => {}
            (Some(key), Some(Some(names))) => self.push_member(key, names),
            (Some(_), Some(None)) => self.warn_omitted("tools.deny", "does not support patterns"),
            (None, Some(_)) => self.warn_omitted("tools.deny", "has no setting for it"),
        }
    }
}

/// Returns the tool names of rules; `None` if one of them is a pattern.
fn tool_names(rules: &[Rule]) -> Option<Vec<Json>> {
    let name = |rule: &Rule| Some(rule.to_string()).filter(|name| !name.contains('*')).map(Json::from);
    rules.iter().map(name).collect()
}

/// Returns whether a text has no references.
fn is_literal(text: &TemplateText) -> bool {
    text.pieces().all(|piece| matches!(piece, TemplatePiece::Literal(_)))
}

/// Returns the variable of a text that is exactly one reference without a default.
fn sole_variable(text: &TemplateText) -> Option<&str> {
    let mut pieces = text.pieces();
    match (pieces.next(), pieces.next()) {
        (Some(TemplatePiece::Env { name, default: None }), None) => Some(name),
        _ => None,
    }
}

/// A variable that a header takes its value from.
enum HeaderVariable {
    /// The variable holds the whole value.
    Value(String),
    /// The variable holds the bearer token of an `Authorization` header.
    BearerToken(String),
}

/// Returns the variable that a header takes its value from.
fn header_variable(name: &str, text: &TemplateText) -> Option<HeaderVariable> {
    let mut pieces = text.pieces();
    match (pieces.next(), pieces.next(), pieces.next()) {
        (Some(TemplatePiece::Env { name, default: None }), None, None) => {
            Some(HeaderVariable::Value(name.to_owned()))
        }
        (
            Some(TemplatePiece::Literal("Bearer ")),
            Some(TemplatePiece::Env { name: variable, default: None }),
            None,
        ) if name.eq_ignore_ascii_case("authorization") => {
            Some(HeaderVariable::BearerToken(variable.to_owned()))
        }
        _ => None,
    }
}

/// Renders a text with references in an agent's syntax; `None` if the syntax cannot express one of them.
fn render_template(syntax: VariableSyntax, text: &TemplateText) -> Option<String> {
    text.pieces().map(|piece| render_piece(syntax, piece)).collect()
}

fn render_piece(syntax: VariableSyntax, piece: TemplatePiece<'_>) -> Option<String> {
    Some(match (syntax, piece) {
        (_, TemplatePiece::Literal(text)) => text.to_owned(),
        (
            VariableSyntax::Shell { .. } | VariableSyntax::Env { defaults: true, .. },
            TemplatePiece::Env { name, default: Some(default) },
        ) => {
            format!("${{{name}:-{default}}}")
        }
        (
            VariableSyntax::Shell { .. } | VariableSyntax::Braces | VariableSyntax::HeadersOnly,
            TemplatePiece::Env { name, default: None },
        ) => {
            format!("${{{name}}}")
        }
        (VariableSyntax::Dollar, TemplatePiece::Env { name, default: None }) => format!("${name}"),
        (VariableSyntax::Env { .. }, TemplatePiece::Env { name, default: None }) => {
            format!("${{env:{name}}}")
        }
        (VariableSyntax::Env { files: true, .. }, TemplatePiece::File(path)) => {
            format!("${{file:{}}}", path.display())
        }
        (VariableSyntax::Opencode, TemplatePiece::Env { name, default: None }) => format!("{{env:{name}}}"),
        (VariableSyntax::Opencode, TemplatePiece::File(path)) => format!("{{file:{}}}", path.display()),
        (VariableSyntax::Secrets, TemplatePiece::Env { name, default: None }) => {
            format!("${{{{ secrets.{name} }}}}")
        }
        _ => return None,
    })
}
