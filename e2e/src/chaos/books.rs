//! What was really done: the files that servers wrote, one for each process, in one folder for each server.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The folder of all files.
#[derive(Debug)]
pub struct Books {
    folder: PathBuf,
}

/// What they say.
#[derive(Debug, Default)]
pub struct Done {
    /// How often each token was worked on.
    pub tokens: HashMap<u64, u32>,
    /// Lines that are no token of ours.
    pub strange: Vec<String>,
    /// Processes that were started.
    pub starts: usize,
    /// Times that somebody asked for the tools.
    pub lists: usize,
}

impl Books {
    /// New books in a new folder.
    pub fn new(folder: PathBuf) -> Self {
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    /// The folder of one server, which names it on its command line.
    pub fn of(&self, server: &str) -> String {
        let folder = self.folder.join(server);
        std::fs::create_dir_all(&folder).unwrap();
        folder.to_str().expect("a readable path").to_owned()
    }

    /// Reads all of them. Tokens of callers who only asked whether a server is well are left out.
    pub fn read(&self) -> Done {
        let mut done = Done::default();
        let inside = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
        for file in inside(&self.folder).flat_map(|folder| inside(&folder.path())) {
            for line in std::fs::read_to_string(file.path()).unwrap_or_default().lines() {
                match line {
                    "start" => done.starts += 1,
                    "list" => done.lists += 1,
                    super::callers::WELL => {}
                    _ => match line.parse() {
                        Ok(token) => *done.tokens.entry(token).or_default() += 1,
                        Err(_) => done.strange.push(line.to_owned()),
                    },
                }
            }
        }
        done
    }
}
