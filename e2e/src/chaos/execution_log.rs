//! The calls that servers executed: each process of a server writes a file into the server's folder.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The folder that holds the servers' folders.
#[derive(Debug)]
pub struct ExecutionLog {
    folder: PathBuf,
}

/// The contents of all files.
#[derive(Debug, Default)]
pub struct Executions {
    /// Number of executions of each token.
    pub tokens: HashMap<u64, u32>,
    /// Lines that are not tokens.
    pub unknown: Vec<String>,
    /// Number of processes that were started.
    pub starts: usize,
    /// Number of requests for the list of tools.
    pub lists: usize,
}

impl ExecutionLog {
    /// Creates the folder.
    pub fn new(folder: PathBuf) -> Self {
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    /// Creates and returns the folder of one server.
    pub fn server_folder(&self, server: &str) -> String {
        let folder = self.folder.join(server);
        std::fs::create_dir_all(&folder).unwrap();
        folder.to_str().expect("a UTF-8 path").to_owned()
    }

    /// Reads all files. Tokens of probes are skipped.
    pub fn read(&self) -> Executions {
        let mut executions = Executions::default();
        let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
        for file in entries(&self.folder).flat_map(|folder| entries(&folder.path())) {
            for line in std::fs::read_to_string(file.path()).unwrap_or_default().lines() {
                match line {
                    "start" => executions.starts += 1,
                    "list" => executions.lists += 1,
                    super::callers::PROBE_TOKEN => {}
                    _ => match line.parse() {
                        Ok(token) => *executions.tokens.entry(token).or_default() += 1,
                        Err(_) => executions.unknown.push(line.to_owned()),
                    },
                }
            }
        }
        executions
    }
}
