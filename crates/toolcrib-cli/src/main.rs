//! The `toolcrib` binary.

use std::process::ExitCode;

#[cfg(unix)]
fn main() -> ExitCode {
    toolcrib_cli::main()
}

/// Says that the program does not run here. It needs Unix sockets, file permissions and signals.
#[cfg(not(unix))]
fn main() -> ExitCode {
    use std::io::Write as _;
    let message = "error: toolcrib runs on Linux and macOS, not on this system\n\
                   hint: on Windows, run it in WSL: `wsl --install`, then install toolcrib there\n";
    // There is no other place to report a closed stderr.
    let _ = std::io::stderr().write_all(message.as_bytes());
    ExitCode::FAILURE
}
