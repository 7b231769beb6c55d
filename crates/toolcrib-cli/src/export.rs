//! Servers into an agent's own file: plan, show the difference, write, take back. Only entries of ours are touched, and
//! nothing is written that the agent could not read.

pub(crate) mod gateway;
mod record;
pub(crate) mod render;
mod shape;
#[cfg(test)]
mod tests;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::Value as Json;
use similar::{ChangeTag, TextDiff};
use toolcrib::policy::Rules;
use toolcrib::spec::ServerSpec;

use self::record::Ledger;
use self::render::Rendered;
use self::shape::Whose;
use crate::agents::{Agent, Ground, Layout, Scope};
use crate::edit::entry::{Members, Mistake, at};
use crate::edit::file::Original;
use crate::edit::yaml;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::secrecy;

/// A server, and what may be used of it.
pub(crate) type Server<'a> = (&'a ServerSpec, Option<&'a Rules>);

/// What is to be written into one file, and what was there.
#[derive(Debug)]
pub(crate) struct Plan {
    original: Original,
    text: String,
    /// The names of the entries that are ours afterwards.
    names: Vec<String>,
    /// What the agent cannot be told.
    pub(crate) warnings: Vec<String>,
    ledger: Ledger,
}

/// Works out what an agent's file is to say. Nothing is written.
pub(crate) fn plan(
    agent: &Agent,
    scope: Scope,
    ground: &Ground,
    state: &Path,
    servers: &[Server<'_>],
) -> Result<Plan, Failure> {
    let original = original(agent, scope, ground)?;
    let ledger = Ledger::of(state, original.path());
    let mut plan =
        Plan { text: original.text().to_owned(), original, names: Vec::new(), warnings: Vec::new(), ledger };
    let mut entries = Vec::new();
    for (spec, rules) in servers {
        let Rendered { members, warnings } = render::entry(agent, spec, *rules);
        plan.warnings.extend(warnings);
        entries.extend(members.map(|members| (spec.id.to_string(), members)));
    }
    match agent.layout {
        Layout::Named => {
            plan.put(agent, entries).map_err(|mistake| unreadable(agent, plan.file(), &mistake))?;
        }
        Layout::OwnList => plan.list(entries),
    }
    plan.check(agent)?;
    Ok(plan)
}

/// The file that a plan is about, refused where writing to it would do harm.
fn original(agent: &Agent, scope: Scope, ground: &Ground) -> Result<Original, Failure> {
    let Some(file) = agent.file(scope, ground) else {
        let failure = Failure::usage(format!("{} has no file for a project", agent.name));
        return Err(failure.hint(format!("toolcrib export {}", agent.id)));
    };
    let refused = |code: &str, message: String| Failure::new(Exit::Unexpected, code, message);
    let linked = fs::symlink_metadata(&file).is_ok_and(|found| found.is_symlink());
    if linked && !file.exists() {
        return Err(refused("cannot_edit", format!("`{}` is a link that leads nowhere", file.display())));
    }
    let original = Original::read(&file)?;
    let root = ground.project.canonicalize().unwrap_or_else(|_| ground.project.clone());
    // What is not there yet is made below what is.
    let real = file.ancestors().find_map(|path| path.canonicalize().ok()).unwrap_or_default();
    if scope == Scope::Project && !real.starts_with(&root) {
        let message = format!("`{}` leads out of the project, to `{}`", file.display(), real.display());
        return Err(refused("leads_out", message));
    }
    // Whoever reads the one does not look for the other any more.
    let (shared, hidden) = (ground.project.join(".mcp.json"), ground.project.join(".github/mcp.json"));
    if scope == Scope::Project && !original.exists() && file == shared && hidden.exists() {
        let message = format!("a new `.mcp.json` would hide `{}` from Copilot CLI", hidden.display());
        return Err(refused("would_hide", message).hint("move that file to `.mcp.json` first"));
    }
    Ok(original)
}

fn unreadable(agent: &Agent, file: &Path, mistake: &Mistake) -> Failure {
    let place = mistake.at.map(|(line, column)| format!(":{line}:{column}")).unwrap_or_default();
    let message = format!("`{}`{place}: {}; nothing was changed", file.display(), mistake.message);
    let hint = match agent.language {
        crate::edit::entry::Language::Json(crate::edit::jsonc::Manner::Strict) => {
            format!("repair it first; {} takes neither comments nor trailing commas", agent.name)
        }
        _ => "repair it first".to_owned(),
    };
    Failure::new(Exit::BadConfig, "agent_file_invalid", message).hint(hint)
}

/// An entry that the agent would stumble over.
fn misfit(agent: &Agent, file: &Path, name: &str, whose: Whose, why: &str) -> Failure {
    let (file, place, of) = (file.display(), agent.path(name).join("."), agent.name);
    let says = agent.schema.published.map(|schema| format!(", says {schema}")).unwrap_or_default();
    let message = format!("`{file}`: {of} would not take `{place}`: {why}{says}; nothing was changed");
    let hint = match whose {
        Whose::Ours => format!("change `[servers.{name}]`, or leave `--expand` out"),
        Whose::Theirs => format!("repair it first; {of} reads no entry beside one like that"),
    };
    Failure::new(Exit::BadConfig, "agent_file_invalid", message).hint(hint)
}

impl Plan {
    /// The file, behind every link.
    pub(crate) fn file(&self) -> &Path {
        self.original.path()
    }

    /// Whether there is anything to write.
    pub(crate) fn changes(&self) -> bool {
        self.text != self.original.text()
    }

    fn put(&mut self, agent: &Agent, entries: Vec<(String, Members)>) -> Result<(), Mistake> {
        let said = agent.language.read(self.original.text())?;
        let there = at(&said, agent.at).and_then(Json::as_object).cloned().unwrap_or_default();
        let ours = self.ledger.last().map(|step| step.names).unwrap_or_default();
        for (name, members) in entries {
            let taken = there.get(&name).filter(|entry| !ours.contains(&name) && !is_ours(entry));
            if taken.is_some_and(|entry| *entry != Json::Object(members.iter().cloned().collect())) {
                let file = self.original.path().display();
                self.warnings
                    .push(format!("`{name}` is left as it is: `{file}` has one that toolcrib did not write"));
                continue;
            }
            self.text = agent.language.put(&self.text, &agent.path(&name), &members)?;
            self.names.push(name);
        }
        for name in ours.iter().filter(|name| !self.names.contains(name)) {
            self.text = agent.language.remove(&self.text, &agent.path(name))?;
        }
        Ok(())
    }

    fn list(&mut self, entries: Vec<(String, Members)>) {
        let named = entries.into_iter().map(|(name, members)| {
            let mut item = vec![("name".to_owned(), Json::from(name.clone()))];
            item.extend(members);
            (name, item)
        });
        let (names, items): (Vec<String>, Vec<Members>) = named.unzip();
        let head = [("name", "toolcrib"), ("version", "0.0.1"), ("schema", "v1")];
        self.names = names;
        self.text = yaml::listing(&head, "mcpServers", &items);
    }

    /// Holds the result against what the agent reads: our entries must fit, and so must all others where one spoils all.
    fn check(&self, agent: &Agent) -> Result<(), Failure> {
        let said =
            agent.language.read(&self.text).map_err(|mistake| unreadable(agent, self.file(), &mistake))?;
        for (name, entry) in entries(agent, &said) {
            let ours = agent.layout == Layout::OwnList || self.names.contains(&name);
            let whose = if ours { Whose::Ours } else { Whose::Theirs };
            if !ours && !agent.brittle {
                continue;
            }
            if let Err(why) = shape::check(agent, entry, whose) {
                return Err(misfit(agent, self.file(), &name, whose, &why));
            }
        }
        Ok(())
    }

    /// The difference in unified form; lines that may hold a secret of somebody's are not shown.
    pub(crate) fn diff(&self) -> String {
        let shown = self.original.path().display().to_string();
        let from = if self.original.exists() { shown.clone() } else { "/dev/null".to_owned() };
        difference(self.original.text(), &self.text, &from, &shown)
    }

    /// Writes the file and makes sure that it says what was meant.
    pub(crate) fn write(&self) -> Result<(), Failure> {
        let file = self.file();
        if fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o222 == 0) {
            let failure =
                Failure::new(Exit::Unexpected, "read_only", format!("`{}` is read-only", file.display()));
            return Err(failure.hint(format!("chmod u+w {}", file.display())));
        }
        let before = self.original.exists().then(|| self.original.text());
        self.ledger.add(file, before, &self.text, &self.names).map_err(|error| {
            let message =
                format!("cannot keep what `{}` says now: {error}; nothing was changed", file.display());
            Failure::new(Exit::Unexpected, "cannot_keep", message)
        })?;
        if let Err(failure) = self.original.replace(&self.text) {
            if let Some(step) = self.ledger.last() {
                self.ledger.forget(&step);
            }
            return Err(failure);
        }
        let now = Original::read(file)?;
        if now.text() == self.text {
            return Ok(());
        }
        let message = format!("`{}` was changed by somebody else as soon as it was written", file.display());
        Err(Failure::new(Exit::Unexpected, "changed_meanwhile", message).hint("do it again"))
    }
}

