//! One server's table → how to start it. TOML and JSON entries have the same keys and the same meaning; JSON adds
//! `disabled`, and members that belong to other programs are mentioned, not refused.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::care::Care;
use super::hosts::{self, RunsAt};
use super::node::{Node, Value};
use super::reader::Reader;
use super::remote;
use super::root::Around;
use super::scope::Tags;
use super::when::When;
use crate::policy::Rules;
use crate::spec::public_name::{LONGEST, SEPARATOR, public};
use crate::spec::{CommandSpec, Endpoint, EraChoice, ServerId, ServerSpec};
use crate::text::Text;
use crate::wire::revision::{Era, Revision};

/// A server without its name.
pub(super) struct Entry {
    enabled: bool,
    /// Where it is switched off, as `FILE:LINE`.
    switched_off: String,
    when: Option<When>,
    /// Where it runs, if that was said.
    runs: Option<String>,
    endpoint: Endpoint,
    era: EraChoice,
    care: Care,
}

impl Entry {
    /// What may be used of it.
    pub(super) fn rules(&self) -> &Rules {
        &self.care.rules
    }

    /// Whether anybody switched it off by name.
    pub(super) fn enabled(&self) -> bool {
        self.enabled
    }

    /// The tags it wants.
    pub(super) fn wanted(&self) -> Option<&When> {
        self.when.as_ref()
    }

    /// Whether it is on, and why.
    pub(super) fn verdict(&self, tags: &Tags) -> (bool, String) {
        if !self.enabled {
            return (false, format!("off: switched off in {}", self.switched_off));
        }
        let judged = self.when.as_ref().map(|when| when.judge(tags));
        let why = match judged {
            Some(Err(why)) => return (false, format!("off here: {why}")),
            Some(Ok(why)) => why,
            None => "always, because it has no `when`".to_owned(),
        };
        match &self.runs {
            Some(runs) => (true, format!("on: {why}; {runs}")),
            None => (true, format!("on: {why}")),
        }
    }

    /// The server under a name.
    pub(super) fn named(self, id: ServerId) -> ServerSpec {
        let (tools, trust, pin) = (self.care.tools.clone(), self.care.trust, self.care.pin);
        let (lifecycle, limits, sharing) = self.care.settle();
        let Self { enabled, endpoint, era, .. } = self;
        ServerSpec { id, enabled, endpoint, era, lifecycle, limits, tools, trust, pin, sharing }
    }
}

/// Reads one server. What comes back is good only if nothing was reported meanwhile.
pub(super) fn read(mut reader: Reader<'_>, name: &str, around: &Around<'_>) -> Option<Entry> {
    let json = reader.page().json;
    let care = around.defaults.clone().overlay(&mut reader);
    names_fit(&mut reader, name, &care);
    let remote = remote::read(&mut reader);
    if remote.is_some() {
        Care::check_remote(&mut reader);
    }
    let program = if remote.is_some() { None } else { program(&mut reader, name) };
    let args = arguments(&mut reader);
    let env = variables(&mut reader);
    let cwd = cwd(&mut reader);
    let era = reader.choice("era", &eras(), &[]).unwrap_or(EraChoice::Auto);
    let mut enabled = reader.boolean("enabled").unwrap_or(true);
    if json {
        enabled &= !reader.boolean("disabled").unwrap_or(false);
    }
    let key = if reader.has("enabled") { "enabled" } else { "disabled" };
    let at = reader.value(key).map_or(0, |node| node.span.start);
    let origin = reader.page().origin(at);
    let switched_off = format!("{}:{}", origin.file.display(), origin.line);
    let when = When::read(&mut reader, name, around.tags);
    let runs = hosts::run_on(&mut reader, name, (around.hosts, around.facts));
    if json {
        reader.finish_with_notes();
    } else {
        reader.finish();
    }
    let (runs, reason) = runs.unzip();
    let endpoint = match (remote, runs) {
        (_, Some(RunsAt::There(http))) => Endpoint::Http(*http),
        (Some(http), _) => Endpoint::Http(http?),
        (None, _) => {
            let inherit_env = care.inherit_env.clone();
            Endpoint::Command(CommandSpec { program: program?, args, env, inherit_env, cwd })
        }
    };
    Some(Entry { enabled, switched_off, when, runs: reason, endpoint, era, care })
}

/// What a server's tools are called instead must be names as they stand, with the server's before them.
fn names_fit(reader: &mut Reader<'_>, server: &str, care: &Care) {
    let Ok(id) = server.parse::<ServerId>() else { return };
    for (own, new) in &care.tools.rename {
        if public(&id, new) != format!("{id}{SEPARATOR}{new}") {
            let at = rename_at(reader, own);
            let message = format!("`{server}{SEPARATOR}{new}` cannot be the public name of `{own}`");
            let most = LONGEST.saturating_sub(server.len() + SEPARATOR.len());
            let hint = format!("write 1 to {most} letters, digits, `_` or `-`, not ending like a digest");
            reader.wrong(at, message, hint);
        }
    }
}

