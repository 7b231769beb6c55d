//! The real program, built in this package so that tests know where it is.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolcrib_cli::main()
}
