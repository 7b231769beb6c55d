//! The agents: where each keeps its servers and in which words, one row each. Nothing here reads or writes a file.

mod editors;
mod ground;
pub(crate) mod schemas;
mod terminal;
mod words;

use std::path::PathBuf;

use toolcrib::spelling::nearest;

use crate::edit::entry::Language;
use crate::failure::Failure;

use self::schemas::Schema;
pub(crate) use ground::Ground;

/// Every agent.
pub(crate) fn all() -> impl Iterator<Item = &'static Agent> {
    terminal::ROWS.iter().chain(editors::ROWS)
}

/// One agent. A path starts with `~`, with `XDG` or `APP` for the folders of settings, or with a variable that moves it;
/// paths of a project are below its root.
pub(crate) struct Agent {
    /// What it is called on the command line.
    pub(crate) id: &'static str,
    /// What people call it.
    pub(crate) name: &'static str,
    /// What is there if it is installed.
    pub(crate) sign: &'static str,
    /// Its settings for everything: the first path whose variable is set, else the first that exists, else the first.
    pub(crate) user: &'static [&'static str],
    /// Its settings for one project.
    pub(crate) project: &'static [&'static str],
    /// Files and folders that it reads as well: only ever imported from.
    pub(crate) also: &'static [&'static str],
    /// The language of those files.
    pub(crate) language: Language,
    /// The keys that lead to its servers.
    pub(crate) at: &'static [&'static str],
    /// How the file holds them.
    pub(crate) layout: Layout,
    /// One entry that it does not understand, and it takes none.
    pub(crate) brittle: bool,
    /// The words of an entry.
    pub(crate) words: Words,
    /// What an entry may hold.
    pub(crate) schema: Schema,
    /// What to do for it to see a change of its settings for everything.
    pub(crate) next: &'static str,
    /// The same for a project: who trusts a folder says so to the agent, never to us.
    pub(crate) next_in_project: &'static str,
    /// How it is started with servers for one session.
    pub(crate) session: Session,
}

/// How a file holds servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// By name.
    Named,
    /// In a list, in a file that is ours alone.
    OwnList,
}

/// The words of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// The `type` of a server that is a command.
    pub(crate) stdio: Option<&'static str>,
    /// The key of the program.
    pub(crate) command: &'static str,
    /// Whether the program and its arguments are one list.
    pub(crate) argv: bool,
    pub(crate) env: &'static str,
    /// The key of names of variables that are passed on as they are.
    pub(crate) passed: Option<&'static str>,
    pub(crate) cwd: Option<&'static str>,
    /// Servers with an address, if it knows them.
    pub(crate) remote: Option<Remote>,
    pub(crate) switch: Option<Switch>,
    pub(crate) timeout: Option<(&'static str, Unit)>,
    /// The key of tools that alone are used; and whether `["*"]` must stand there for all.
    pub(crate) allow: Option<(&'static str, bool)>,
    pub(crate) deny: Option<&'static str>,
    /// How it writes "the value of a variable".
    pub(crate) references: References,
    /// Whether it looks for references in commands, arguments and addresses, too.
    pub(crate) everywhere: bool,
    /// What of its own environment its servers get.
    pub(crate) environment: Environment,
    /// What every entry has besides; a `$name` is the server's.
    pub(crate) besides: &'static [(&'static str, &'static str)],
}

/// The words of a server with an address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Remote {
    /// The `type` of Streamable HTTP.
    pub(crate) http: Option<&'static str>,
    pub(crate) url: &'static str,
    /// The key of headers; a dot leads further in.
    pub(crate) headers: Option<&'static str>,
    /// What holds the older HTTP+SSE.
    pub(crate) events: Events,
    /// The key of a variable that holds a bearer token, and that of headers whose values are variables.
    pub(crate) by_name: Option<(&'static str, &'static str)>,
}

/// How an agent is told of HTTP+SSE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Events {
    /// By a `type`, and the key of the address.
    Type(&'static str, &'static str),
    /// Not at all: it finds out.
    Found,
    /// It does not speak it.
    Unknown,
}

