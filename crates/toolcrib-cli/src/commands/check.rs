//! `toolcrib check`: every problem of the config, with its place and a hint.

use anyhow::Result;
use serde_json::Value;
use toolcrib::config::{Concern, Problem};

use crate::exit::Exit;
use crate::failure::problem_json;
use crate::output::Output;
use crate::place::Place;
use crate::secrets::Keeper;

/// Reads the config and reports. Notes are shown and do not count.
pub(crate) fn run(place: &Place, out: &mut Output) -> Result<Exit> {
    let mut config = place.read()?;
    let keeper = Keeper::new(place, &config.secrets);
    config.problems.extend(
        toolcrib::config::digests(&config.callers, |name| keeper.find(name)).err().map(|problem| *problem),
    );
    config.problems.extend(place.sources().unused().map(|(file, why)| Problem {
        file: file.to_owned(),
        at: None,
        concerns: Concern::Note,
        message: format!("this {why}"),
        hint: Some("look at it, then type `toolcrib allow`".to_owned()),
    }));
    let wrong = config.problems.iter().filter(|problem| problem.concerns != Concern::Note).count();
    if out.json {
        out.value(&Value::Array(config.problems.iter().map(problem_json).collect()))?;
    } else {
        for problem in &config.problems {
            out.line(&problem.to_string())?;
            if let Some(hint) = &problem.hint {
                out.line(&format!("hint: {hint}"))?;
            }
        }
    }
    let servers = config.origins.len();
    // Where none could be read, the one that stands for all of them.
    let files = if config.files.is_empty() { std::slice::from_ref(&config.file) } else { &config.files };
    let file = files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ");
    match wrong {
        0 => out.say(&format!("{}, no problems", counted(servers, "server")))?,
        _ => out.say(&format!("{file}: {}, {}", counted(servers, "server"), counted(wrong, "problem")))?,
    }
    Ok(if wrong == 0 { Exit::Fine } else { Exit::BadConfig })
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
