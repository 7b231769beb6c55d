//! `toolcrib explain [CODE]`: explains an error kind, an error code or a failure class.

use anyhow::Result;
use serde_json::{Value, json};
use toolcrib::util::format::closest_match;

use crate::command_error::CommandError;
use crate::exit::ExitStatus;
use crate::explain::{self, Explanation};
use crate::output::Output;

/// Explains a code, or lists all of them.
pub(crate) fn run(code: Option<&str>, out: &mut Output) -> Result<ExitStatus> {
    let found = match code {
        Some(code) => explain::find(code),
        None => explain::explanations().collect(),
    };
    if let Some(code) = code.filter(|_| found.is_empty()) {
        return Err(unknown_code_error(code).into());
    }
    if out.json {
        out.print_json(&found.iter().map(to_json).collect())?;
    } else if code.is_none() {
        let rows: Vec<Vec<String>> = found.iter().map(table_row).collect();
        out.print_table(&["NAME", "CODE", "MEANING"], &rows)?;
    } else {
        for (index, explanation) in found.iter().enumerate() {
            if index > 0 {
                out.print_line("")?;
            }
            print_explanation(explanation, out)?;
        }
    }
    Ok(ExitStatus::Success)
}

fn unknown_code_error(code: &str) -> CommandError {
    let error = CommandError::usage(format!("unknown error code `{code}`"));
    match closest_match(code, explain::explanations().map(|explanation| explanation.name)) {
        Some(closest) => error.hint(format!("did you mean `{closest}`?")),
        None => error.hint("toolcrib explain"),
    }
}

fn print_explanation(explanation: &Explanation, out: &mut Output) -> Result<()> {
    let Explanation { name, code, meaning, treatment, cause, remedy } = *explanation;
    let kind = code.map_or_else(|| "failure class".to_owned(), |code| format!("error {code}"));
    out.print_line(&format!("{name} ({kind}): {meaning}"))?;
    print_section("Cause", cause, out)?;
    if let Some(treatment) = treatment {
        print_section("What toolcrib does", treatment, out)?;
    }
    print_section("What to do", remedy, out)
}

fn print_section(heading: &str, text: &str, out: &mut Output) -> Result<()> {
    out.print_line(&format!("\n{heading}:"))?;
    out.print_wrapped(text, 2)?;
    Ok(())
}

fn table_row(explanation: &Explanation) -> Vec<String> {
    let code = explanation.code.map_or_else(|| "class".to_owned(), |code| code.to_string());
    vec![explanation.name.to_owned(), code, explanation.meaning.to_owned()]
}

fn to_json(explanation: &Explanation) -> Value {
    let Explanation { name, code, meaning, treatment, cause, remedy } = *explanation;
    json!({
        "name": name,
        "code": code,
        "meaning": meaning,
        "cause": cause,
        "treatment": treatment,
        "remedy": remedy,
    })
}
