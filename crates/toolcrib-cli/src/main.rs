//! The `toolcrib` program: everything it does is in the library beside this file.

use std::process::ExitCode;

fn main() -> ExitCode {
    toolcrib_cli::main()
}