/// How a file was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Undone {
    /// It is what it was, byte by byte.
    Restored,
    /// It was not there before, and is gone.
    Removed,
    /// Somebody else had changed it since: only our entries were taken out.
    TakenOut,
}

/// Takes back the last thing that was written into an agent's file.
pub(crate) fn undo(
    agent: &Agent,
    scope: Scope,
    ground: &Ground,
    state: &Path,
) -> Result<(Plan, Undone), Failure> {
    let original = original(agent, scope, ground)?;
    let ledger = Ledger::of(state, original.path());
    let Some(step) = ledger.last() else {
        let message = format!(
            "toolcrib has written nothing into `{}` that could be taken back",
            original.path().display()
        );
        return Err(Failure::new(Exit::Unexpected, "nothing_to_undo", message));
    };
    // A file that is ours alone is as we left it, whatever it says.
    let untouched = step.wrote(original.text().as_bytes()) || agent.layout == Layout::OwnList;
    let (text, undone) = match &step.before {
        _ if !original.exists() => (String::new(), Undone::Removed),
        Some(before) if untouched => (String::from_utf8_lossy(before).into_owned(), Undone::Restored),
        None if untouched => (String::new(), Undone::Removed),
        _ => {
            let mut text = original.text().to_owned();
            for name in &step.names {
                let removed = agent.language.remove(&text, &agent.path(name));
                text = removed.map_err(|mistake| unreadable(agent, original.path(), &mistake))?;
            }
            (text, Undone::TakenOut)
        }
    };
    let plan = Plan { original, text, names: Vec::new(), warnings: Vec::new(), ledger };
    match undone {
        Undone::Removed if plan.original.exists() => fs::remove_file(plan.file()).map_err(|error| {
            let message = format!("cannot remove `{}`: {error}", plan.file().display());
            Failure::new(Exit::Unexpected, "cannot_edit", message)
        })?,
        Undone::Removed => {}
        Undone::Restored | Undone::TakenOut => plan.original.replace(&plan.text)?,
    }
    plan.ledger.forget(&step);
    Ok((plan, undone))
}

