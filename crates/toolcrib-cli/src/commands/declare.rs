//! `toolcrib add`, `rm`, `enable` and `disable`: change what is declared, and nothing else in the file. What would not work is
//! refused before anything is written.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::ServerId;
use toolcrib::config::{self, Concern, Config, Draft, Facts};

use super::ls;
use crate::cli::servers::{Add, Carrier, Change, Whose};
use crate::edit::file::Original;
use crate::edit::toml::{BadToml, TomlFile};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::place::Place;
use crate::project::{Project, Standing};

/// Declares a server.
pub(crate) fn add(args: &Add, place: &Place, out: &mut Output) -> Result<Exit> {
    let id: ServerId = args.name.parse().map_err(|bad| {
        Failure::usage(format!("`{}` cannot be a server: {bad}", args.name))
            .hint("choose another, such as `my-server`")
    })?;
    let keys = keys(args)?;
    let mut page = Page::open(place, args.scope.scope)?;
    let known = place.sources().load();
    if let Some(taken) = known.declared.iter().find(|server| server.id.folded() == id.folded()) {
        let message = format!("`{}` is declared already, in {}", taken.id, ls::place_of(&taken.origin));
        return Err(Failure::usage(message)
            .hint(format!("toolcrib rm {}, or choose another name", taken.id))
            .into());
    }
    for (key, value) in keys {
        page.text.set(&["servers", id.as_str(), key], &value).map_err(|bad| page.bad(&bad))?;
    }
    page.refuse_mistakes_of(&id)?;
    page.save(out, &format!("added `{id}` to"), id.as_str())
}

/// The keys of the new table, in the order in which people write them.
fn keys(args: &Add) -> Result<Vec<(&'static str, Value)>, Failure> {
    let (first, rest) = args.words.split_first().ok_or_else(|| Failure::usage("there is no command"))?;
    let is_url = first.starts_with("https://") || first.starts_with("http://");
    let mut keys = Vec::new();
    if is_url || matches!(args.transport, Some(Carrier::Http | Carrier::Sse)) {
        if !rest.is_empty() || !args.env.is_empty() || args.transport == Some(Carrier::Stdio) {
            let message = "a URL has no arguments, no variables and is not `stdio`";
            return Err(
                Failure::usage(message).hint("toolcrib add docs https://example.com/mcp -H \"Name: value\"")
            );
        }
        keys.push(("url", json!(first)));
        match args.transport {
            Some(Carrier::Http) => keys.push(("type", json!("http"))),
            Some(Carrier::Sse) => keys.push(("type", json!("sse"))),
            _ => {}
        }
        let headers = pairs(&args.header, ':', "-H \"Name: value\"")?;
        keys.extend((!args.header.is_empty()).then_some(("headers", headers)));
    } else {
        if !args.header.is_empty() {
            return Err(
                Failure::usage("a command has no headers").hint("toolcrib add git -e KEY=VALUE -- COMMAND")
            );
        }
        keys.push(("command", json!(first)));
        keys.extend((!rest.is_empty()).then(|| ("args", json!(rest))));
        let env = pairs(&args.env, '=', "-e KEY=VALUE")?;
        keys.extend((!args.env.is_empty()).then_some(("env", env)));
    }
    Ok(keys)
}

fn pairs(written: &[String], between: char, example: &str) -> Result<Value, Failure> {
    let pair = |text: &String| {
        let (key, value) = text.split_once(between)?;
        let (key, value) = if between == ':' { (key.trim(), value.trim()) } else { (key, value) };
        (!key.is_empty()).then(|| (key.to_owned(), json!(value)))
    };
    let read = |text: &String| {
        pair(text).ok_or_else(|| Failure::usage(format!("`{text}` has no `{between}` in it")).hint(example))
    };
    written.iter().map(read).collect::<Result<serde_json::Map<_, _>, _>>().map(Value::Object)
}

/// Takes a server out of a file.
pub(crate) fn rm(args: &Change, place: &Place, out: &mut Output) -> Result<Exit> {
    let mut page = Page::open(place, args.scope.scope)?;
    if !page.text.remove(&["servers", &args.server]) {
        let known = place.sources().load();
        let declared = ls::find(&known, &args.server)?;
        let message = format!("`{}` is not declared in `{}`", args.server, page.original.path().display());
        let hint = format!(
            "it is in {}; `toolcrib disable {}` switches it off",
            ls::place_of(&declared.origin),
            args.server
        );
        return Err(Failure::usage(message).hint(hint).into());
    }
    let exit = page.save(out, &format!("removed `{}` from", args.server), &args.server)?;
    let left = place.sources().load();
    if let Some(still) = left.declared.iter().find(|server| server.id.as_str() == args.server) {
        out.warn(&format!("`{}` is still declared, in {}", still.id, ls::place_of(&still.origin)), None)?;
    }
    Ok(exit)
}

