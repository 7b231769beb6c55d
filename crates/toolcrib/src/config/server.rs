//! Reads the table of one server. TOML and JSON have the same keys with the same meaning; JSON adds `disabled`, and keys
//! of other programs are noted instead of rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::card;
use super::forward;
use super::hosts::{self, RunLocation};
use super::lifecycle::LifecycleSettings;
use super::reader::TableReader;
use super::remote;
use super::root::ServerParseContext;
use super::scope::ActiveTags;
use super::when::TagCondition;
use crate::access::policy::Rules;
use crate::protocol::versions::{Era, Revision};
use crate::spec::public_name::{MAX_LENGTH, SEPARATOR, public_name};
use crate::spec::template::TemplateText;
use crate::spec::{CommandSpec, Endpoint, EraChoice, ServerCard, ServerId, ServerSpec};

/// The contents of a server's table.
pub(super) struct ServerTable {
    enabled: bool,
    /// Place of `enabled` or `disabled`, as `FILE:LINE`.
    disabled_at: String,
    when: Option<TagCondition>,
    /// Explanation of `run-on`, if it is set.
    run_on_reason: Option<String>,
    missing_gateway: Option<u16>,
    endpoint: Endpoint,
    era: EraChoice,
    settings: LifecycleSettings,
    card: Option<ServerCard>,
}

/// State of a server, on or off, with the reason.
pub(super) struct Activation {
    pub(super) active: bool,
    pub(super) reason: String,
}

impl ServerTable {
    /// Returns its access rules.
    pub(super) fn rules(&self) -> &Rules {
        &self.settings.rules
    }

    /// Returns whether it is not disabled with `enabled = false`.
    pub(super) fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Returns the port of this host's gateway, if that gateway runs the server and does not answer.
    pub(super) fn missing_gateway(&self) -> Option<u16> {
        self.missing_gateway
    }

    pub(super) fn when(&self) -> Option<&TagCondition> {
        self.when.as_ref()
    }

    /// Returns whether it is on with these active tags.
    pub(super) fn activation(&self, tags: &ActiveTags) -> Activation {
        if !self.enabled {
            return Activation { active: false, reason: format!("off: disabled in {}", self.disabled_at) };
        }
        let reason = match self.when.as_ref().map(|when| when.evaluate(tags)) {
            Some(Err(why)) => return Activation { active: false, reason: format!("off here: {why}") },
            Some(Ok(why)) => why,
            None => "always, because it has no `when`".to_owned(),
        };
        let reason = match &self.run_on_reason {
            Some(run_on) => format!("on: {reason}; {run_on}"),
            None => format!("on: {reason}"),
        };
        Activation { active: true, reason }
    }

    /// Returns the spec of a server with this name.
    pub(super) fn into_spec(self, id: ServerId) -> ServerSpec {
        let settings = self.settings;
        ServerSpec {
            id,
            enabled: self.enabled,
            endpoint: self.endpoint,
            era: self.era,
            lifecycle: settings.effective_lifecycle(),
            limits: settings.limits,
            tools: settings.tools,
            trust: settings.trust,
            pin: settings.pin,
            sharing: settings.sharing,
            card: self.card,
        }
    }
}

/// Reads the table of a server. The result is valid only if no problem was reported meanwhile.
pub(super) fn read(
    mut reader: TableReader<'_>,
    name: &str,
    context: &ServerParseContext<'_>,
) -> Option<ServerTable> {
    let json = reader.source().json;
    let mut settings = context.defaults.clone().overlay(&mut reader);
    check_renames(&mut reader, name, &settings);
    let remote = remote::read(&mut reader);
    if let Some(Some(http)) = &remote {
        settings.sharing = forward::check_sharing(&mut reader, &http.forward, settings.sharing);
        settings.check_start(&mut reader);
    }
    if remote.is_some() {
        LifecycleSettings::reject_memory_limit(&mut reader);
    }
    let program = if remote.is_some() { None } else { read_program(&mut reader, name) };
    let args = read_args(&mut reader);
    let env = read_env(&mut reader);
    let cwd = read_cwd(&mut reader);
    let era = reader.choice("era", &era_choices()).unwrap_or(EraChoice::Auto);
    let mut enabled = reader.boolean("enabled").unwrap_or(true);
    if json {
        enabled &= !reader.boolean("disabled").unwrap_or(false);
    }
    let disabled_at = find_enabled_key(&reader);
    let when = TagCondition::read(&mut reader, name, context.tags);
    let run_on = hosts::read_run_on(&mut reader, name, context);
    let card = card::read(&mut reader, context.facts);
    if json {
        reader.finish_with_notes();
    } else {
        reader.finish();
    }
    let missing_gateway = run_on.as_ref().and_then(|run_on| run_on.missing_gateway);
    let (location, run_on_reason) = run_on.map(|run_on| (run_on.location, run_on.reason)).unzip();
    let endpoint = match (remote, location) {
        (_, Some(RunLocation::Remote(http))) => Endpoint::Http(*http),
        (Some(http), _) => Endpoint::Http(http?),
        (None, _) => {
            let inherit_env = settings.inherit_env.clone();
            Endpoint::Command(CommandSpec { program: program?, args, env, inherit_env, cwd })
        }
    };
    Some(ServerTable {
        enabled,
        disabled_at,
        when,
        run_on_reason,
        missing_gateway,
        endpoint,
        era,
        settings,
        card,
    })
}

fn find_enabled_key(reader: &TableReader<'_>) -> String {
    let key = if reader.has("enabled") { "enabled" } else { "disabled" };
    let offset = reader.peek(key).map_or(0, |node| node.span.start);
    let origin = reader.source().origin(offset);
    format!("{}:{}", origin.file.display(), origin.line)
}

