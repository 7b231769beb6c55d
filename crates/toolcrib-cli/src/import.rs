//! Servers out of other programs' files into the config: found, put in our words, secrets lifted, each entry accounted
//! for. Nothing is written here.

mod draft;
mod lift;
mod references;
mod sources;
#[cfg(test)]
mod tests;
mod unwrap;

use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};
use toolcrib::config::{Concern, Config};
use toolcrib::spec::{Endpoint, ServerSpec};
use toolcrib::{Roster, Secret, ServerId};

use self::draft::Draft;
pub(crate) use self::lift::Lift;
use self::lift::Names;
use self::sources::Source;
use crate::agents::{Agent, Ground, Scope};
use crate::edit::entry::{Language, Members};
use crate::edit::toml::TomlFile;
use crate::export;
use crate::failure::Failure;

/// What became of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is a server of the config now, by this name.
    Imported(String),
    /// It was not taken, and why.
    Skipped(String),
    /// There is one like it, by this name.
    Duplicate(String),
}

/// One entry, and what became of it.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Its name in the file; empty if the whole file could not be read.
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    /// Whose file it is, if it is a known one.
    pub(crate) agent: Option<&'static str>,
    pub(crate) verdict: Verdict,
    /// What is not as it was.
    pub(crate) notes: Vec<String>,
}

/// The text of a config with everything in it that could be imported.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) text: String,
    pub(crate) lines: Vec<Line>,
    /// What has to be kept for it, by name.
    pub(crate) secrets: Vec<(String, Secret)>,
    names: Names,
}

/// Imports from agents or a file into the text of a config.
pub(crate) fn import(
    from: &str,
    scope: Scope,
    ground: &Ground,
    config: (&Path, &str),
    secrets: Lift,
) -> Result<Import, Failure> {
    let (path, text) = config;
    let (text, names) = (text.to_owned(), Names::new(secrets));
    let mut import = Import { text, lines: Vec::new(), secrets: Vec::new(), names };
    let sources = sources::find(from, scope, ground)?;
    let ours = |source: &Source| source.file.canonicalize().ok() == path.canonicalize().ok();
    for source in sources.into_iter().filter(|source| !ours(source)) {
        let agent = source.agent.map(|agent| agent.id);
        let entries = match source.entries(ground) {
            Ok(entries) => entries,
            Err(failure) if from == "auto" => {
                let verdict = Verdict::Skipped(failure.message);
                import.lines.push(Line {
                    name: String::new(),
                    file: source.file,
                    agent,
                    verdict,
                    notes: Vec::new(),
                });
                continue;
            }
            Err(failure) => return Err(failure),
        };
        for (name, entry) in entries {
            let (verdict, notes) = import.take(path, source.agent, &name, &entry);
            import.lines.push(Line { name, file: source.file.clone(), agent, verdict, notes });
        }
    }
    Ok(import)
}

impl Import {
    fn take(
        &mut self,
        path: &Path,
        agent: Option<&'static Agent>,
        name: &str,
        entry: &Json,
    ) -> (Verdict, Vec<String>) {
        let skipped = |why: String| (Verdict::Skipped(why), Vec::new());
        if export::is_ours(entry) || leads_here(entry) {
            return skipped("it is toolcrib itself".to_owned());
        }
        let mut draft = match draft::read(agent, entry) {
            Ok(draft) => draft,
            Err(why) => return skipped(why),
        };
        unwrap::unwrap(&mut draft);
        let Some(id) = clean(name) else {
            return skipped("nothing of its name can be a name here".to_owned());
        };
        let lifted = lift::lift(&mut draft, id.as_str(), &mut self.names);
        let before = Config::parse(path, &self.text).roster;
        // Agents write commands below their own folder in many ways; what is relative means something else here.
        if draft.argv.first().is_some_and(|program| program.contains('/') && !program.starts_with('/')) {
            return skipped("its command is relative to a folder that is not known".to_owned());
        }
        match self.put(path, &before, &id, agent, &draft) {
            Ok(Verdict::Imported(id)) => {
                self.secrets.extend(lifted);
                if id != name {
                    draft.notes.insert(0, format!("it is called `{id}` here"));
                }
                (Verdict::Imported(id), draft.notes)
            }
            Ok(verdict) => (verdict, Vec::new()),
            Err(why) => skipped(why),
        }
    }