/// Switches a server on or off by name.
pub(crate) fn switch(args: &Change, on: bool, place: &Place, out: &mut Output) -> Result<Exit> {
    let known = place.sources().load();
    let declared = ls::find(&known, &args.server)?;
    let mut page = Page::open(place, args.scope.scope)?;
    let path = ["servers", declared.id.as_str(), "enabled"];
    if on {
        // Without the key it is on, unless a farther layer says otherwise.
        if page.text.get(&path) == Some(json!(false)) {
            page.text.remove(&path);
        }
        if page.text.keys(&path[..2]).is_empty() && page.text.has(&path[..2]) {
            page.text.remove(&path[..2]);
        }
    } else {
        page.text.set(&path, &json!(false)).map_err(|bad| page.bad(&bad))?;
    }
    let word = if on { "switched on" } else { "switched off" };
    page.save(out, &format!("{word} `{}` in", args.server), &args.server)?;
    let find = |config: Config| config.declared.into_iter().find(|server| server.id.as_str() == args.server);
    let mut now = find(place.sources().load());
    if on && now.as_ref().is_some_and(|server| !server.enabled) {
        let mut page = Page::open(place, args.scope.scope)?;
        page.text.set(&path, &json!(true)).map_err(|bad| page.bad(&bad))?;
        page.write()?;
        now = find(place.sources().load());
    }
    if let Some(now) = now.filter(|now| now.active != on) {
        out.warn(&format!("`{}` is {}", now.id, now.reason), Some(&format!("toolcrib why {}", now.id)))?;
    }
    Ok(Exit::Fine)
}

/// The file that is being changed.
struct Page {
    original: Original,
    text: TomlFile,
    /// The project it belongs to, if its text may be used as it was.
    project: Option<Project>,
}

impl Page {
    fn open(place: &Place, whose: Whose) -> Result<Self, Failure> {
        let (file, project) = file_of(place, whose)?;
        if file.extension().is_some_and(|end| end.eq_ignore_ascii_case("json")) {
            return Err(Failure::usage("only TOML files can be changed").hint("edit the file by hand"));
        }
        let original = Original::read(&file)?;
        let text = TomlFile::parse(original.text()).map_err(|bad| bad_file(&file, &bad))?;
        let own =
            |project: &Project| !original.exists() || matches!(project.standing(), Standing::Allowed(_));
        let project = project.filter(own);
        Ok(Self { original, text, project })
    }

    fn bad(&self, bad: &BadToml) -> Failure {
        bad_file(self.original.path(), bad)
    }

    /// Refuses what would be off because of a mistake.
    fn refuse_mistakes_of(&self, id: &ServerId) -> Result<(), Failure> {
        let read = Draft::parse(self.original.path(), &self.text.render()).resolve(&Facts::default());
        let concerned = |concern: &Concern| matches!(concern, Concern::Server(name) if name == id.as_str());
        match read.problems.iter().find(|problem| concerned(&problem.concerns)) {
            Some(problem) => {
                let failure = Failure::usage(format!("`{id}` would not work: {}", problem.message));
                Err(problem.hint.iter().fold(failure, Failure::hint))
            }
            None => Ok(()),
        }
    }

    fn write(&self) -> Result<bool, Failure> {
        let text = self.text.render();
        if text == self.original.text() {
            return Ok(false);
        }
        self.original.replace(&text)?;
        // What the person does to a file of their own needs no second look.
        if let Some(project) = &self.project {
            project.allow(config::digest(&text))?;
        }
        Ok(true)
    }

    fn save(&self, out: &mut Output, done: &str, name: &str) -> Result<Exit> {
        let changed = self.write()?;
        let file = self.original.path().display().to_string();
        if out.json {
            out.value(&json!({"name": name, "file": file, "changed": changed}))?;
        } else {
            out.say(&format!("{done} `{file}`"))?;
        }
        Ok(Exit::Fine)
    }
}

fn file_of(place: &Place, whose: Whose) -> Result<(PathBuf, Option<Project>), Failure> {
    if whose == Whose::User {
        return Ok((place.config.clone(), None));
    }
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let project = Project::around(&folder, place.state());
    let project = if project.file.is_some() { project } else { project.with_config() };
    Ok((project.file.clone().unwrap_or_default(), Some(project)))
}

fn bad_file(file: &Path, bad: &BadToml) -> Failure {
    let place = if matches!(bad, BadToml::Syntax { .. }) { ":" } else { ": " };
    Failure::new(Exit::BadConfig, "config_invalid", format!("{}{place}{bad}", file.display()))
        .hint("toolcrib check")
}
