//! Writes the man pages of the program into a folder: `cargo run -p toolcrib-cli --example man -- DIR`.
//!
//! Not part of the program, which is smaller without them.

use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder: PathBuf = std::env::args_os().nth(1).ok_or("usage: man DIR")?.into();
    std::fs::create_dir_all(&folder)?;
    clap_mangen::generate_to(toolcrib_cli::command(), &folder)?;
    Ok(())
}