/// Where a server's own table says what a tool is called instead; the server's place if that is said elsewhere.
fn rename_at(reader: &Reader<'_>, own: &str) -> usize {
    let below = |node: Option<&'_ Node>, key: &str| match node.map(|node| &node.value) {
        Some(Value::Table(table)) => table.entries(key).next().map(|entry| entry.value.span.start),
        _ => None,
    };
    let rename = match reader.value("tools").map(|node| &node.value) {
        Some(Value::Table(table)) => table.entries("rename").next().map(|entry| &entry.value),
        _ => None,
    };
    below(rename, own).unwrap_or_else(|| reader.place())
}

fn eras() -> Vec<(&'static str, EraChoice)> {
    let named = [
        ("auto", EraChoice::Auto),
        ("modern", EraChoice::Era(Era::Stateless)),
        ("legacy", EraChoice::Era(Era::Session)),
    ];
    let dated = Revision::ALL.map(|revision| (revision.as_str(), EraChoice::Revision(revision)));
    named.into_iter().chain(dated).collect()
}

fn program(reader: &mut Reader<'_>, name: &str) -> Option<Text> {
    if !reader.has("command") {
        let hint = format!("write {}", reader.page().setting("command", "\"…\""));
        reader.lacking(format!("`{name}` needs `command` or `url`"), hint);
    }
    let written = reader.string("command")?;
    let node = reader.value("command")?;
    is_one_program(reader, written)?;
    let relative = written.contains('/') && !written.starts_with('/') && !written.starts_with("${");
    if !relative {
        return reader.text(node, written);
    }
    no_tilde(reader, "command", written)?;
    let Some(folder) = reader
        .page()
        .folder(node.span.start)
        .to_str()
        .filter(|folder| !folder.contains("${"))
        .map(str::to_owned)
    else {
        reader.wrong_value(
            "command",
            "`command` cannot be relative to a folder of this name",
            "write the whole path",
        );
        return None;
    };
    let below = written.strip_prefix("./").unwrap_or(written);
    reader.text(node, &format!("{}/{below}", folder.trim_end_matches('/')))
}

fn is_one_program(reader: &mut Reader<'_>, written: &str) -> Option<()> {
    if written.trim().is_empty() {
        let hint = format!("write {}", reader.page().setting("command", "\"npx\""));
        reader.wrong_value("command", "`command` is empty", hint);
        return None;
    }
    let first = written.split_whitespace().next().unwrap_or_default();
    if first.len() < written.len() && !first.contains('/') && !written.contains("${") {
        let page = reader.page();
        let (command, args) =
            (page.setting("command", &format!("{first:?}")), page.setting("args", "[\"…\"]"));
        let hint =
            format!("write {command}, the other words in {args}; a path with blanks starts with `./` or `/`");
        reader.wrong_value("command", "`command` is one program, not a command line", hint);
        return None;
    }
    Some(())
}

fn arguments(reader: &mut Reader<'_>) -> Vec<Text> {
    let args = reader.strings("args").unwrap_or_default();
    args.into_iter().filter_map(|(node, arg)| reader.text(node, arg)).collect()
}

fn variables(reader: &mut Reader<'_>) -> BTreeMap<String, Text> {
    let (mut variables, mut names) = (BTreeMap::new(), BTreeSet::new());
    for entry in reader.members("env").map_or(&[][..], |table| &table.0) {
        if entry.key.is_empty() || entry.key.contains(['=', '\0']) {
            let hint = "the name of a variable is not empty and holds no `=`";
            reader.wrong(entry.at, format!("`{}` cannot be a variable", entry.key), hint);
        }
        if !names.insert(&entry.key) {
            let message = format!("the variable `{}` is there twice", entry.key);
            reader.wrong(entry.at, message, "keep one of the two");
        }
        let text = reader.element("env", &entry.value);
        if let Some(text) = text.and_then(|text| reader.text(&entry.value, text)) {
            variables.insert(entry.key.clone(), text);
        }
    }
    variables
}

fn cwd(reader: &mut Reader<'_>) -> Option<PathBuf> {
    let written = reader.string("cwd")?;
    path_below(reader, "cwd", written)
}

/// A path as it is written at a key, below the folder of the file.
pub(super) fn path_below(reader: &mut Reader<'_>, key: &str, written: &str) -> Option<PathBuf> {
    no_tilde(reader, key, written)?;
    if written.is_empty() {
        reader.wrong_value(key, format!("`{key}` is empty"), "write a path, or leave it out");
        return None;
    }
    if written.contains("${") {
        let message = format!("references in `{key}` are not supported yet");
        reader.wrong_value(key, message, "write the path itself");
        return None;
    }
    // Through `components`, so that `.` leaves no trace.
    let at = reader.value(key)?.span.start;
    Some(reader.page().folder(at).join(Path::new(written)).components().collect())
}

fn no_tilde(reader: &mut Reader<'_>, key: &str, written: &str) -> Option<()> {
    if written != "~" && !written.starts_with("~/") {
        return Some(());
    }
    let message = format!("`~` means nothing in `{key}`: there is no shell");
    let hint = if matches!(key, "cwd" | "audit") {
        "write the whole path"
    } else {
        "write `${env:HOME}` in its place"
    };
    reader.wrong_value(key, message, hint);
    None
}