/// The key that switches an entry off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Switch {
    pub(crate) key: &'static str,
    /// Its value when the server is on.
    pub(crate) on: bool,
    /// Whether it is written for servers that are on.
    pub(crate) always: bool,
}

/// What a number of time counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Milliseconds,
    Seconds,
}

/// How an agent writes "the value of a variable".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum References {
    /// It cannot.
    None,
    /// `${X}`, and `${X:-default}`; whether `$X` is one, too.
    Shell { bare: bool },
    /// `${X}` without a default.
    Braces,
    /// `$X`.
    Dollar,
    /// `${env:X}`; with a default `${X:-default}` where that is known.
    Env { defaults: bool, files: bool },
    /// `{env:X}` and `{file:PATH}`.
    Opencode,
    /// `${{ secrets.X }}`.
    Secrets,
    /// `${X}` in headers alone, for variables that are named as passed on.
    Headers,
}

/// What servers get of an agent's own environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Environment {
    /// All of it.
    Whole,
    /// What is named.
    Named,
    /// All but what looks like a secret by its name.
    Screened,
}

/// How an agent is started with servers for one session, without a word in its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Session {
    /// There is no way.
    None,
    /// A flag takes the settings as JSON; by program and flag, with what stands around the entries.
    Flag { program: &'static str, flag: &'static str, around: Option<&'static str> },
    /// `-c KEY=VALUE`, a value at a time.
    Overrides { program: &'static str },
    /// A variable holds settings as JSON.
    Variable { program: &'static str, variable: &'static str },
    /// A variable names another home; what is in the folder of settings there leads to the user's own, but for the settings.
    Home { program: &'static str, variable: &'static str },
    /// A flag of its subcommands takes a command line.
    Extension { program: &'static str, flag: &'static str, usual: &'static str },
}

impl Session {
    /// The program of the agent.
    pub(crate) fn program(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Flag { program, .. }
            | Self::Overrides { program }
            | Self::Variable { program, .. }
            | Self::Home { program, .. }
            | Self::Extension { program, .. } => Some(program),
        }
    }
}

/// Which of an agent's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scope {
    /// For everything the user does.
    User,
    /// For the project around the current folder.
    Project,
}

impl Agent {
    /// The agent of a name on the command line.
    pub(crate) fn find(id: &str) -> Result<&'static Self, Failure> {
        all().find(|agent| agent.id == id).ok_or_else(|| {
            let known = || all().map(|agent| agent.id);
            let hint = match nearest(id, known()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("one of {}", known().collect::<Vec<_>>().join(", ")),
            };
            Failure::usage(format!("no agent is called `{id}`")).hint(hint)
        })
    }

    /// The file that is written for a scope, whether it is there or not.
    pub(crate) fn file(&self, scope: Scope, ground: &Ground) -> Option<PathBuf> {
        let paths = match scope {
            Scope::User => self.user,
            Scope::Project => self.project,
        };
        let moved = paths.iter().filter(|path| path.starts_with('$')).find_map(|path| ground.path(path));
        let usual =
            || paths.iter().filter(|path| !path.starts_with('$')).filter_map(|path| ground.path(path));
        moved.or_else(|| usual().find(|path| path.exists())).or_else(|| usual().next())
    }

    /// The keys that lead to one of its servers.
    pub(crate) fn path<'a>(&self, server: &'a str) -> Vec<&'a str> {
        self.at.iter().copied().chain([server]).collect()
    }

    /// Whether it seems to be installed, or used in this project.
    pub(crate) fn is_there(&self, scope: Scope, ground: &Ground) -> bool {
        match scope {
            Scope::User => {
                let installed = ground.path(self.sign).is_some_and(|sign| sign.exists());
                installed || self.file(scope, ground).is_some_and(|file| file.exists())
            }
            Scope::Project => self.file(scope, ground).is_some_and(|file| {
                let folder = file.parent().filter(|folder| *folder != ground.project);
                file.exists() || folder.is_some_and(std::path::Path::exists)
            }),
        }
    }

    /// What to do for it to see a change.
    pub(crate) fn next_step(&self, scope: Scope) -> &'static str {
        match scope {
            Scope::User => self.next,
            Scope::Project => self.next_in_project,
        }
    }
}