    /// Tries it out: what the config does not take is not there afterwards.
    fn put(
        &mut self,
        path: &Path,
        before: &Roster,
        id: &ServerId,
        agent: Option<&Agent>,
        draft: &Draft,
    ) -> Result<Verdict, String> {
        let other = agent.and_then(|agent| clean(&format!("{id}-{}", agent.id)));
        let free = |id: &ServerId| !before.servers().any(|spec| spec.id.folded() == id.folded());
        let file = TomlFile::parse(&self.text).map_err(|bad| bad.to_string())?;
        let declared = |id: &ServerId| file.has(&["servers", id.as_str()]);
        let names = [Some(id.clone()), other];
        let name = names.into_iter().flatten().find(|id| free(id) && !declared(id));
        // Whether there is one like it is known only once it has been read.
        let trial: ServerId = "import-trial".parse().map_err(|_| "no name".to_owned())?;
        let spec = self.tried(path, &trial, draft)?.1;
        if let Some(same) = before.servers().find(|known| alike(known, &spec)) {
            return Ok(Verdict::Duplicate(same.id.to_string()));
        }
        let Some(name) = name else { return Err(format!("`{id}` is another server here")) };
        self.text = self.tried(path, &name, draft)?.0;
        Ok(Verdict::Imported(name.to_string()))
    }

    fn tried(&self, path: &Path, id: &ServerId, draft: &Draft) -> Result<(String, ServerSpec), String> {
        let put = Language::Toml.put(&self.text, &["servers", id.as_str()], &members(draft));
        let text = put.map_err(|mistake| mistake.to_string())?;
        let config = Config::parse(path, &text);
        let concerns = |concern: &Concern| matches!(concern, Concern::Server(name) if name == id.as_str());
        if let Some(problem) = config.problems.iter().find(|problem| concerns(&problem.concerns)) {
            return Err(problem.message.clone());
        }
        let spec = config.roster.get(id).cloned().ok_or("the config does not take it")?;
        Ok((text, spec))
    }
}

/// An entry of ours in the config.
fn members(draft: &Draft) -> Members {
    let mut members: Members = Vec::new();
    let mut set = |key: &str, value: Json| members.push((key.to_owned(), value));
    if let Some((program, args)) = draft.argv.split_first() {
        set("command", program.as_str().into());
        if !args.is_empty() {
            set("args", args.into());
        }
        if !draft.env.is_empty() {
            set("env", json!(draft.env));
        }
        if let Some(cwd) = &draft.cwd {
            set("cwd", cwd.as_str().into());
        }
    }
    if let Some(url) = &draft.url {
        set("url", url.as_str().into());
        if let Some(transport) = draft.transport {
            set("type", transport.into());
        }
        if !draft.headers.is_empty() {
            set("headers", json!(draft.headers));
        }
    }
    if draft.off {
        set("enabled", false.into());
    }
    if let Some(timeout) = draft.timeout {
        let limit = match timeout.subsec_millis() {
            0 => format!("{}s", timeout.as_secs()),
            _ => format!("{}ms", timeout.as_millis()),
        };
        set("limits", json!({"call-timeout": limit}));
    }
    let mut tools = serde_json::Map::new();
    tools.extend(draft.allow.as_ref().map(|allow| ("allow".to_owned(), json!(allow))));
    if !draft.deny.is_empty() {
        tools.insert("deny".to_owned(), json!(draft.deny));
    }
    if !tools.is_empty() {
        set("tools", tools.into());
    }
    members
}

/// Whether two servers are the same thing under two names.
fn alike(one: &ServerSpec, other: &ServerSpec) -> bool {
    match (&one.endpoint, &other.endpoint) {
        (Endpoint::Command(one), Endpoint::Command(other)) => {
            (&one.program, &one.args) == (&other.program, &other.args)
        }
        (Endpoint::Http(one), Endpoint::Http(other)) => one.url == other.url,
        _ => false,
    }
}

/// Whether an address is that of a gateway of ours on this machine.
fn leads_here(entry: &Json) -> bool {
    let urls = ["url", "uri", "serverUrl", "httpUrl"].iter().filter_map(|key| entry[*key].as_str());
    let here = |url: &str| {
        ["127.0.0.1", "localhost", "[::1]"].iter().any(|host| {
            let rest = url.strip_prefix("http://").and_then(|rest| rest.strip_prefix(host));
            rest.is_some_and(|rest| rest == ":7717/mcp" || rest.starts_with(":7717/mcp/"))
        })
    };
    urls.into_iter().any(here)
}

/// A name as servers have them here.
fn clean(written: &str) -> Option<ServerId> {
    let legal = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let letters = written
        .to_lowercase()
        .chars()
        .map(|letter| if legal(letter) { letter } else { '-' })
        .collect::<String>();
    let mut name = letters.replace("__", "_");
    while name.contains("__") {
        name = name.replace("__", "_");
    }
    let name = name.trim_matches(['-', '_']);
    name[..name.len().min(32)].trim_end_matches(['-', '_']).parse().ok()
}