/// Reports new tool names that are not valid as public names once the server's name is put before them.
fn check_renames(reader: &mut TableReader<'_>, server: &str, settings: &LifecycleSettings) {
    let Ok(id) = server.parse::<ServerId>() else { return };
    for (old, new) in &settings.tools.rename {
        if public_name(&id, new) != format!("{id}{SEPARATOR}{new}") {
            let offset = find_rename(reader, old);
            let message = format!("`{server}{SEPARATOR}{new}` is not a valid public name for `{old}`");
            let max_length = MAX_LENGTH.saturating_sub(server.len() + SEPARATOR.len());
            let hint =
                format!("write 1 to {max_length} letters, digits, `_` or `-`, not ending like a digest");
            reader.error(offset, message, hint);
        }
    }
}

/// Returns the offset of the new name in the server's own table, or of the server if `[defaults]` sets it.
fn find_rename(reader: &TableReader<'_>, old: &str) -> usize {
    let rename = reader.peek("tools").and_then(|tools| tools.child("rename"));
    let new = rename.and_then(|rename| rename.child(old));
    new.map_or_else(|| reader.key_offset(), |node| node.span.start)
}

fn era_choices() -> Vec<(&'static str, EraChoice)> {
    let named = [
        ("auto", EraChoice::Auto),
        ("modern", EraChoice::Era(Era::Stateless)),
        ("legacy", EraChoice::Era(Era::Session)),
    ];
    let revisions = Revision::ALL.map(|revision| (revision.as_str(), EraChoice::Revision(revision)));
    named.into_iter().chain(revisions).collect()
}

fn read_program(reader: &mut TableReader<'_>, name: &str) -> Option<TemplateText> {
    if !reader.has("command") {
        let hint = format!("write {}", reader.source().assignment("command", "\"…\""));
        reader.error_at_table(format!("server `{name}` has neither `command` nor `url`"), hint);
    }
    let written = reader.string("command")?;
    let node = reader.peek("command")?;
    check_single_program(reader, written)?;
    let is_relative = written.contains('/') && !written.starts_with('/') && !written.starts_with("${");
    if !is_relative {
        return reader.template(node, written);
    }
    check_no_tilde(reader, "command", written)?;
    let folder = reader.source().folder(node.span.start).to_str().map(str::to_owned);
    let Some(folder) = folder.filter(|folder| !folder.contains("${")) else {
        let message = "`command` cannot be relative, because of the name of this file's folder";
        reader.error_at_value("command", message, "write the absolute path");
        return None;
    };
    let relative = written.strip_prefix("./").unwrap_or(written);
    reader.template(node, &format!("{}/{relative}", folder.trim_end_matches('/')))
}

fn check_single_program(reader: &mut TableReader<'_>, written: &str) -> Option<()> {
    if written.trim().is_empty() {
        let hint = format!("write {}", reader.source().assignment("command", "\"npx\""));
        reader.error_at_value("command", "`command` is empty", hint);
        return None;
    }
    let first = written.split_whitespace().next().unwrap_or_default();
    if first.len() < written.len() && !first.contains('/') && !written.contains("${") {
        let command = reader.source().assignment("command", &format!("{first:?}"));
        let args = reader.source().assignment("args", "[\"…\"]");
        let hint = format!(
            "write {command} and the other words in {args}; a path with spaces must start with `./` or `/`"
        );
        reader.error_at_value("command", "`command` must be one program, not a command line", hint);
        return None;
    }
    Some(())
}

fn read_args(reader: &mut TableReader<'_>) -> Vec<TemplateText> {
    let args = reader.strings("args").unwrap_or_default();
    args.into_iter().filter_map(|(node, arg)| reader.template(node, arg)).collect()
}

fn read_env(reader: &mut TableReader<'_>) -> BTreeMap<String, TemplateText> {
    let mut variables = BTreeMap::new();
    let mut names = BTreeSet::new();
    for entry in reader.raw_table("env").map_or(&[][..], |table| &table.0) {
        if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
            let message = format!("invalid variable name `{}`", entry.key);
            reader.error(entry.offset, message, "a variable name is not empty and does not contain `=`");
        }
        if !names.insert(&entry.key) {
            let message = format!("the variable `{}` is defined twice", entry.key);
            reader.error(entry.offset, message, "remove one of the two");
        }
        let text = reader.string_element("env", &entry.value);
        if let Some(text) = text.and_then(|text| reader.template(&entry.value, text)) {
            variables.insert(entry.key.clone(), text);
        }
    }
    variables
}

fn read_cwd(reader: &mut TableReader<'_>) -> Option<PathBuf> {
    let written = reader.string("cwd")?;
    resolve_path(reader, "cwd", written)
}

/// Resolves a path that is written at a key against the folder of the file.
pub(super) fn resolve_path(reader: &mut TableReader<'_>, key: &str, written: &str) -> Option<PathBuf> {
    check_no_tilde(reader, key, written)?;
    if written.is_empty() {
        reader.error_at_value(key, format!("`{key}` is empty"), "write a path, or remove it");
        return None;
    }
    if written.contains("${") {
        let message = format!("references in `{key}` are not supported yet");
        reader.error_at_value(key, message, "write the path itself");
        return None;
    }
    let offset = reader.peek(key)?.span.start;
    // `components` removes `.` from the path.
    Some(reader.source().folder(offset).join(Path::new(written)).components().collect())
}

fn check_no_tilde(reader: &mut TableReader<'_>, key: &str, written: &str) -> Option<()> {
    if written != "~" && !written.starts_with("~/") {
        return Some(());
    }
    let message = format!("`~` is not expanded in `{key}`: there is no shell");
    let hint = if key == "command" { "write `${env:HOME}` instead" } else { "write the absolute path" };
    reader.error_at_value(key, message, hint);
    None
}