/// The entries of a file with their names.
fn entries<'a>(agent: &Agent, said: &'a Json) -> Vec<(String, &'a Json)> {
    match at(said, agent.at) {
        Some(Json::Object(entries)) => entries.iter().map(|(name, entry)| (name.clone(), entry)).collect(),
        Some(Json::Array(items)) => {
            let name = |item: &Json| item["name"].as_str().unwrap_or_default().to_owned();
            items.iter().map(|item| (name(item), item)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether an entry starts toolcrib.
pub(crate) fn is_ours(entry: &Json) -> bool {
    let commands = [&entry["command"], &entry["cmd"], &entry["command"][0], &entry["transport"]["command"]];
    let mut programs = commands.into_iter().filter_map(Json::as_str);
    programs.any(|program| Path::new(program).file_name().is_some_and(|name| name == "toolcrib"))
}

fn difference(before: &str, after: &str, from: &str, to: &str) -> String {
    if before == after {
        return String::new();
    }
    let bare = |line: &str| line.trim().trim_end_matches(',').to_owned();
    let known: Vec<String> = before.lines().map(bare).collect();
    let diff = TextDiff::from_lines(before, after);
    let mut text = format!("--- {from}\n+++ {to}\n");
    for hunk in diff.unified_diff().context_radius(3).iter_hunks() {
        text.push_str(&format!("{}\n", hunk.header()));
        for change in hunk.iter_changes() {
            let line = change.value().trim_end_matches(['\r', '\n']);
            // A line that only got a comma is still theirs.
            let ours = change.tag() == ChangeTag::Insert && !known.contains(&bare(line));
            let shown = if ours { line.to_owned() } else { secrecy::masked(line) };
            text.push_str(&format!("{}{shown}\n", change.tag()));
        }
    }
    text
}
