//! The `toolcrib` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolcrib_cli::main()
}
