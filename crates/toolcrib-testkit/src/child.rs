//! The server as a child process, on stdin and stdout.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::instance::InstanceEnd;
use crate::script::ServerScript;
use crate::server::ScriptedServer;

/// The exit status of a scripted crash.
const CRASHED: u8 = 101;
/// The exit status of a start that exits at once.
const EXITED: u8 = 3;
/// The exit status if there is no valid script.
const USAGE: u8 = 64;

/// Runs the script in the first argument of this process on stdin and stdout, until stdin is closed or the script ends it.
/// It is the `main` of a program that [`ScriptedServer::command`] starts.
///
/// Returns the exit code: 0 after the end of stdin, 101 after a crash, 3 for a start that exits at once, and 64, with a
/// line on stderr, if the argument is not a script.
///
/// # Panics
/// Panics if it is called in a tokio runtime.
pub fn serve_stdio() -> ExitCode {
    match run_argument() {
        Ok(InstanceEnd::InputClosed) => ExitCode::SUCCESS,
        Ok(InstanceEnd::Crashed) => ExitCode::from(CRASHED),
        Ok(InstanceEnd::Exited) => ExitCode::from(EXITED),
        Err(reason) => {
            // There is no other place for an error if stderr is closed.
            let _ = writeln!(std::io::stderr(), "toolcrib-testkit: {reason}");
            ExitCode::from(USAGE)
        }
    }
}

fn run_argument() -> Result<InstanceEnd, String> {
    let argument = std::env::args().nth(1).ok_or("the first argument must be a script")?;
    let script: ServerScript =
        serde_json::from_str(&argument).map_err(|error| format!("the script is not valid: {error}"))?;
    let number = match &script.start_count {
        Some(file) => count_start(file).map_err(|error| format!("cannot count this start: {error}"))?,
        None => 1,
    };
    let mode = script.start_mode(number);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let instance = ScriptedServer::from_script(script).begin_instance();
    let end = runtime.block_on(instance.run(mode, tokio::io::stdin(), tokio::io::stdout()));
    // A pending read of stdin cannot be cancelled, and the process must not wait for it.
    runtime.shutdown_background();
    Ok(end)
}

/// Appends a byte to the file and returns its new length, which is the number of this start.
fn count_start(file: &Path) -> std::io::Result<usize> {
    let mut opened = OpenOptions::new().create(true).append(true).open(file)?;
    opened.write_all(b".")?;
    Ok(usize::try_from(opened.metadata()?.len()).unwrap_or(usize::MAX))
}
