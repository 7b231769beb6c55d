//! `toolcrib import`: servers out of agents' files into the config, with a line for each.

use anyhow::Result;
use serde_json::{Value, json};

use crate::agents::Ground;
use crate::cli::{Import, Secrets};
use crate::edit::file::Original;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::import::{self, Lift, Line, Verdict};
use crate::output::Output;
use crate::place::Place;
use crate::secrets::Keeper;

/// Imports, or says what would be imported.
pub(crate) fn run(args: &Import, place: &Place, out: &mut Output) -> Result<Exit> {
    let ground = Ground::find()?;
    if place.config.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        let message = format!("servers are imported into TOML, and `{}` is JSON", place.config.display());
        return Err(Failure::usage(message).hint("toolcrib import --config FILE.toml").into());
    }
    let original = Original::read(&place.config)?;
    let config = toolcrib::Config::parse(&place.config, original.text());
    if config.refused() {
        return Err(Failure::bad_config(&config).into());
    }
    let keeper = Keeper::new(place, &place.sources().load().secrets);
    let lift = match args.secrets {
        Secrets::Store => Lift::Store(keeper.clone()),
        Secrets::Env => Lift::Env,
        Secrets::Keep => Lift::Keep,
    };
    let import = import::import(&args.from, args.scope, &ground, (&place.config, original.text()), lift)?;
    let changed = import.text != original.text();
    if changed && !args.dry_run {
        // First, so that the config never names what is nowhere.
        if args.secrets == Secrets::Store {
            store(&keeper, &import)?;
        }
        original.replace(&import.text)?;
    }
    if out.json {
        let entries: Vec<Value> = import.lines.iter().map(line_json).collect();
        let file = place.config.display().to_string();
        out.value(&json!({"file": file, "changed": changed, "entries": entries}))?;
        return Ok(Exit::Fine);
    }
    for line in &import.lines {
        tell(line, &ground, args.dry_run, out)?;
    }
    let count = import.lines.iter().filter(|line| matches!(line.verdict, Verdict::Imported(_))).count();
    let file = ground.shown(&place.config);
    let summary = match (import.lines.is_empty(), args.dry_run) {
        (true, _) => "no servers were found".to_owned(),
        (false, true) => format!("{count} of {} would be imported into `{file}`", import.lines.len()),
        (false, false) => format!("{count} of {} imported into `{file}`", import.lines.len()),
    };
    out.say(&summary)?;
    Ok(Exit::Fine)
}

fn store(keeper: &Keeper, import: &import::Import) -> Result<(), Failure> {
    for (name, value) in &import.secrets {
        keeper.set(name, value).map_err(|failure| {
            let hint = failure.hint.iter().map(|hint| format!("{hint}, or ")).collect::<String>();
            failure.hint(format!("{hint}toolcrib import --secrets env"))
        })?;
    }
    Ok(())
}

fn tell(line: &Line, ground: &Ground, dry: bool, out: &mut Output) -> Result<()> {
    let file = ground.shown(&line.file);
    let Line { name, verdict, notes, .. } = line;
    out.line(&match verdict {
        Verdict::Imported(_) if dry => format!("would import `{name}` from `{file}`"),
        Verdict::Imported(_) => format!("imported `{name}` from `{file}`"),
        Verdict::Skipped(why) if name.is_empty() => format!("skipped {why}"),
        Verdict::Skipped(why) => format!("skipped `{name}` from `{file}`: {why}"),
        Verdict::Duplicate(of) => format!("duplicate `{name}` from `{file}`: the same as `{of}`"),
    })?;
    for note in notes {
        out.line(&format!("  {note}"))?;
    }
    Ok(())
}

fn line_json(line: &Line) -> Value {
    let (verdict, key, value) = match &line.verdict {
        Verdict::Imported(name) => ("imported", "as", name),
        Verdict::Skipped(why) => ("skipped", "reason", why),
        Verdict::Duplicate(of) => ("duplicate", "of", of),
    };
    json!({
        "name": line.name,
        "file": line.file.display().to_string(),
        "agent": line.agent,
        "verdict": verdict,
        key: value,
        "notes": line.notes,
    })
}
